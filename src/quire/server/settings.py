"""The server's own settings; the engine's are in quire.config. The command line reads both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from quire.errors import ConfigError


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Where the server listens, whom it lets in, and how much it reads."""

    host: str = _setting("127.0.0.1", "address to listen on; 0.0.0.0 is every interface")
    port: int = _setting(8000, "port to listen on; 0 takes a free one")
    api_key: str | None = _setting(
        None, "key that requests must bring; default: $QUIRE_API_KEY, else none is asked for"
    )
    max_body_bytes: int = _setting(4 << 20, "largest request body")
    shutdown_timeout: int = _setting(30, "seconds that running requests get to finish at the end")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "least level logged")

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; give 0 to 65535")
        if self.api_key is not None:
            object.__setattr__(self, "api_key", _plain_key(self.api_key))  # the class is frozen
        if self.max_body_bytes < 1:
            raise ConfigError(f"max_body_bytes is {self.max_body_bytes}; give at least 1")
        if self.shutdown_timeout < 0:
            raise ConfigError(f"shutdown_timeout is {self.shutdown_timeout}; give 0 or more")


def _plain_key(key: str) -> str:
    """The key as a header can bring it: without the space around it. Raises ConfigError."""
    key = key.strip()
    if not key:
        raise ConfigError("api_key is empty; give a key, or leave it (and $QUIRE_API_KEY) out")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("api_key has characters that headers cannot hold; give an ASCII key")
    return key
