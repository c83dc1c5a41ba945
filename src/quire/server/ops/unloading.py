"""Unloading models for the admin endpoints, which refuse it while one of them is being loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quire.server.http.http_errors import HttpError
from quire.server.model_loading import ModelLoader
from quire.server.model_registry import ModelEntry


async def unload_models(loader: ModelLoader, entries: Iterable[ModelEntry], grace: float) -> None:
    """Unload those that are loaded, and wait until all their engines have ended.

    grace: seconds that requests have. Raises HttpError before anything is unloaded, and the first
    error of an unload after the last has ended.
    """
    there = [entry for entry in entries if entry.status.state != "unloaded"]
    for entry in there:
        if entry.status.state == "loading":
            text = f"model: {entry.name} is being loaded; unload it when it is there"
            raise HttpError(409, text, code="model_is_loading")
    unloads = (loader.unload(entry.name, grace) for entry in there)
    for result in await asyncio.gather(*unloads, return_exceptions=True):
        if result is not None:
            raise result
