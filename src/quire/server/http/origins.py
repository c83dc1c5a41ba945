"""Origins of pages as settings name them. Light to import, as the settings are; the rest of what
becomes of them is in cross_origin.py.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from quire.errors import ConfigError

ANY = "*"


def listed_origins(text: str) -> list[str]:
    """Origins of a comma list, or of a JSON list. Raises ConfigError."""
    try:
        given = msgspec.json.decode(text, type=list[str]) if text[:1] == "[" else text.split(",")
    except msgspec.DecodeError:
        raise ConfigError(
            f"allowed_origins is {text!r}; give origins with commas between"
        ) from None
    origins = [origin.strip().lower() for origin in given]
    for origin in origins:
        if origin != ANY and not _is_origin(origin):
            raise ConfigError(
                f"allowed_origins has {origin!r}, which is no origin; give some such as "
                "https://app.example.com or http://localhost:3000, or * for all"
            )
    return origins


def _is_origin(text: str) -> bool:
    parts = urlsplit(text)
    return text.isascii() and bool(parts.netloc) and text == f"{parts.scheme}://{parts.netloc}"
