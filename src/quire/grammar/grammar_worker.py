"""Compiling forms in a process of its own: `python -m quire.grammar.grammar_worker`, started by
grammar_subprocess.py.

Told a vocabulary and then forms, on stdin; says on stdout what is wrong with each. Owns nothing
that would be missed: it is killed when a form takes too long.
"""

from __future__ import annotations

import os
import resource
import signal
from typing import TYPE_CHECKING

import msgspec

from quire.core.structured_outputs import StructuredOutputs
from quire.grammar.grammar_compiler import GrammarCompiler, problem_with
from quire.grammar.grammar_subprocess import LENGTH_BYTES, SentVocabulary, read_frame

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MEMORY_BYTES = 1 << 30  # that forms may take, besides what is there before


def main() -> None:
    """Answer until nobody asks any more."""
    out = os.dup(1)
    os.dup2(2, 1)  # what a library may print is no answer
    known = msgspec.msgpack.decode(_read(), type=SentVocabulary)
    compiler = GrammarCompiler(lambda: Spelled(known), cache_bytes=0)
    compiler.matcher(StructuredOutputs(regex="a"))
    _bound_memory()
    _write(out, b"")
    while True:
        try:
            wish = msgspec.msgpack.decode(_read(), type=StructuredOutputs)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, 2 * known.seconds)  # an orphan ends, too
        answer = problem_with(wish, compiler)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _write(out, answer.encode())


class Spelled:
    """The vocabulary as the grammar library wants it. How a forced text is split matters to no
    check, so the longest tokens are taken."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, known: SentVocabulary) -> None:
        self.tokens = known.tokens
        self.special_token_ids = known.special_token_ids
        self.eos_token_ids = known.eos_token_ids
        self.eos_token_id = known.eos_token_ids[0]
        self._greedy: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """A text as tokens."""
        assert self._greedy is not None
        return self._greedy.greedy_tokenize(text)

    def build(self) -> LLTokenizer:
        """The library's own object."""
        from llguidance import LLTokenizer

        # the stubs want a class of the library, which it never asks for
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
