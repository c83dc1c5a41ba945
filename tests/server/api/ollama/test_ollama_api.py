"""Ollama's API: lines as its clients read them, names of its options, calls without ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from asgi_client import Reply, call
from fake_engine import LIMITS, FakeEngine
from starlette.applications import Starlette

from quire.server.api.ollama import ollama_request, ollama_to_chat
from quire.server.app import build_app
from quire.server.settings import ServerSettings

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALL = 'Well.<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'


@pytest.fixture
def calling() -> tuple[Starlette, FakeEngine]:
    """A server whose template knows tools and thoughts, and whose model calls one."""
    engine = FakeEngine(script=CALL)
    engine.tokenizer.chat_template_text = "<tool_call></think>"
    engine.tokenizer.chat_variables = frozenset({"messages", "tools", "enable_thinking"})
    return build_app(engine, ServerSettings()), engine


def ask(app: Starlette, **fields: Any) -> Reply:
    return call(app, "/api/chat", {"messages": HI} | fields)


def lines(reply: Reply) -> list[dict[str, Any]]:
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.body.decode().splitlines()]


def test_a_chat_is_streamed_unless_it_says_otherwise(app: Starlette, engine: FakeEngine) -> None:
    *parts, end = lines(ask(app, model="fake:latest"))
    assert "".join(part["message"]["content"] for part in parts) == "Hello!"
    assert {part["done"] for part in parts} == {False}
    assert {part["model"] for part in (*parts, end)} == {"fake"}
    assert (end["done"], end["done_reason"], end["message"]["content"]) == (True, "stop", "")
    counts = {name: end[name] for name in ("prompt_eval_count", "eval_count", "load_duration")}
    assert counts == {
        "prompt_eval_count": len(engine.calls[-1]["ids"]), "eval_count": 6, "load_duration": 0
    }  # fmt: skip
    whole = ask(app, stream=False).json()
    assert whole["message"] == {"role": "assistant", "content": "Hello!"}
    assert set(whole) == set(end)
    assert engine.calls[-1]["cut_to_context"] is True


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("think", ["high", True])
def test_what_only_a_template_reads_does_nothing_silently_without_one(
    engine: FakeEngine, raw: bool, think: Any
) -> None:
    engine.tokenizer.has_chat_template = raw
    engine.tokenizer.chat_variables = frozenset({"messages", "enable_thinking", "reasoning_effort"})
    app, body = build_app(engine, ServerSettings()), {"prompt": "hi", "raw": raw}
    reply = call(app, "/api/generate", body | {"think": think})
    assert (reply.status, engine.last_prompt) == (200, "hi")
    assert reply.headers["x-quire-no-effect"].startswith("think has no effect: ")
    refused = call(app, "/api/generate", body | {"system": "be brief"})
    assert (refused.status, refused.json()["error"].split(":")[0]) == (400, "system")


def test_a_prompt_goes_through_the_template_unless_it_is_raw(
    app: Starlette, engine: FakeEngine
) -> None:
    whole = call(app, "/api/generate", {"prompt": "hi", "system": "be", "stream": False}).json()
    assert (whole["response"], whole["done"]) == ("Hello!", True)
    assert engine.last_prompt == "<system>be<user>hi<assistant>"
    parts = lines(call(app, "/api/generate", {"prompt": "hi", "raw": True}))
    assert "".join(part["response"] for part in parts) == "Hello!"
    assert engine.last_prompt == "hi"
    engine.tokenizer.has_chat_template = False
    call(app, "/api/generate", {"prompt": "hi"})
    assert engine.last_prompt == "hi"


def test_options(app: Starlette, engine: FakeEngine) -> None:
    options = {"num_predict": 3, "repeat_penalty": 1.5, "seed": 7, "stop": "x", "top_k": 5}
    reply = ask(app, options=options | {"num_ctx": 64, "mirostat": 0}, keep_alive="5m", think=True)
    sampling = engine.calls[-1]["sampling"]
    assert (sampling.max_tokens, sampling.repetition_penalty, sampling.seed) == (3, 1.5, 7)
    assert (sampling.stop, sampling.top_k) == (["x"], 5)
    noted = reply.headers["x-quire-no-effect"]
    assert all(name in noted for name in ("keep_alive", "options.num_ctx", "think"))
    tuned = ask(app, options={"mirostat_tau": 0.8, "typical_p": 1.0, "mirostat": 0})
    assert "x-quire-no-effect" not in tuned.headers  # what it tunes is off there, too
    ask(app, options={"num_predict": -1})
    assert engine.calls[-1]["sampling"].max_tokens is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"options": {"temperature": -1}}, "options.temperature: must be"),
        ({"options": {"mirostat": 2}}, "options.mirostat: 2 is not supported: there is no Miro"),
        ({"options": {"typical_p": 0.7}}, "options.typical_p: 0.7 is not supported: logits are"),
        ({"options": {"n_predict": 3}}, "options.n_predict: unknown field; send num_predict"),
        ({"options": {"temprature": 1}}, "options.temprature: unknown field; did you mean"),
        ({"options": {"num_predict": 0}}, "options.num_predict: must be an integer >= 1"),
        ({"messages": None, "options": {"num_predict": 0}}, "options.num_predict: must be"),
        ({"messages": None, "tools": [TOOLS[0] | {"type": "AAA"}]}, "tools[0].type: "),
        ({"format": "xml"}, "format: must be 'json' or a JSON schema"),
        (
            {"messages": [HI[0] | {"images": ["aa"]}]},
            "messages[0].images: is not supported: models read",
        ),
        ({"messages": [{"role": "boss", "content": ""}]}, "messages[0].role: must be one of"),
        ({"tools": TOOLS}, "tools: this model's chat template does not read them"),
        ({"top_logprobs": 30}, "top_logprobs: 30 is above"),
        ({"think": "yes please"}, "think: must be true, false, high, low, max or medium"),
        ({"options": {"num_ctx": 0}}, "options.num_ctx: must be"),
        ({"options": {"num_ctx": -5}}, "options.num_ctx: must be"),
        ({"options": {"seed": 10**400}}, "options.seed: must be an integer <="),
    ],
)
def test_errors_name_the_fields_of_this_api(
    app: Starlette, fields: dict[str, Any], text: str
) -> None:
    reply = ask(app, **fields)
    assert reply.status == 400, reply.body
    assert reply.json()["error"].startswith(text)


def test_errors_are_sentences(app: Starlette, engine: FakeEngine) -> None:
    assert ask(app, model="nope").status == 404
    assert ask(app, model="nope").json()["error"].startswith("model: 'nope' is not served here")
    gone = call(app, "/api/pull", {"model": "x"})
    assert gone.status == 404
    assert "hf download" in gone.json()["error"]
    assert call(app, "/api/pull", {"model": "fake:latest"}).json() == {"status": "success"}
    assert "hf cache" in call(app, "/api/push", {"model": "x"}).json()["error"]
    assert call(app, "/api/tag").json() == {"error": "no such path; did you mean /api/tags?"}
    assert call(app, "/api/v1/chat/completion", {}).error["code"] == "not_found"
    engine.fail_at = 3
    *_, last = lines(ask(app))
    assert last["error"].startswith("internal error; see the server log")


def test_nothing_to_answer_loads_the_model(app: Starlette, engine: FakeEngine) -> None:
    for path, fields in (("chat", {"messages": []}), ("generate", {"prompt": ""})):
        reply = call(app, f"/api/{path}", fields).json()
        assert (reply["done"], reply["done_reason"]) == (True, "load")
    assert engine.calls == []


@pytest.mark.parametrize("keep_alive", [0, 0.0, "0", "0s", "0h0m", "-0", "0.0s"])
def test_an_unload_is_answered_as_one_and_noted(app: Starlette, keep_alive: object) -> None:
    for path in ("chat", "generate"):
        reply = call(app, f"/api/{path}", {"model": "fake", "keep_alive": keep_alive})
        assert (reply.json()["done"], reply.json()["done_reason"]) == (True, "unload")
        assert "keep_alive has no effect" in reply.headers["x-quire-no-effect"]


@pytest.mark.parametrize(
    "keep_alive",
    [None, 1, -1, "5m", "10", "0h5m", "-1", "1h30m", "1.5h", ".5s", "", "-1m", "0" * 60 + "1"],
)
def test_other_times_load_a_model(app: Starlette, keep_alive: object) -> None:
    reply = call(app, "/api/generate", {"model": "fake", "keep_alive": keep_alive}).json()
    assert reply["done_reason"] == "load"


@pytest.mark.parametrize(
    ("options", "is_noted"),
    [
        ({"repeat_last_n": 64}, False),
        ({"repeat_last_n": 64, "repeat_penalty": 1.0}, False),
        ({"repeat_last_n": -1, "repeat_penalty": 1.1}, False),
        ({"repeat_last_n": 64, "repeat_penalty": 1.1}, True),
        ({"repeat_last_n": 0, "frequency_penalty": 0.5}, False),
    ],
)
def test_the_reach_of_penalties_is_noted_where_there_are_any(
    app: Starlette, options: dict[str, Any], is_noted: bool
) -> None:
    reply = ask(app, options=options)
    assert reply.status == 200
    assert ("repeat_last_n" in reply.headers.get("x-quire-no-effect", "")) == is_noted


def test_thoughts_of_a_user_are_refused_by_their_own_name(app: Starlette) -> None:
    reply = ask(app, messages=[HI[0] | {"thinking": "y"}])
    assert reply.json()["error"].startswith("messages[0].thinking: a message of the role user")


def test_the_older_path_embeds_one_text(app: Starlette, engine: FakeEngine) -> None:
    reply = call(app, "/api/embeddings", {"model": "fake", "prompt": "abc", "keep_alive": 5})
    (wanted,) = call(app, "/api/embed", {"input": ["abc"]}).json()["embeddings"]
    assert reply.json() == {"embedding": wanted}
    assert "keep_alive" in reply.headers["x-quire-no-effect"]
    assert engine.last_prompt == "abc"
    for wrong in ({}, {"prompt": ""}, {"prompt": ["a"]}, {"input": "a"}):
        assert call(app, "/api/embeddings", wrong).status == 400
    engine.info.limits = msgspec.structs.replace(LIMITS, max_kv_tokens=2)
    error = call(app, "/api/embeddings", {"prompt": "abc"}).json()["error"]
    assert error.startswith("prompt"), error


def test_what_has_no_effect_on_vectors_is_noted(app: Starlette) -> None:
    body = {"input": "a", "keep_alive": 5, "options": {"num_ctx": 64}}
    noted = call(app, "/api/embed", body).headers["x-quire-no-effect"]
    assert "keep_alive" in noted
    assert "options" in noted
    assert call(app, "/api/embed", {"input": "a", "options": {"bogus": 1}}).status == 400


def test_a_call_that_is_cut_off_is_not_sent(calling: tuple[Starlette, FakeEngine]) -> None:
    app, engine = calling
    engine.script = CALL[: CALL.index('"x"') + 2]
    parts = lines(ask(app, tools=TOOLS))
    assert not [call for part in parts for call in part["message"].get("tool_calls", ())]
    assert "tool_calls" not in ask(app, tools=TOOLS, stream=False).json()["message"]


def test_a_call_is_one_part_with_its_arguments(calling: tuple[Starlette, FakeEngine]) -> None:
    app, _ = calling
    *parts, end = lines(ask(app, tools=TOOLS))
    calls = [call for part in parts for call in part["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [{"name": "look", "arguments": {"at": "x"}}]
    assert "".join(part["message"]["content"] for part in parts).strip() == "Well."
    assert end["done_reason"] == "stop"
    message = ask(app, tools=TOOLS, stream=False).json()["message"]
    assert message["tool_calls"][0]["function"] == calls[0]["function"]


def test_results_of_calls_need_no_id(calling: tuple[Starlette, FakeEngine]) -> None:
    app, engine = calling
    call_of = [{"function": {"name": name, "arguments": {"n": 1}}} for name in ("look", "go")]
    results = [
        {"role": "tool", "tool_name": "go", "content": "went"},
        {"role": "tool", "content": "saw"},
    ]
    turn = {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": call_of}
    assert ask(app, messages=[*HI, turn, *results], tools=TOOLS).status == 200
    _, asked, went, saw = engine.tokenizer.seen[0]
    ids = [each["id"] for each in asked["tool_calls"]]
    assert (went["tool_call_id"], saw["tool_call_id"]) == (ids[1], ids[0])
    assert asked["reasoning_content"] == "hm"


@pytest.mark.parametrize("stream", [True, False])
def test_thoughts_have_a_field_of_their_own(
    calling: tuple[Starlette, FakeEngine], *, stream: bool
) -> None:
    app, engine = calling
    engine.script = "<think>hm</think>Yes."
    reply = ask(app, think=False, stream=stream)
    assert engine.last_prompt == "<user>hi[enable_thinking=False]<assistant>"
    parts = [part["message"] for part in (lines(reply) if stream else [reply.json()])]
    assert "".join(part.get("thinking", "") for part in parts).strip() == "hm"
    assert "".join(part["content"] for part in parts).strip() == "Yes."


def test_answers_by_a_schema(app: Starlette, engine: FakeEngine) -> None:
    ask(app, format="json")
    assert engine.calls[-1]["sampling"].structured_outputs.json_object
    ask(app, format={"type": "integer"})
    assert engine.calls[-1]["sampling"].structured_outputs.json == '{"type":"integer"}'


@pytest.mark.parametrize("hold", [False, True])  # the text, so that most tokens make no line
def test_log_probabilities(app: Starlette, engine: FakeEngine, hold: bool) -> None:
    engine.hold = hold
    *parts, _ = lines(ask(app, logprobs=True, top_logprobs=1))
    assert [one["token"] for part in parts for one in part["logprobs"]] == list("Hello!")
    assert parts[0]["logprobs"][0]["top_logprobs"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/chat", lambda text: {"messages": [{"role": "user", "content": text}]}),
        ("/api/generate", lambda text: {"prompt": text}),
        ("/api/generate", lambda text: {"prompt": text, "raw": True}),
    ],
    ids=["chat", "prompt", "raw"],
)
def test_a_prompt_that_is_too_long_is_cut_if_asked(
    app: Starlette, engine: FakeEngine, path: str, fields: Callable[[str], dict[str, Any]]
) -> None:
    body, limit = fields("x" * (2 * LIMITS.max_model_len) + "end"), LIMITS.max_model_len
    assert call(app, path, body).status == 400
    reply = call(app, path, body | {"truncate": True, "options": {"num_predict": 5}})
    assert reply.status == 200, reply.body
    assert "truncate" not in reply.headers.get("x-quire-no-effect", "")
    assert limit - 5 >= len(engine.calls[-1]["ids"]) > limit // 2
    assert "end" in engine.last_prompt


def test_vectors(app: Starlette, engine: FakeEngine) -> None:
    reply = call(app, "/api/embed", {"model": "fake", "input": ["ab", "c"], "dimensions": 2}).json()
    assert reply["embeddings"] == [[97.0, 2.0], [99.0, 1.0]]
    assert (reply["model"], reply["prompt_eval_count"]) == ("fake", 3)
    assert reply["total_duration"] > 0, "from the arrival on, although no token was generated"
    for nothing in ("", []):
        empty = call(app, "/api/embed", {"input": nothing, "keep_alive": "5m"})
        assert (empty.status, empty.json()["embeddings"]) == (200, [])
        assert empty.headers["x-quire-no-effect"].startswith("keep_alive has no effect: ")
    long = "x" * (engine.info.limits.max_model_len + 1)
    assert call(app, "/api/embed", {"input": long}).status == 200
    assert call(app, "/api/embed", {"input": long, "truncate": False}).status == 400


def test_models(app: Starlette) -> None:
    (one,) = call(app, "/api/tags").json()["models"]
    assert (one["name"], one["details"]["format"], len(one["digest"])) == ("fake", "gguf", 64)
    assert one["size"] == 7 << 20  # of the files; those in memory are not known here
    details = {name: one["details"][name] for name in ("family", "families", "parameter_size")}
    assert details == {"family": "llama", "families": ["llama"], "parameter_size": "1.2B"}
    (loaded,) = call(app, "/api/ps").json()["models"]
    assert loaded["context_length"] > 0
    assert loaded["size"] == loaded["size_vram"] == 0
    shown = call(app, "/api/show", {"model": "fake:latest"}).json()
    assert shown["modelfile"] == "FROM /models/fake.gguf\n"
    # a model that has "embedding" is taken for one that does not generate
    assert shown["capabilities"] == ["completion"]
    assert shown["model_info"]["general.basename"] == "fake", "the name that Copilot shows"
    assert call(app, "/api/show", {"name": "fake"}).json() == shown
    long = call(app, "/api/show", {"verbose": True})
    assert long.headers["x-quire-no-effect"].startswith("verbose has no effect: ")
    assert call(app, "/api/show", {"name": "other"}).status == 404
    assert call(app, "/api/show", {"model": "other"}).status == 404
    version = call(app, "/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4), "Copilot refuses older ones"


@pytest.mark.parametrize(
    ("last", "continues"),
    [
        ({"role": "assistant", "content": "He"}, True),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "user", "content": "x"}, False),
    ],
)
def test_a_started_answer_is_continued_as_in_ollama(last: dict[str, str], continues: bool) -> None:
    request = ollama_request.OllamaChat(messages=[*_messages(HI), *_messages([last])])
    chat = ollama_to_chat.to_chat(request, frozenset())
    assert bool(chat.continue_final_message) == continues


def _messages(given: list[dict[str, str]]) -> list[ollama_request.OllamaMessage]:
    return [msgspec.convert(message, ollama_request.OllamaMessage) for message in given]
