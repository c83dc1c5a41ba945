"""RootPath: a server whose paths have a prefix, as behind a proxy that does not cut it off."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from quire.errors import ConfigError

if TYPE_CHECKING:  # keeps the import light for the parent process
    from starlette.types import ASGIApp, Receive, Scope, Send

_PLAIN = re.compile(r"(/[A-Za-z0-9._~-]+)+")

# what the server's own paths begin with; but for /api, a usual prefix: Ollama's are then below it
SERVED = frozenset({
    "apply-template", "chat", "completion", "completions", "detokenize", "docs", "health",
    "invocations", "live", "load", "metrics", "models", "openapi.json", "page", "ping", "pooling",
    "props", "ready", "rerank", "reranking", "responses", "score", "tokenize", "tokenizer_info",
    "v1", "v2", "version",
})  # fmt: skip


class RootPath:
    """ASGI middleware outside all others: requests below the prefix reach `app` without it.

    Others reach it as they are, since some proxies cut the prefix off.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{self._prefix}/"):
            scope = {**scope, "path": scope["path"][len(self._prefix) :] or "/"}
        await self._app(scope, receive, send)


def plain_root_path(path: str) -> str | None:
    """The prefix without slashes at its end; None for "/". Raises ConfigError."""
    prefix = path.rstrip("/")
    if prefix and not _PLAIN.fullmatch(prefix):
        raise ConfigError(f"root_path must be a path such as /llm, not {path[:64]!r}")
    first = prefix[1:].partition("/")[0]
    if first in SERVED:
        raise ConfigError(
            f"root_path {prefix[:64]!r} begins as the server's own paths do, which would be cut; "
            "leave it out, or give the proxy another prefix, such as /llm"
        )
    return prefix or None
