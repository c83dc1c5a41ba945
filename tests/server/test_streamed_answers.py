"""Streamed and whole answers are the same in every API, however the engine's outputs come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, zip_longest
from typing import Any

import pytest
from asgi_client import Reply, call
from fake_engine import FakeEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.core.messages import AddRequest, RequestDelta, TokenLogprobs
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.input_processor import PreparedRequest, StopWhen
from quire.engine.frontend.output_processor import OutputProcessor
from quire.engine.frontend.prompt_encoding import USUAL_ENCODING, token_ids_of
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.server.app import build_app
from quire.server.parsing.tool_parsers import TOOL_PARSERS
from quire.server.settings import ServerSettings

STOPS = [["ok"], ["</tool_call>"], ["}", 'b"'], ["\n\n", "</think>"]]


@dataclass
class CutEngine(FakeEngine):
    """The real way of tokens to outputs. sizes: of the parts that a stream's tokens come in.

    scripts: of the answers to one prompt. ending: how one ends that max_tokens do not cut.
    """

    sizes: tuple[int, ...] = (1,)
    scripts: tuple[str, ...] = ("",)

    async def generate(
        self,
        prompt: str | list[int],
        sampling: SamplingParams,
        *,
        stream: bool = True,
        stop_when: StopWhen | None = None,
        report_progress: bool = False,
        **_: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        limits, text = self.info.limits, prompt if isinstance(prompt, str) else None
        ids = token_ids_of(prompt, self.tokenizer, limits, USUAL_ENCODING)
        messages = [
            AddRequest(
                request_id=str(index),
                prompt_token_ids=ids,
                sampling=sampling,
                report_progress=report_progress,
            )
            for index in range(sampling.n)
        ]
        prepared = PreparedRequest("r", text, ids, sampling, messages, limits, stop_when)
        processor = OutputProcessor(self.tokenizer, RequestMetrics())
        processor.add(prepared, 0.0)
        rows = [self._deltas(message, int(message.request_id), stream) for message in messages]
        for deltas in zip_longest(*rows):
            done = processor.process([delta for delta in deltas if delta is not None])
            assert not done.failures
            await asyncio.sleep(0)
            if (output := done.outputs.get("r")) is not None:
                yield output
        assert not processor.num_unfinished

    def _deltas(self, message: AddRequest, index: int, stream: bool) -> Iterator[RequestDelta]:
        """What the engine sends for an answer; the first one's prompt is computed in two steps."""
        sampling, name = message.sampling, message.request_id
        ids = self.tokenizer.encode(self.scripts[index % len(self.scripts)])
        is_cut = sampling.max_tokens is not None and len(ids) >= sampling.max_tokens
        ids, reason = ids[: sampling.max_tokens], "length" if is_cut else self.ending
        ids += [2] if reason == "stop" else []
        sizes, prompt = cycle(self.sizes if stream else [len(ids)]), []
        if index == 0 and sampling.prompt_logprobs is not None:
            prompt = list(map(scores, message.prompt_token_ids[1:]))
        if index == 0 and stream:
            yield RequestDelta(
                request_id=name,
                prompt_progress=[1],
                prompt_logprobs=prompt[:1],
                num_cached_tokens=1,
            )
            prompt = prompt[1:]
        while ids:
            part, ids = ids[: (size := next(sizes))], ids[size:]
            yield RequestDelta(
                request_id=name,
                token_ids=part,
                logprobs=[] if sampling.logprobs is None else list(map(scores, part)),
                prompt_logprobs=prompt,
                num_cached_tokens=1,
                finish_reason=None if ids else reason,
            )
            prompt = []


def scores(token_id: int) -> TokenLogprobs:
    return TokenLogprobs([token_id, token_id + 1, token_id + 2], [-1.5, -0.5, -2.5], 2)


def same(found: Any, drop: frozenset[str] = frozenset()) -> Any:
    """A reply without what differs between any two answers."""
    names = {
        "id",
        "created",
        "created_at",
        "item_id",
        "call_id",
        "timings",
        "prompt_progress",
    } | drop
    if isinstance(found, dict):
        return {n: same(v, drop) for n, v in found.items() if n not in names}
    return [same(each, drop) for each in found] if isinstance(found, list) else found


