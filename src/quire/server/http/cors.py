"""CORS: which origins' web pages may call this server from a browser.

Without an API key none but those that are named; with one any that knows the key, by default.

The middleware is starlette's. Cookies are never allowed: a page sends its API key in a header, as
any other client does. Starlette is imported on use, as the settings import this module early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from quire.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

ANY = "*"
LOCALHOST = "localhost"  # pages of this machine, whatever their port
_PATTERNS = {ANY: r".*", LOCALHOST: r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?"}
METHODS = ("GET", "POST", "DELETE", "OPTIONS")
EXPOSED_HEADERS = ("x-request-id", "request-id", "retry-after")
MAX_AGE_SECONDS = 600  # for which a browser need not ask again


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application inside CORS middleware, which answers preflight requests without a key."""
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app,
        allow_origins=[origin for origin in origins if origin not in _PATTERNS],
        # an answer names its page's origin, as llama.cpp's does, also where any origin may call
        allow_origin_regex="|".join(_PATTERNS[name] for name in origins if name in _PATTERNS)
        or None,
        allow_methods=METHODS,
        allow_headers=(ANY,),
        expose_headers=EXPOSED_HEADERS,
        max_age=MAX_AGE_SECONDS,
    )


def parse_origins(text: str) -> list[str]:
    """The origins of a comma-separated or a JSON list, none of `none`. Raises ConfigError."""
    if text.strip().lower() == "none":
        return []
    try:
        given = msgspec.json.decode(text, type=list[str]) if text[:1] == "[" else text.split(",")
    except msgspec.DecodeError:
        raise ConfigError(
            f"allowed_origins must be origins with commas between, not {text!r}"
        ) from None
    origins = [origin.strip().lower() for origin in given]
    for origin in origins:
        if origin not in (ANY, LOCALHOST) and not _is_origin(origin):
            raise ConfigError(
                f"allowed_origins has {origin!r}, which is not an origin; use origins such as "
                "https://app.example.com, localhost for pages of this machine, or * for all"
            )
    return origins


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:  # such as brackets that do not close
        return False
    return (
        text.isascii()
        and "@" not in parts.netloc
        and bool(parts.netloc)
        and text == f"{parts.scheme}://{parts.netloc}"
    )
