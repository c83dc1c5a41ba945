"""The failures of the engine, each with its fix.

QuireError
├── UserError                 the caller can mend it: HTTP 4xx, exit status 2, never a traceback
│   ├── ConfigError           a setting is wrong
│   │   └── FileError             it stands in a file
│   ├── CheckpointError       a model's files are missing, damaged or do not fit
│   └── InvalidRequestError   a request is wrong (HTTP 400)
│       ├── ContextLengthError    it can never fit
│       ├── ModelNotFoundError    it names a model that is not served (HTTP 404)
│       └── OwnDeadlineError      it did not end in the time that it gave itself (HTTP 408)
├── OverloadedError           try again later (HTTP 503 with Retry-After)
│   ├── QueueFullError            too many wait already (HTTP 429)
│   ├── QueueTimeoutError         it waited too long to begin
│   ├── ModelNotLoadedError       the model is not in memory
│   └── DrainingError             the server is shutting down
├── DeadlineError             it did not end in the time that the server gives it (HTTP 504)
└── EngineError               the engine failed this request (HTTP 500)
"""

from __future__ import annotations


class QuireError(Exception):
    """Base of all failures. `str(error)` is a sentence for people that ends with the fix."""


class UserError(QuireError):
    """The caller's mistake; the message names what is wrong and how to mend it."""


class ConfigError(UserError):
    """A setting has a wrong value, or two settings do not go together."""


class FileError(ConfigError):
    """Something in a file of settings is wrong; the message has the place and the file's names."""


class CheckpointError(UserError):
    """A model's files are missing, damaged, or do not match its configuration."""


class InvalidRequestError(UserError):
    """A request that cannot be served as it is.

    param: the request field at fault, or None; code: OpenAI's machine-readable error code.
    """

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def invalid_value(field: str, problem: str, *, where: str | None = None) -> InvalidRequestError:
    """The refusal of a field's value. problem: what is wrong with it, and how to mend it.

    where: the place inside the field, such as messages[2].role.
    """
    return InvalidRequestError(f"{where or field}: {problem}", param=field, code="invalid_value")


class ContextLengthError(InvalidRequestError):
    """Prompt and answer together can never fit the model's context or the KV cache."""

    def __init__(self, message: str, *, param: str | None = "prompt") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that is not served here."""

    status = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class OwnDeadlineError(InvalidRequestError):
    """The request did not end in the time that it gave itself. param: the field or header."""

    status = 408

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="deadline_exceeded")


class OverloadedError(QuireError):
    """No room for the request now. retry_after: seconds after which it is worth another try."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(OverloadedError):
    """So many requests wait already that another one is not taken."""


class QueueTimeoutError(OverloadedError):
    """The request waited for its turn longer than it was to wait."""


class ModelNotLoadedError(OverloadedError):
    """The model that a request names is served here, but is not in memory now."""

    def __init__(self, model: str, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after=retry_after)
        self.model = model


class DrainingError(OverloadedError):
    """The server is shutting down and takes no more requests, or has cut this one."""


class DeadlineError(QuireError):
    """The request did not end in the time that the server gives to each."""


class EngineError(QuireError):
    """The engine failed while it ran a request; the request may be sent again."""
