"""API keys: read at the start, compared in constant time, and what each stands for afterwards.

Owns the keys' hashes; a key itself is kept nowhere. A tenant is a name made of a key by which
requests of the same key know each other, and from which the key cannot be told.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quire.errors import ConfigError

if TYPE_CHECKING:  # the parent of a server's processes waits for this module
    from starlette.datastructures import Headers
    from starlette.types import Scope


class ApiKeys:
    """The keys that open a server; without any, everybody may enter."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._hashes = [_hash(key.encode()) for key in keys]

    @property
    def are_asked_for(self) -> bool:
        """Whether requests must bring one."""
        return bool(self._hashes)

    def admit(self, scope: Scope) -> str:
        """The tenant whose key a request brings; "" where no key is asked for.

        Raises HttpError 401. All keys are compared, each in constant time.
        """
        if not self._hashes:
            return ""
        from starlette.datastructures import Headers

        from quire.server.http.http_errors import HttpError

        brought = _hash(_brought(Headers(scope=scope)))
        found = None
        for known in self._hashes:
            if hmac.compare_digest(brought, known):
                found = known
        if found is None:
            raise HttpError(
                401,
                "the API key is missing or wrong; send the header Authorization: Bearer <key>",
                code="invalid_api_key",
                kind="authentication_error",
                headers={"www-authenticate": "Bearer"},
            )
        return hmac.new(found, b"tenant", hashlib.sha256).hexdigest()[:32]


def cache_salt_of(tenant: str, asked: str) -> str:
    """The prefix-cache salt of a tenant's request that asked for one itself, or for none.

    A keyed hash, so that no request of one tenant can ask for the salt of another.
    """
    if not tenant:
        return asked
    return hmac.new(tenant.encode(), asked.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def all_keys(keys: str | None, path: str | None) -> Sequence[str]:
    """Keys of a comma list and of a file. Raises ConfigError."""
    return [
        *(listed(keys, "api_key") if keys is not None else ()),
        *(read_key_file(path) if path is not None else ()),
    ]


def listed(keys: str, setting: str) -> list[str]:
    """Keys of a comma list, without the space around them. Raises ConfigError."""
    return [_plain_key(key, setting) for key in keys.split(",")]


def read_key_file(path: str) -> list[str]:
    """Keys of a file, one per line; empty lines and those that begin with # are none.

    Raises ConfigError.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"api_key_file {path!r} cannot be read: {reason}; mend it") from None
    lines = map(str.strip, text.splitlines())
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"api_key_file {path!r} has no keys; write one per line")
    return [_plain_key(key, "api_key_file") for key in keys]


def _plain_key(key: str, setting: str) -> str:
    """The key as a header can bring it."""
    key = key.strip()
    if not key:
        raise ConfigError(f"{setting} has an empty key; give a key, or leave it out")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{setting} has characters that headers cannot hold; give ASCII keys")
    return key


def _brought(headers: Headers) -> bytes:
    """The key of a request: a bearer token, or as Anthropic's clients send it."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    key = token if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    return key.strip().encode()


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
