"""How an API process meets the engines of its models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from asgi_client import call
from model_house import House, model_status

from quire.config import EngineConfig
from quire.engine.processes.control_channel import EngineDown, EngineUp
from quire.engine.processes.status_page import StatusPage
from quire.engine.startup.null_engine import start_null_engine
from quire.server import worker
from quire.server.worker import EngineFrontends
from quire.shared_memory import clear_page, create_shared_memory

NULL = EngineConfig.from_options(load_format="null", num_blocks=64, max_model_len=64)


def test_an_engine_that_is_gone_before_this_process_met_it(tmp_path: Path) -> None:
    house = House(model_status("a", "loading"), model_load_timeout=0.5)

    async def hear() -> None:
        memory = create_shared_memory()
        clear_page(memory, 1)
        frontends = EngineFrontends("0", house.asked.append, house.loader, memory)
        info: Any = house.engines["a"].info
        address = f"ipc://{tmp_path}/a"
        up = EngineUp(name="a", config=EngineConfig(), info=info, address=address, page=1)
        frontends.handle(up)
        frontends.handle(EngineDown(name="a", will_return=False))
        await asyncio.gather(*frontends._tasks)
        assert not frontends._links
        house.become("a", "unloaded", failure="it went")
        assert not frontends.connected.is_set()

    asyncio.run(hear())
    assert call(house.app, "/v1/completions", {"prompt": "abc"}).status == 503


def test_an_engine_is_met_later_where_no_file_descriptor_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a process whose clients have all of them would never serve again."""
    house, failures = House(model_status("a", "loading")), [0]

    def fail_twice(*args: Any) -> StatusPage:
        if failures[0] < 2:
            failures[0] += 1
            raise OSError(24, "Too many open files")
        return StatusPage(*args)

    async def hear() -> None:
        memory = create_shared_memory()
        clear_page(memory, 1)
        frontends = EngineFrontends("0", house.asked.append, house.loader, memory)
        infos = [start_null_engine(NULL)[1] for _ in range(2)]
        for info in infos:  # the second process comes while the tokenizer is read
            address = f"ipc://{tmp_path}/a"
            frontends.handle(EngineUp(name="a", config=NULL, info=info, address=address, page=1))
        async with asyncio.timeout(30):
            await frontends.connected.wait()
        model = house.models.entry("a").model
        assert model is not None
        assert model.engine.info is infos[1]
        frontends.handle(EngineDown(name="a", will_return=True))
        failures[0] = 0
        frontends.handle(EngineUp(name="a", config=NULL, info=infos[0], address=address, page=1))
        assert model.engine.is_restarting
        async with asyncio.timeout(30):
            while not model.engine.is_alive:
                await asyncio.sleep(0.01)
        await model.engine.close()

    monkeypatch.setattr(worker, "StatusPage", fail_twice)
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.01)
    asyncio.run(hear())
    assert failures == [2]


@pytest.mark.parametrize("name", ["load_tokenizer", "AsyncEngine"])
@pytest.mark.parametrize("at_start", [True, False])
def test_any_error_of_a_tokenizer_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    at_start: bool,
    name: str,
) -> None:
    """Else the model would stay "loading" for good."""
    house, sent = House(model_status("a", "loading", at_start=at_start)), list[Any]()

    def fail(*_: Any) -> None:
        raise KeyError("merges")

    async def hear() -> None:
        memory = create_shared_memory()
        clear_page(memory, 1)
        frontends = EngineFrontends("0", sent.append, house.loader, memory)
        info = start_null_engine(NULL)[1]
        address = f"ipc://{tmp_path}/a"
        frontends.handle(EngineUp(name="a", config=NULL, info=info, address=address, page=1))
        await asyncio.gather(*frontends._tasks)
        for link in frontends._links.values():
            await link.close()

    monkeypatch.setattr(worker, name, fail)
    asyncio.run(hear())
    reported = sent[0].message if at_start else house.models.entry("a").status.failure
    assert reported == "KeyError('merges')"
    assert "in fail" in caplog.text, "the traceback is logged"
