"""/v1/embeddings: OpenAI's forms of input and answer, what is refused, who is counted."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
import tracemalloc
from typing import Any

import pytest
from asgi_client import Reply, call, request, run_leaping
from fake_engine import FakeEngine, FakeInfo
from starlette.applications import Starlette

from quire.core.pooling_params import PoolingParams
from quire.errors import EngineError
from quire.server.admission.admission_control import Admission
from quire.server.api.common import embedding_runner
from quire.server.api.common.embedding_job import MAX_INPUTS, PackedPrompts
from quire.server.api.openai import embeddings_request
from quire.server.api.openai.embeddings_reply import MAX_POSITIONS
from quire.server.app import build_app
from quire.server.settings import ServerSettings

PATH = "/v1/embeddings"
LAST = PoolingParams()


def embed(app: Starlette, **fields: Any) -> Reply:
    return call(app, PATH, {"input": "abc"} | fields)


def test_the_answer_is_openais(app: Starlette) -> None:
    reply = embed(app, model="fake", user="me")
    assert reply.status == 200
    found = reply.json()
    assert found.pop("id").startswith("embd-")
    assert abs(found.pop("created") - time.time()) < 60
    assert found == {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": 0,
                "embedding": pytest.approx([97.0, 3.0, 0.1, -1.0]),
            }
        ],
        "model": "fake",
        "usage": {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0},
    }


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ("ab", [[97, 98]]),
        ([97, 98], [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([[97, 98], [99]], [[97, 98], [99]]),
        ([[97, "bc"]], [[97, 98, 99]]),
        ({"prompt_string": "ab"}, [[97, 98]]),
        ([{"text": "ab"}, "c"], [[97, 98], [99]]),
        (
            ["ab", [99], [97, "b"], {"content": [{"type": "text", "text": "c"}]}],
            [[97, 98], [99], [97, 98], [99]],
        ),
    ],
)
def test_types_of_input(
    app: Starlette, engine: FakeEngine, given: object, ids: list[list[int]]
) -> None:
    reply = embed(app, input=given).json()
    assert [call["ids"] for call in engine.calls] == ids
    vectors = {item["index"]: item["embedding"][:2] for item in reply["data"]}
    assert vectors == {index: [i[0], len(i)] for index, i in enumerate(ids)}
    assert reply["usage"]["total_tokens"] == sum(map(len, ids))


@pytest.mark.parametrize(
    "given",
    [
        [],
        [[]],
        [[97], 98],
        {},
        {"content": "a"},
        {"content": [{"type": "unknown"}]},
        [97, ""],
        [97, "bc"],
        ["a", 5],
    ],
)
def test_inputs_that_are_refused(app: Starlette, engine: FakeEngine, given: Any) -> None:
    reply = embed(app, input=given)
    assert reply.status == 400
    assert reply.error["param"].startswith("input")
    assert not engine.calls


def test_base64_is_of_little_endian_float32(app: Starlette) -> None:
    plain, coded = (embed(app, encoding_format=encoding).json() for encoding in ("float", "base64"))
    data = base64.b64decode(coded["data"][0]["embedding"], validate=True)
    assert list(struct.unpack("<4f", data)) == plain["data"][0]["embedding"]


@pytest.mark.parametrize("order", ["little", "big"])
def test_a_header_says_where_vectors_begin(app: Starlette, order: str) -> None:
    fields = {"input": ["abc", "de"], "embed_dtype": "float16", "endianness": order}
    plain = embed(app, input=["abc", "de"]).json()
    reply = embed(app, **fields, encoding_format="bytes")
    assert reply.headers["content-type"] == "application/octet-stream"
    metadata = json.loads(reply.headers["metadata"])
    assert metadata["usage"] == plain["usage"]
    kind = "<4e" if order == "little" else ">4e"
    for item, wanted in zip(metadata["data"], plain["data"], strict=True):
        assert (item["embed_dtype"], item["endianness"], item["shape"]) == ("float16", order, [4])
        found = struct.unpack(kind, reply.body[item["start"] : item["end"]])
        assert found == pytest.approx(wanted["embedding"], rel=1e-3)
    assert metadata["data"][-1]["end"] == len(reply.body)
    bare = embed(app, **fields, encoding_format="bytes_only")
    assert (bare.body, "metadata" in bare.headers) == (reply.body, False)
    coded = embed(app, **fields, encoding_format="base64").json()["data"]
    assert b"".join(base64.b64decode(item["embedding"]) for item in coded) == reply.body


def test_a_header_is_ascii_whatever_the_model_is_called() -> None:
    app = build_app(FakeEngine(info=FakeInfo(model_name="模型")), ServerSettings())
    reply = embed(app, encoding_format="bytes")
    assert (reply.status, reply.headers["metadata"].isascii()) == (200, True)
    assert json.loads(reply.headers["metadata"])["model"] == "模型"


def test_a_header_has_8_kib(app: Starlette) -> None:
    fields = {"encoding_format": "bytes", "embed_dtype": "float32", "endianness": "native"}
    most = embed(app, input=["a" * 9] * MAX_POSITIONS, **fields)
    assert most.status == 200
    assert len(most.headers["metadata"]) < 7 << 10  # beside the other headers
    more = embed(app, input=["a"] * (MAX_POSITIONS + 1), **fields)
    assert more.status == 400
    assert more.error["message"].startswith("encoding_format: ")
    assert "set bytes_only" in more.error["message"]


def test_a_conversation_is_embedded(app: Starlette, engine: FakeEngine) -> None:
    messages = [{"role": "user", "content": "hi"}]
    reply = call(app, PATH, {"messages": messages})
    ids = call(app, "/tokenize", {"messages": messages, "add_generation_prompt": False}).json()
    assert reply.status == 200
    assert engine.calls[0]["ids"] == ids["tokens"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "input", "missing_field"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input", "invalid_value"),
        ({"input": "a", "add_generation_prompt": True}, "add_generation_prompt", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": "a", "nmae": "b"}]},
            "messages[0].nmae",
            "unknown_parameter",
        ),
    ],
)
def test_an_input_or_messages(
    app: Starlette, fields: dict[str, Any], param: str, code: str
) -> None:
    error = call(app, PATH, fields).error
    assert (error["param"], error["code"]) == (param, code)


def test_pooling_is_vllms(app: Starlette) -> None:
    reply = call(app, "/pooling", {"input": "abc", "task": "embed"}).json()
    assert reply["id"].startswith("pool-")
    item = {"object": "pooling", "index": 0, "data": pytest.approx([97.0, 3.0, 0.1, -1.0])}
    assert reply["data"] == [item]
    refused = call(app, "/pooling", {"input": "abc", "task": "token_embed"})
    assert (refused.status, refused.error["param"]) == (400, "task")
    assert refused.error["type"] == "BadRequestError"
    assert refused.error["message"].startswith("Unsupported task: 'token_embed'; ")
    plugin = call(app, "/pooling", {"input": "abc", "task": "plugin"})
    assert plugin.error["message"].startswith("No IOProcessor plugin installed.")


def test_sampling_params_reach_the_engine(engine: FakeEngine) -> None:
    engine.info.pooling = PoolingParams(pooling="mean", normalize=False)
    app = build_app(engine, ServerSettings(queue_timeout=9.0))
    embed(app)
    changes = {"dimensions": 2, "priority": -3, "cache_salt": "s", "timeout": 5}
    embed(app, pooling="last", use_activation=True, **changes)  # under the name that vLLM has
    plain, changed = engine.calls
    assert plain["pooling"] == engine.info.pooling
    assert changed["pooling"] == PoolingParams(pooling="last", normalize=True, dimensions=2)
    assert (changed["priority"], changed["queue_timeout"]) == (-3, 9.0)
    assert plain["cache_salt"] != changed["cache_salt"]


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({"input": ""}, "input", "input: must be a string of length >= 1"),
        ({"input": []}, "input", "input: must be a list of length >= 1"),
        ({"input": ["a", ""]}, "input[1]", "input[1]: must be a string of length"),
        ({"input": [[1], []]}, "input[1]", "input[1]: must be a list of length"),
        ({"input": ["a", 1, [2]]}, "input", "input: token ids stand beside texts alone"),
        ({"input": {"a": 1}}, "input.a", "input.a: unknown field; remove it"),
        ({"input": None}, "input", "input: must be "),
        ({"input": [-1]}, "input", "input: token ids of this model must be between"),
        ({"input": [[5], [-1]]}, "input", "input[1]: token ids of this model must be between"),
        ({"input": [0x110000]}, "input", "input: token ids of this model must be between"),
        ({"input": [[1], [0x110000]]}, "input", "input[1]: token ids of this model must be"),
        ({"input": "x" * 1025}, "input", "input: too large: 1025 tokens, but this model"),
        ({"input": ["a", "x" * 1025]}, "input", "input[1]: too large: 1025 tokens"),
        ({"input": "x" * 70_000}, "input", "input: too large: 70000 characters"),
        ({"input": ["a"] * 2049}, "input", "input: 2049 of them; send at most 2048"),
        (
            {"encoding_format": "int8"},
            "encoding_format",
            "encoding_format: must be base64, bytes, bytes_only or float, not",
        ),
        ({"dimensions": 0}, "dimensions", "dimensions: must be an integer >= 1"),
        ({"dimensions": 5}, "dimensions", "dimensions: 5 is more than the 4 that"),
        ({"pooling": "max"}, "pooling", "pooling: must be"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 1025}, "truncate_prompt_tokens", "truncate_prompt_tokens"),
        ({"inputs": "a"}, "inputs", "inputs: "),
        ({"timeout": 0}, "timeout", "timeout: must be a number > 0.0"),
    ],
)
def test_what_is_refused(
    app: Starlette, engine: FakeEngine, fields: dict[str, Any], param: str, problem: str
) -> None:
    reply = embed(app, **fields)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert reply.error["message"].startswith(problem)
    assert engine.calls == []


def test_another_model_is_not_found(app: Starlette) -> None:
    assert embed(app, model="ghost").status == 404


def test_the_most_inputs_run_in_batches(engine: FakeEngine) -> None:
    """No more than the window are with the engine, or counted, so that others may come."""
    app = build_app(engine, ServerSettings(max_queued_requests=embedding_runner.WINDOW_INPUTS))
    admission = app.state.models.find(None).admission
    watch = Watch(engine, admission)
    reply = embed(app, input=["ab", "c"] * (MAX_INPUTS // 2), encoding_format="base64")
    assert [item["index"] for item in reply.json()["data"]] == list(range(MAX_INPUTS))
    assert len(engine.calls) == MAX_INPUTS
    assert watch.most_inputs == watch.most_counted == embedding_runner.WINDOW_INPUTS
    assert embed(app, input=["x" * 1000] * 30).status == 200
    assert watch.most_tokens == 8 * 1000 < embedding_runner.WINDOW_TOKENS
    assert (admission.in_flight.num_answers, admission.in_flight.num_prompt_tokens) == (0, 0)


class Watch:
    """The most that an engine had at a time, and that was counted for it."""

    def __init__(self, engine: FakeEngine, admission: Admission) -> None:
        self.admission, self.most_counted = admission, 0
        self.inputs: list[int] = []
        self.most_inputs = self.most_tokens = 0
        self._plain, engine.embed = engine.embed, self.embed  # type: ignore[method-assign]
        engine.delay = 0.001

    async def embed(self, prompt: list[int], *args: Any, **options: Any) -> Any:
        self.inputs.append(len(prompt))
        self.most_counted = max(self.most_counted, self.admission.in_flight.num_answers)
        self.most_inputs = max(self.most_inputs, len(self.inputs))
        self.most_tokens = max(self.most_tokens, sum(self.inputs))
        try:
            return await self._plain(prompt, *args, **options)
        finally:
            self.inputs.remove(len(prompt))


def test_a_failure_ends_the_others(app: Starlette, engine: FakeEngine) -> None:
    engine.failure, engine.fail_at, engine.delay = EngineError("broken; again"), ord("b"), 0.01
    reply = embed(app, input=["a", "b", *["c"] * 2000])
    assert (reply.status, reply.error["code"]) == (500, "engine_error")
    assert len(engine.calls) < 1000
    assert embed(app, input="a").status == 200


def test_who_leaves_aborts(app: Starlette, engine: FakeEngine) -> None:
    engine.delay = 60.0
    reply = call(app, PATH, {"input": ["a", "b"]}, leave_after=0)
    assert reply.status == 0
    assert len(engine.aborted) == len(engine.calls)
    assert app.state.models.find(None).admission.in_flight.num_answers == 0


def test_a_deadline_holds(app: Starlette, engine: FakeEngine) -> None:
    engine.delay = 60.0
    body = {"input": "a", "timeout": 0.02}
    reply = run_leaping(request(app, PATH, body))
    assert (reply.status, reply.error["code"]) == (408, "deadline_exceeded")


def test_others_are_served_meanwhile(app: Starlette, engine: FakeEngine) -> None:
    async def scenario() -> list[Reply]:
        engine.delay = 0.01
        vectors = request(app, PATH, {"input": ["a"] * 300})
        text = request(app, "/v1/completions", {"prompt": "a"})
        return await asyncio.gather(vectors, text)

    vectors, text = asyncio.run(scenario())
    assert (vectors.status, text.status) == (200, 200)
    assert len(vectors.json()["data"]) == 300


def test_each_field_is_read(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but `user`, which is accepted for compatibility with OpenAI."""
    app = build_app(engine, ServerSettings())
    read: set[str] = set()

    class Noting(embeddings_request.EmbeddingRequest):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(embeddings_request, "EmbeddingRequest", Noting)
    assert embed(app).status == 200
    assert set(Noting.__struct_fields__) - read == {"user"}


def test_token_ids_of_many_inputs_take_little_memory() -> None:
    """All of a request's are held until its last input is embedded."""
    prompts = PackedPrompts()
    tracemalloc.start()
    try:
        for start in range(0, 200_000, 1000):
            prompts.append(list(range(start, start + 1000)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 5 * 200_000  # bytes; as lists 40 for each
    assert len(prompts) == 200
    assert prompts[7] == list(range(7000, 8000))
    assert [len(prompt) for prompt in prompts] == [1000] * 200
