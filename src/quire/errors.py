"""The failures of the engine, each with its fix.

QuireError
├── UserError                 the caller's mistake: HTTP 4xx, exit status 2, never a traceback
│   ├── ConfigError           a setting is wrong
│   │   └── FileError             the setting is in a file
│   ├── CheckpointError       a model's files are missing, damaged or do not fit
│   │   └── QualityGateError      the weights' quality report does not pass
│   └── InvalidRequestError   a request is wrong (HTTP 400)
│       ├── ContextLengthError    it can never fit
│       ├── ModelNotFoundError    it names a model that is not served (HTTP 404)
│       └── OwnDeadlineError      it exceeded its own timeout (HTTP 408)
├── OverloadedError           try again later (HTTP 503 with Retry-After)
│   ├── QueueFullError            too many wait already (HTTP 429)
│   ├── CallerLimitError          its caller has used too much (HTTP 429)
│   ├── QueueTimeoutError         it waited too long to start
│   ├── ModelNotLoadedError       the model is not in memory
│   └── DrainingError             the server is shutting down
├── DeadlineError             it exceeded the server's time limit (HTTP 504)
└── EngineError               the engine failed this request (HTTP 500)
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any


class QuireError(Exception):
    """Base of all failures. `str(error)` is a sentence for people that ends with the fix."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the class with the message alone: a process pool that reads such an
        # error of a worker waits for ever if the class needs more
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[QuireError], args: tuple[Any, ...], fields: dict[str, Any]) -> QuireError:
    """An error as it was in another process."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class NoEffectWarning(UserWarning):
    """An option or field of another engine was taken, and has no effect here; the text says why."""


def warn_no_effect(notices: Iterable[str]) -> None:
    """A NoEffectWarning for each sentence, at the first line outside of Quire."""
    for notice in notices:
        frame: FrameType | None = sys._getframe(1)
        depth = 2
        while frame is not None and frame.f_globals.get("__name__", "").startswith("quire."):
            frame, depth = frame.f_back, depth + 1
        warnings.warn(notice, NoEffectWarning, stacklevel=depth)


class UserError(QuireError):
    """The caller's mistake; the message says what is wrong and how to fix it."""


class ConfigError(UserError):
    """A setting has a wrong value, or two settings do not go together."""


class FileError(ConfigError):
    """Something in a file of settings is wrong; the message names file and line."""


class CheckpointError(UserError):
    """A model's files are missing, damaged, or do not match its configuration."""


class QualityGateError(CheckpointError):
    """Weights whose quality report does not pass the gate. quality: the report's figures."""

    def __init__(
        self, message: str, *, quality: dict[str, bool | float | str] | None = None
    ) -> None:
        super().__init__(message)
        self.quality = quality


class InvalidRequestError(UserError):
    """A request that is refused because of its content (HTTP 400).

    param: the request field at fault, or None; code: OpenAI's machine-readable error code, which
    every refused field has.
    """

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code or (None if param is None else "invalid_value")


def invalid_value(field: str, problem: str, *, where: str | None = None) -> InvalidRequestError:
    """The refusal of a field's value. problem: what is wrong with it, and the fix.

    where: the path inside the field, such as messages[2].role.
    """
    return InvalidRequestError(f"{where or field}: {problem}", param=field, code="invalid_value")


def one_of_two(field: str, other: str, *, is_missing: bool) -> InvalidRequestError:
    """The refusal of two fields of which a request must have one. is_missing: it has neither."""
    if is_missing:
        text = f"{field}: it is missing; send it, or {other}"
        return InvalidRequestError(text, param=field, code="missing_field")
    return invalid_value(field, f"must be sent without {other}, or {other} without it")


class TemplateRefusalError(InvalidRequestError):
    """A conversation that the model's chat template refuses in its own words."""


class ContextLengthError(InvalidRequestError):
    """Prompt and answer together can never fit the model's context or the KV cache.

    num_prompt_tokens: of the prompt, or of as much as was counted. limit: of prompt and answer.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = "prompt",
        num_prompt_tokens: int,
        limit: int,
    ) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
        self.num_prompt_tokens = num_prompt_tokens
        self.limit = limit


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that is not served here."""

    status = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class OwnDeadlineError(InvalidRequestError):
    """The request exceeded the timeout that it set itself. param: the field or header."""

    status = 408

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="deadline_exceeded")


class OverloadedError(QuireError):
    """The request cannot be accepted now. retry_after: seconds until another try is worthwhile."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(OverloadedError):
    """The waiting queue is full."""


class CallerLimitError(OverloadedError):
    """The requests of this caller have kept others waiting for too long."""


class QueueTimeoutError(OverloadedError):
    """The request was in the waiting queue for longer than its timeout."""


class ModelNotLoadedError(OverloadedError):
    """The model that a request names is served here, but is not in memory now."""

    def __init__(self, model: str, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after=retry_after)
        self.model = model


class DrainingError(OverloadedError):
    """The server is shutting down; it refuses new requests or has ended this one."""


class DeadlineError(QuireError):
    """The request exceeded the server's time limit for requests."""


class EngineError(QuireError):
    """The engine failed while it ran a request; the request may be sent again."""


def is_failure(error: BaseException) -> bool:
    """Whether an error is a failure, and not a request to stop (an interrupt, a cancellation).

    A panic of a library written in Rust is one, though its class is not an Exception.
    """
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"
