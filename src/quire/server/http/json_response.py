"""Replies of structs as JSON."""

from __future__ import annotations

import msgspec
from starlette.responses import Response


class JsonResponse(Response):
    """A reply whose content is encoded by msgspec."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """The body."""
        return msgspec.json.encode(content)
