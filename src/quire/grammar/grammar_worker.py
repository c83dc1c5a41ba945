"""The main function of the grammar subprocess, which grammar_subprocess.py starts.

Reads a vocabulary and then structured outputs from stdin; writes the problem of each, or an empty
frame, to stdout. It has no state worth saving: it is killed when a compilation takes too long.
"""

from __future__ import annotations

import os
import resource
import signal
from typing import TYPE_CHECKING

import msgspec

from quire.core.structured_outputs import StructuredOutputs
from quire.grammar.grammar_compiler import GrammarCompiler, compile_problem
from quire.grammar.grammar_subprocess import LENGTH_BYTES, VocabularyMessage, read_frame

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MEMORY_BYTES = 1 << 30  # for grammars, besides what the process has at its start


def main() -> None:
    """Check the grammars that arrive on stdin, until it ends."""
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not reach the frames on stdout
    known = msgspec.msgpack.decode(_read(), type=VocabularyMessage)
    compiler = GrammarCompiler(lambda: SubprocessVocabulary(known), cache_bytes=0)
    compiler.matcher(StructuredOutputs(regex="a"))
    _bound_memory()
    _write(out, b"")
    while True:
        try:
            structured_outputs = msgspec.msgpack.decode(_read(), type=StructuredOutputs)
        except EOFError:
            return
        signal.setitimer(
            signal.ITIMER_PROF, 2 * known.seconds
        )  # ends this process if its parent has died
        answer = compile_problem(structured_outputs, compiler)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _write(out, answer.encode())


class SubprocessVocabulary:
    """The vocabulary as llguidance reads it, split greedily: checks do not depend on the split."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, known: VocabularyMessage) -> None:
        self.tokens = known.tokens
        self.special_token_ids = known.special_token_ids
        self.eos_token_ids = known.eos_token_ids
        self.eos_token_id = known.eos_token_ids[0]
        self._greedy: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """The token ids of a text, longest tokens first."""
        assert self._greedy is not None
        return self._greedy.greedy_tokenize(text)

    def build(self) -> LLTokenizer:
        """llguidance's tokenizer object."""
        from llguidance import LLTokenizer

        # the type stubs ask for a class that llguidance does not need
        made = LLTokenizer(self, eos_token=self.eos_token_ids)  # type: ignore[arg-type]
        self._greedy = made
        return made


def _bound_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read() -> bytes:
    return read_frame(lambda count: os.read(0, count))


def _write(out: int, frame: bytes) -> None:
    os.write(out, len(frame).to_bytes(LENGTH_BYTES) + frame)


if __name__ == "__main__":
    main()