def data_of(reply: Reply) -> list[Any]:
    lines = reply.body.decode().split("\n")
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return [json.loads(line) for line in lines if line]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def chat_streamed(events: list[Any]) -> Any:
    choices: dict[int, Any] = {}
    usage, ids = None, None
    for event in events:
        usage = event["usage"] or usage
        ids = event.get("prompt_token_ids", ids)
        for part in event["choices"]:
            empty = {"content": "", "reasoning": "", "reasoning_content": "", "tool_calls": []}
            choice = choices.setdefault(
                part["index"], {"message": empty, "logprobs": [], "token_ids": [], "stop": None}
            )
            message, delta = choice["message"], part["delta"]
            for name in ("content", "reasoning", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call_part in delta.get("tool_calls", ()):
                if "name" in call_part["function"]:
                    assert call_part["index"] == len(message["tool_calls"])
                    message["tool_calls"].append(
                        {**call_part["function"], "type": call_part["type"]}
                    )
                else:
                    message["tool_calls"][call_part["index"]]["arguments"] += call_part["function"][
                        "arguments"
                    ]
            choice["logprobs"] += (part["logprobs"] or {"content": []})["content"]
            choice["token_ids"] += part.get("token_ids", [])
            if part["finish_reason"] is not None:
                assert choice["stop"] is None
                choice["stop"] = [part["finish_reason"], part.get("stop_reason")]
    return [[choices[index] for index in sorted(choices)], same(usage), ids]


def chat_whole(reply: Any) -> Any:
    choices = []
    for choice in reply["choices"]:
        message = choice["message"]
        found = {
            name: message[name] or "" for name in ("content", "reasoning", "reasoning_content")
        }
        found["tool_calls"] = [
            {**each["function"], "type": each["type"]} for each in message.get("tool_calls", ())
        ]
        choices.append(
            {
                "message": found,
                "logprobs": (choice["logprobs"] or {"content": []})["content"],
                "token_ids": choice["token_ids"] or [],
                "stop": [choice["finish_reason"], choice["stop_reason"]],
            }
        )
    return [choices, same(reply["usage"]), reply["prompt_token_ids"]]


def completions_streamed(events: list[Any]) -> Any:
    choices: dict[int, Any] = {}
    usage = None
    for event in events:
        usage = event["usage"] or usage
        for part in event["choices"]:
            choice = choices.setdefault(
                part["index"],
                {"text": "", "logprobs": {}, "token_ids": [], "prompt": None, "stop": None},
            )
            choice["text"] += part["text"]
            for name, values in (part["logprobs"] or {}).items():
                choice["logprobs"].setdefault(name, []).extend(values)
            choice["token_ids"] += part.get("token_ids") or []
            choice["prompt"] = part.get("prompt_token_ids", choice["prompt"])
            if part["finish_reason"] is not None:
                choice["stop"] = [part["finish_reason"], part["stop_reason"]]
    return [[choices[index] for index in sorted(choices)], usage]


def completions_whole(reply: Any) -> Any:
    choices = [
        {
            "text": each["text"],
            "logprobs": each["logprobs"] or {},
            "token_ids": each["token_ids"] or [],
            "prompt": each["prompt_token_ids"],
            "stop": [each["finish_reason"], each["stop_reason"]],
        }
        for each in reply["choices"]
    ]
    return [choices, reply["usage"]]


def messages_streamed(events: list[Any]) -> Any:
    blocks: list[Any] = []
    end: Any = {}
    opened = None
    for event in events:
        match event["type"]:
            case "message_start":
                start = event["message"]
            case "content_block_start":
                assert (event["index"], opened) == (len(blocks), None)
                blocks.append(event["content_block"])
                opened, text = event["index"], ""
            case "content_block_delta":
                assert event["index"] == opened
                (name,) = event["delta"].keys() - {"type"}
                if name == "signature":  # of all before it
                    blocks[-1][name] = event["delta"][name]
                    continue
                text += event["delta"][name]
                blocks[-1]["json" if name == "partial_json" else name] = text
            case "content_block_stop":
                assert event["index"] == opened
                opened = None
                blocks[-1]["stopped"] = True
            case "message_delta":
                end = event
    assert opened is None
    for block in blocks:
        assert block.pop("stopped")
        if block["type"] == "tool_use":
            try:
                block["input"] = json.loads(block.pop("json", "{}"))
            except ValueError:
                block["input"] = {}  # cut by the end of the answer
    assert start["usage"]["input_tokens"] == end["usage"]["input_tokens"]
    return same(start | end["delta"] | {"content": blocks, "usage": end["usage"]})


def responses_streamed(events: list[Any]) -> Any:
    items: list[Any] = []
    texts: dict[int, str] = {}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta":
                assert event["item_id"] == items[event["output_index"]]["id"]
                texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
            case "output_item.done":
                items[event["output_index"]] = event["item"]
    response = events[-1]["response"]
    assert response["output"] == items
    for index, item in enumerate(items):
        own = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert own == texts.get(index, "")
    return same(response)


def ollama_streamed(events: list[Any]) -> Any:
    found: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": [], "logprobs": []}
    for event in events:
        part = event.get("message", event)
        found["content"] += part.get("content", part.get("response", ""))
        found["thinking"] += part.get("thinking", "")
        found["tool_calls"] += part.get("tool_calls", [])
        found["logprobs"] += event.get("logprobs", [])
    assert [event["done"] for event in events] == [False] * (len(events) - 1) + [True]
    names = ("done_reason", "prompt_eval_count", "eval_count", "model")
    return same(found | {name: events[-1][name] for name in names})


def native_streamed(events: list[Any]) -> Any:
    answers: dict[int, Any] = {}
    for event in events:
        own = answers.setdefault(event["index"], {"content": "", "completion_probabilities": []})
        content = own["content"] + event["content"]
        probabilities = own["completion_probabilities"] + event.get("completion_probabilities", [])
        own |= event | {"content": content, "completion_probabilities": probabilities}
        del own["tokens"]
    for own in answers.values():
        del own["generation_settings"]["stream"]
    return same([answers[index] for index in sorted(answers)])


def native_whole(reply: Any) -> Any:
    return native_streamed(reply if isinstance(reply, list) else [reply])


@dataclass
class Api:
    """path: of one API. streamed, whole: an answer in a form that both can have."""

    path: str
    body: dict[str, Any]
    streamed: Callable[[list[Any]], Any]
    whole: Callable[[Any], Any]
    options: st.SearchStrategy[dict[str, Any]]
    tools: Callable[[dict[str, Any]], dict[str, Any]] | None = None


def maybe(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the fields, with one of their values."""
    return st.fixed_dictionaries({}, optional={n: st.sampled_from(v) for n, v in fields.items()})


PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
USER = {"messages": [{"role": "user", "content": "hi"}]}


def function(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def logprobs_or_not(**fields: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The fields together, or none of them."""
    asked = st.fixed_dictionaries({n: st.sampled_from(values) for n, values in fields.items()})
    return st.just({}) | asked


def both(*several: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*several).map(lambda found: {k: v for each in found for k, v in each.items()})


LIMIT = [1, 7, 30]
REPORTS = {"return_progress": [True], "timings_per_token": [True]}
APIS = [
    Api(
        "/v1/chat/completions",
        USER | {"return_token_ids": True},
        chat_streamed,
        chat_whole,
        both(
            maybe(
                n=[1, 2], max_tokens=LIMIT, parallel_tool_calls=[False], include_reasoning=[False],
                tool_choice=["auto", "required", "none"], stop=STOPS, echo=[True],
                include_stop_str_in_output=[True], skip_special_tokens=[False], **REPORTS,
            ),
            logprobs_or_not(logprobs=[True], top_logprobs=[0, 2]),
        ),
        function,
    ),
    Api(
        "/v1/completions",
        {"prompt": ["abcd", "c"], "return_token_ids": True},
        completions_streamed,
        completions_whole,
        maybe(n=[1, 2], max_tokens=LIMIT, logprobs=[0, 2], echo=[True], stop=STOPS,
            include_stop_str_in_output=[True], **REPORTS),
    ),
    Api(
        "/v1/messages",
        USER | {"max_tokens": 500},
        messages_streamed,
        same,
        maybe(
            max_tokens=LIMIT, thinking=[{"type": "disabled"}], stop_sequences=STOPS,
            tool_choice=[{"type": "auto", "disable_parallel_tool_use": True}, {"type": "any"}],
        ),
        lambda schema: {"name": "f", "input_schema": schema},
    ),
    Api(
        "/v1/responses",
        {"input": "hi", "enable_response_messages": True, "store": False},
        responses_streamed,
        same,
        maybe(
            max_output_tokens=LIMIT, parallel_tool_calls=[False], top_logprobs=[0, 2],
            tool_choice=["auto", "required"], stop=STOPS, **REPORTS,
        ),
        lambda schema: {"type": "function", "name": "f", "parameters": schema},
    ),
    Api(
        "/api/chat",
        USER,
        ollama_streamed,
        lambda reply: ollama_streamed([reply]),
        both(
            maybe(
                options=[*({"num_predict": n} for n in LIMIT), *({"stop": stop} for stop in STOPS)],
                think=[False],
            ),
            logprobs_or_not(logprobs=[True], top_logprobs=[0, 2]),
        ),
        function,
    ),
    Api(
        "/api/generate",
        {"prompt": "hi"},
        ollama_streamed,
        lambda reply: ollama_streamed([reply]),
        both(maybe(raw=[True]), logprobs_or_not(logprobs=[True], top_logprobs=[0, 2])),
    ),
    Api(
        "/completion",
        {"prompt": "hi"},
        native_streamed,
        native_whole,
        maybe(n=[1, 2], n_predict=[0, *LIMIT], n_probs=[2], stop=STOPS, **REPORTS),
    ),
]  # fmt: skip

CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>',
    "llama3": '{"name": "f", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": %s}]',
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>",
    "glm45": "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>%s",
}
assert CALLS.keys() <= TOOL_PARSERS.keys()
VALUES = [
    '{"a": "b"}',
    '{"a": "é\\ud83d", "n": 7}',
    "{}",
    '{"a": "b',
    '{"n": 1e999}',
    "5",
    "[1, {}]",
]
HALF, OTHER = "\ud8c3", "\ud8a9"  # tokens of one byte each, of an é
WORDS = [
    "<think>",
    "</think>",
    "hm",
    "\n\n",
    " ",
    "ok",
    "é😀",
    "</tool_call>",
    "{",
    HALF + OTHER,
    HALF,
]


def scripts(parser: str) -> st.SearchStrategy[str]:
    calls = st.sampled_from(VALUES).map(lambda value: CALLS[parser].replace("%s", value))
    words = st.sampled_from(WORDS) | calls | st.text("ab\n<", max_size=3)
    return st.lists(words, min_size=1, max_size=8).map("".join).filter(bool)


def answers(api: Api, engine: FakeEngine, parser: str, fields: dict[str, Any]) -> tuple[Any, Any]:
    """The streamed and the whole answer."""
    engine.tokenizer.chat_template_text = "</think>"
    engine.tokenizer.chat_variables = frozenset({"messages", "tools"})
    app = build_app(engine, ServerSettings(tool_call_parser=parser))
    body = api.body | fields
    stream: dict[str, Any] = {"stream": True}
    if api.path in ("/v1/chat/completions", "/v1/completions"):
        stream["stream_options"] = {"include_usage": True}
    whole, streamed = (call(app, api.path, body | how) for how in ({"stream": False}, stream))
    assert whole.status == streamed.status == 200, (whole.body, streamed.body)
    return api.streamed(data_of(streamed)), api.whole(whole.json())


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_streams_and_whole_answers_are_the_same(api: Api, data: st.DataObject) -> None:
    parser = data.draw(st.sampled_from(sorted(CALLS)))
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple))
    texts = data.draw(st.lists(scripts(parser), min_size=1, max_size=2).map(tuple))
    engine = CutEngine(scripts=texts, sizes=sizes)
    engine.ending = data.draw(st.sampled_from(["stop", "length"]))
    fields = data.draw(api.options)
    if api.tools is not None and data.draw(st.booleans()):
        fields = fields | {"tools": [api.tools(PARAMETERS)]}
    if "tools" not in fields:
        fields = {name: value for name, value in fields.items() if name != "tool_choice"}
    streamed, whole = answers(api, engine, parser, fields)
    assert streamed == whole
