"""API keys: read at startup, compared in constant time; each key is one tenant.

Owns the keys' hashes; the keys themselves are not stored. A tenant is a keyed hash of an API key:
equal for requests with the same key, and the key cannot be computed from it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire.errors import ConfigError

if TYPE_CHECKING:  # keeps the import light for the parent process
    from starlette.datastructures import Headers
    from starlette.types import Scope

_LARGEST_FILE = 1 << 20  # bytes


class ApiKeys:
    """The keys that a server accepts; without any, all requests are accepted."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._hashes = [_hash(key.encode()) for key in keys]

    @property
    def are_required(self) -> bool:
        """Whether requests must send one."""
        return bool(self._hashes)

    def admit(self, scope: Scope) -> str:
        """The tenant of a request's key; "" where no key is required.

        Compares all keys, each in constant time. Raises HttpError 401.
        """
        if not self._hashes:
            return ""
        from starlette.datastructures import Headers

        from quire.server.http.http_errors import HttpError

        sent = _hash(_sent_key(Headers(scope=scope)))
        found = None
        for known in self._hashes:
            if hmac.compare_digest(sent, known):
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


def cache_salt_of(tenant: str, requested: str) -> str:
    """The prefix-cache salt of a tenant's request. requested: the request's own salt, or "".

    It is a keyed hash, so that no request of one tenant can get the salt of another.
    """
    if not tenant:
        return requested
    return hmac.new(
        tenant.encode(), requested.encode("utf-8", "surrogatepass"), "sha256"
    ).hexdigest()


def all_keys(keys: str | None, path: str | None) -> Sequence[str]:
    """The keys of a comma-separated list and of a file. Raises ConfigError."""
    return [
        *(listed(keys, "api_key") if keys is not None else ()),
        *(read_key_file(path) if path is not None else ()),
    ]


def listed(keys: str, setting: str) -> list[str]:
    """The keys of a comma-separated list, stripped. Raises ConfigError."""
    return [_plain_key(key, setting) for key in keys.split(",")]


def read_key_file(path: str) -> list[str]:
    """The keys of a file, one per line. Empty lines and lines that start with # are skipped.

    Raises ConfigError.
    """
    from quire.input_file import read_text  # usually not needed

    try:
        text = read_text(path, _LARGEST_FILE, again=True)  # in each process
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"api_key_file {path!r} cannot be read: {reason}; correct it") from None
    lines = map(str.strip, text.splitlines())
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"api_key_file {path!r} has no keys; write one per line")
    return [_plain_key(key, "api_key_file") for key in keys]


def _plain_key(key: str, setting: str) -> str:
    """The stripped key, checked to fit into a header."""
    key = key.strip()
    if not key:
        raise ConfigError(f"{setting} has an empty key; set a key, or leave it out")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{setting} has characters that headers cannot hold; use ASCII keys")
    return key


def _sent_key(headers: Headers) -> bytes:
    """The key that a request sends: a bearer token, or x-api-key of Anthropic's clients."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    key = token if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    return key.strip().encode()


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
