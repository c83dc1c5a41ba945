"""Bare stacks to compare Quire's server with: the same answers, without any model.

python benchmarks/bare_stacks.py raw|starlette prints "ready at <url>" and serves until a signal.
raw: an ASGI function on uvicorn. starlette: a route that reads and writes with msgspec. Both answer
a chat request whole, or as one server-sent event for each token.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import AsyncIterator

import msgspec
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"red running shoes"}}]}'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"red"}}]}\n\n'


class Turn(msgspec.Struct):
    role: str
    content: str


class Chat(msgspec.Struct):
    messages: list[Turn]
    max_tokens: int
    stream: bool = False


class Delta(msgspec.Struct):
    content: str


class Choice(msgspec.Struct):
    index: int
    delta: Delta


class Chunk(msgspec.Struct):
    choices: list[Choice]


decoder, encoder = msgspec.json.Decoder(Chat), msgspec.json.Encoder()


async def raw(_scope: Scope, receive: Receive, send: Send) -> None:
    """The least that a server can do with a request."""
    request_body = decoder.decode((await receive())["body"])
    if not request_body.stream:
        length = (b"content-length", b"%d" % len(ANSWER))
        await send(_start(b"application/json", length))
        await send({"type": "http.response.body", "body": ANSWER})
        return
    await send(_start(b"text/event-stream"))
    for _ in range(request_body.max_tokens):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await asyncio.sleep(0)  # as tokens come: one turn of the loop each
    await send({"type": "http.response.body", "body": b""})


def _start(kind: bytes, *more: tuple[bytes, bytes]) -> Message:
    headers = [(b"content-type", kind), *more]
    return {"type": "http.response.start", "status": 200, "headers": headers}


async def chat(request: Request) -> Response:
    """That work in a route of a framework."""
    request_body = decoder.decode(await request.body())
    if request_body.stream:
        return StreamingResponse(_events(request_body.max_tokens), media_type="text/event-stream")
    text = request_body.messages[-1].content
    answer = Chunk([Choice(0, Delta(text))])
    return Response(encoder.encode(answer), media_type="application/json")


async def _events(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"data: " + encoder.encode(Chunk([Choice(0, Delta("red"))])) + b"\n\n"
        await asyncio.sleep(0)


def main() -> None:
    routes = [Route("/v1/chat/completions", chat, methods=["POST"])]
    apps = {"raw": raw, "starlette": Starlette(routes=routes)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stack", choices=apps)
    app = apps[parser.parse_args().stack]
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="error",
        proxy_headers=False,
    )
    print(f"ready at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvloop.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
