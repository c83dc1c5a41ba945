"""The main function of the grammar subprocess, which grammar_subprocess.py starts.

It receives a vocabulary and then structured outputs, and answers with the problem of each, or an
empty frame. It has no state worth saving: it is killed when a compilation takes too long.
"""

from __future__ import annotations

import msgspec

from quire.core.structured_outputs import StructuredOutputs
from quire.framed_child import Answer, end_self_after, serve_frames
from quire.grammar.grammar_compiler import GrammarCompiler, compile_problem
from quire.grammar.grammar_subprocess import VocabularyMessage
from quire.grammar.vocabulary import GreedyVocabulary

MEMORY_BYTES = 1 << 30  # for grammars, besides what the process has at its start


def main() -> None:
    """Check the grammars that arrive on stdin, until it ends."""
    serve_frames(_begin, MEMORY_BYTES)


def _begin(first: bytes) -> Answer:
    known = msgspec.msgpack.decode(first, type=VocabularyMessage)
    compiler = GrammarCompiler(lambda: SubprocessVocabulary(known), cache_bytes=0)
    compiler.matcher(StructuredOutputs(regex="a"))

    def answer(frame: bytes) -> bytes:
        structured_outputs = msgspec.msgpack.decode(frame, type=StructuredOutputs)
        end_self_after(2 * known.seconds)
        return compile_problem(structured_outputs, compiler).encode()

    return answer


class SubprocessVocabulary(GreedyVocabulary):
    """The vocabulary of the parent process; checks do not depend on how text is split."""

    def __init__(self, known: VocabularyMessage) -> None:
        self.tokens = known.tokens
        self.special_token_ids = known.special_token_ids
        self.eos_token_ids = known.eos_token_ids


if __name__ == "__main__":
    main()
