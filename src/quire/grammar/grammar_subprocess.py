"""Runs grammar compilation in a subprocess that can be killed (the parent's side).

llguidance bounds its own work in most places but not in all, and a thread inside it cannot be
stopped. The child's side is grammar_worker.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from quire.core.structured_outputs import StructuredOutputs
from quire.grammar.vocabulary import Vocabulary
from quire.killable_process import ChildDiedError, KillableProcess

BUSY_FACTOR = 4  # wall-clock limit as a multiple of the limit on processor time
NOT_NOW = "grammars cannot be compiled at the moment; send it again later"
TOO_MUCH = "it takes too much memory to compile; make it simpler"


class VocabularyMessage(msgspec.Struct, frozen=True):
    """The message that the child begins with: the vocabulary and its time limit.

    seconds: of processor time for one grammar; the child ends itself after twice as many.
    """

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_ids: list[int]
    seconds: float


class GrammarSubprocess:
    """Validates structured outputs in a child process, one caller at a time.

    vocabulary: called when a process is started, which is before the first check.
    seconds: the limit on the child's processor time for one grammar.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], seconds: float) -> None:
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._process = KillableProcess(
            ["-m", "quire.grammar.grammar_worker"], "grammar subprocess", self._message, NOT_NOW
        )

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        return self._process.pid

    def find_problem(self, structured_outputs: StructuredOutputs, seconds: float = math.inf) -> str:
        """Why they cannot be compiled; empty if they can.

        seconds: a limit on processor time below that of all. Raises TimeoutError after it,
        OverloadedError if no process can be started.
        """
        frame = msgspec.msgpack.encode(structured_outputs)
        most = BUSY_FACTOR * self._seconds
        try:
            return self._process.ask(frame, min(seconds, self._seconds), most).decode()
        except ChildDiedError:
            return TOO_MUCH

    def close(self) -> None:
        """Kill the child; the next check starts another."""
        self._process.close()

    def _message(self) -> bytes:
        known = self._vocabulary()
        message = VocabularyMessage(
            known.tokens, known.special_token_ids, known.eos_token_ids, self._seconds
        )
        return msgspec.msgpack.encode(message)
