"""The main function of the grammar subprocess, which grammar_subprocess.py starts.

Reads a vocabulary and then structured outputs from stdin; writes the problem of each, or an empty
frame, to stdout. It has no state worth saving: it is killed when a compilation takes too long.
"""

from __future__ import annotations

import os
import resource
import signal

import msgspec

from quire.core.structured_outputs import StructuredOutputs
from quire.grammar.grammar_compiler import GrammarCompiler, compile_problem
from quire.grammar.grammar_subprocess import LENGTH_BYTES, VocabularyMessage, read_frame
from quire.grammar.vocabulary import GreedyVocabulary

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


class SubprocessVocabulary(GreedyVocabulary):
    """The vocabulary of the parent process; checks do not depend on how text is split."""

    def __init__(self, known: VocabularyMessage) -> None:
        self.tokens = known.tokens
        self.special_token_ids = known.special_token_ids
        self.eos_token_ids = known.eos_token_ids


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
