"""Encodes texts in a child process that can be killed: the parent's side.

The child's side is encoding_worker.py.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quire.killable_process import ChildDiedError, KillableProcess

NOT_NOW = "no other process can read the text at the moment; send it again later"


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A text to encode. is_broken: names of control tokens may be plain text."""

    text: str
    is_broken: bool
    add_special_tokens: bool


class Failure(msgspec.Struct, frozen=True, tag=True):
    """The library has failed on a text, or panicked."""

    reason: str


class EncodingSubprocess:
    """Encodes in a child process, one text at a time. spec: the tokenizer.json."""

    def __init__(self, spec: Callable[[], str]) -> None:
        self._process = KillableProcess(
            ["-m", "quire.tokenizer.encoding_worker"],
            "process for the tokenizer",
            lambda: spec().encode(),
            NOT_NOW,
        )

    def ids(self, question: Question, seconds: float, wall_seconds: float) -> list[int]:
        """Token ids.

        Raises TimeoutError and OverloadedError as `KillableProcess.ask` does, and RuntimeError
        where the library fails, as in this process.
        """
        frame = msgspec.msgpack.encode((seconds, question))
        try:
            answer = self._process.ask(frame, seconds, wall_seconds)
        except ChildDiedError:
            raise RuntimeError("it takes too much memory") from None
        found = msgspec.msgpack.decode(answer, type=list[int] | Failure)
        if isinstance(found, Failure):
            raise RuntimeError(found.reason)
        return found
