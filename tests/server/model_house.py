"""An application with two models, whose parent process a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fake_engine import FakeEngine, FakeInfo

from quire.engine.processes.control_channel import ControlMessage, ModelState, ModelStatus
from quire.server.app import build_server
from quire.server.model_loading import ModelLoader
from quire.server.model_registry import ModelRegistry
from quire.server.settings import ServerSettings


def model_status(name: str, state: ModelState = "loaded", **fields: Any) -> ModelStatus:
    return ModelStatus(name=name, state=state, **({"at_start": True, "max_num_seqs": 8} | fields))


class House:
    """Two models, `a` and `b`. parent: plays the other side when something is asked of it."""

    def __init__(self, *statuses: ModelStatus, **settings: Any) -> None:
        self.engines: dict[str, Any] = {
            name: FakeEngine(script=f"I am {name}.", info=FakeInfo(model_name=name))
            for name in "ab"
        }
        self.asked: list[ControlMessage] = []
        self.parent: Callable[[ControlMessage], object] = lambda _: None
        found = statuses or (model_status("a"), model_status("b"))
        self.models = ModelRegistry(found, ServerSettings(**settings))
        self.loader = ModelLoader(self.models, self._ask)
        for each in found:
            if each.state == "loaded":
                self.models.attach(each.name, self.engines[each.name])
        self.app = build_server(self.loader, ServerSettings(**settings))

    def _ask(self, message: ControlMessage) -> None:
        self.asked.append(message)
        self.parent(message)

    def become(self, name: str, state: ModelState, **fields: Any) -> None:
        old = self.models.entry(name).status
        self.loader.set_status(model_status(name, state, at_start=old.at_start, **fields))
        if state == "loaded" and self.models.entry(name).model is None:
            self.loader.attach(name, self.engines[name])

    def later(self, name: str, *states: ModelState) -> None:
        """The parent takes its time."""
        for index, state in enumerate(states):
            asyncio.get_running_loop().call_later(0.01 * (index + 1), self.become, name, state)
