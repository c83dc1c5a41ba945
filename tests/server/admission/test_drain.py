"""Shutting down under load, on real sockets: what runs ends well, what comes is sent elsewhere."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.server.admission.drain import Drain
from quire.server.app import build_app
from quire.server.http.listen_address import bind
from quire.server.settings import ServerSettings
from quire.server.uvicorn_server import Server


class Client:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def post(self, **fields: object) -> None:
        body = json.dumps({"prompt": "abc"} | fields).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def get(self, path: str) -> None:
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()

    async def whole(self) -> tuple[str, str]:
        """Head and body of an answer that says its length."""
        head = await self.head()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        return head, (await self.reader.readexactly(length)).decode()


class Running:
    def __init__(self, app: Starlette, server: Server, task: asyncio.Task[None], port: int) -> None:
        self.app, self.server, self.task, self._port = app, server, task, port
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        self.clients.append(client)
        return client

    def signal(self) -> None:
        self.server.handle_exit(signal.SIGTERM, None)


@asynccontextmanager
async def running(engine: FakeEngine, grace: int) -> AsyncIterator[Running]:
    settings = ServerSettings(shutdown_timeout=grace)
    ready = asyncio.Event()
    sock = bind("127.0.0.1", 0)
    app = build_app(engine, settings)
    server = Server(app, settings, ready.set)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    await ready.wait()
    house = Running(app, server, task, sock.getsockname()[1])
    try:
        yield house
    finally:
        server.should_exit = True
        await task
        for client in house.clients:
            client.writer.close()
            await client.writer.wait_closed()


def test_a_running_stream_ends_well_and_new_requests_are_refused(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(engine, grace=20) as house:
            engine.wait_at = 1
            streaming, idle = await house.client(), await house.client()
            idle.get("/version")
            await idle.whole()
            streaming.post(stream=True)
            await streaming.head()
            house.signal()
            while not house.app.state.drain.is_draining:
                await asyncio.sleep(0.001)
            fresh = await house.client()  # the socket still listens, so that it can say why
            for client in (idle, fresh):
                client.post()
                head, body = await client.whole()
                assert " 503 " in head
                assert "retry-after: 1\r\n" in head
                assert "connection: close" in head
                assert json.loads(body)["error"]["code"] == "draining"
            probe = await house.client()
            probe.writer.write(b"POST /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert " 200 " in await probe.head()
            assert not house.task.done()
            engine.go.set()
            rest = (await streaming.reader.read()).decode()
            assert "data: [DONE]" in rest
            await asyncio.wait_for(house.task, 30)
            assert engine.aborted == []
            assert engine.closed

    with caplog.at_level(logging.INFO, "quire.server.admission.drain"):
        asyncio.run(scenario())
    (record,) = (line for line in caplog.records if line.name == "quire.server.admission.drain")
    assert record.getMessage() == "shutting down: 20 s to finish for requests: 1"


def test_a_drain_with_nothing_to_finish_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "quire.server.admission.drain"):
        asyncio.run(Drain().run(20))
    assert caplog.messages == ["shutting down: no request is running"]


def test_what_does_not_end_in_time_gets_an_error(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(engine, grace=0) as house:
            engine.wait_at = 1
            streaming, whole = await house.client(), await house.client()
            streaming.post(stream=True, ignore_eos=True, max_tokens=500)
            whole.post(ignore_eos=True, max_tokens=500)
            await streaming.head()
            house.signal()
            rest = (await streaming.reader.read()).decode()
            last = [line for line in rest.splitlines() if line.startswith("data: ")][-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
            assert rest.endswith("0\r\n\r\n")  # a whole answer to HTTP, if not to the client
            head, body = await whole.whole()
            assert " 503 " in head
            assert json.loads(body)["error"]["code"] == "draining"
            await asyncio.wait_for(house.task, 30)
            assert len(engine.aborted) == 2

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert caplog.records == []


def test_several_prompts_in_one_request_are_cut_as_one(engine: FakeEngine) -> None:
    async def scenario() -> None:
        async with running(engine, grace=0) as house:
            engine.wait_at = 1
            client = await house.client()
            client.post(prompt=["a", "b"], stream=True, ignore_eos=True, max_tokens=500)
            await client.head()
            house.signal()
            rest = (await client.reader.read()).decode()
            assert '"code":"draining"' in rest
            assert "[DONE]" not in rest

    asyncio.run(scenario())
    assert len(engine.aborted) == 2


def test_a_second_signal_ends_the_wait(engine: FakeEngine) -> None:
    async def scenario() -> None:
        async with running(engine, grace=60) as house:
            engine.wait_at = 1
            client = await house.client()
            client.post(stream=True, ignore_eos=True, max_tokens=500)
            await client.head()
            house.signal()
            while not house.app.state.drain.is_draining:
                await asyncio.sleep(0.001)
            assert not house.task.done()
            house.signal()
            await asyncio.wait_for(house.task, 30)  # less than what the first signal allowed
            assert '"code":"draining"' in (await client.reader.read()).decode()

    asyncio.run(scenario())
