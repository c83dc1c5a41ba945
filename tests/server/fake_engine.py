"""A scripted engine for HTTP tests: one character is one token, delays and faults are settings."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar

from quire.core.messages import AddRequest, EngineStats, EngineView
from quire.core.pooling_params import PoolingParams
from quire.core.request_limits import RequestLimits
from quire.core.request_output import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    PromptProgress,
    RequestOutput,
    RequestTimes,
)
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.async_engine import OnOutput
from quire.engine.frontend.input_processor import StopWhen, errors_name_field
from quire.engine.frontend.prompt_encoding import USUAL_ENCODING, Encoding, token_ids_of
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.errors import InvalidRequestError
from quire.tokenizer.token_spelling import Pieces

LIMITS = RequestLimits(
    max_model_len=1024, max_kv_tokens=4096, vocab_size=0x110000, max_num_seqs=8, hidden_size=4
)


@dataclass
class FakeInfo:
    model_name: str = "fake"
    eos_token_ids: list[int] = field(default_factory=lambda: [2])
    limits: RequestLimits = LIMITS
    dtype: str = "float32"
    device: str = "cpu"
    num_blocks: int = 256
    block_size: int = 16
    kv_cache_bytes: int = 3 << 20
    quantization: str = "none"
    kv_cache_dtype: str = "float32"
    pooling: PoolingParams = field(default_factory=PoolingParams)
    seconds: dict[str, float] = field(default_factory=dict)
    sampling_defaults: dict[str, float] = field(default_factory=dict)
    quality: dict[str, bool | float | str] | None = None
    model: str = "/models/fake.gguf"
    file_bytes: int = 7 << 20
    family: str = "llama"
    num_parameters: int = 1_235_000_000


class FakeTokenizer:
    """Token ids are code points; those of surrogates (no text has them) stand for lone bytes."""

    has_chat_template = True
    chat_template_text = ""
    names: ClassVar[dict[str, str]] = {"eos_token": "</s>"}
    chat_variables: frozenset[str] = frozenset({"messages", "mood"})
    control_tokens: ClassVar[dict[str, int]] = {}  # name → id
    continued = False  # whether the last message was to be continued
    seen: tuple[Any, Any] = (None, None)  # messages and tools of the latest conversation

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,  # noqa: ARG002
        parse_special: bool = False,  # noqa: ARG002
    ) -> list[int]:
        return [ord(char) for char in text]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text = b"".join(map(self.token_bytes, ids)).decode(errors="replace")
        return text + ("" if skip_special_tokens else "</s>")

    vocab_size = 0x110000

    def id_to_token(self, token_id: int) -> str | None:
        return chr(token_id) if token_id < self.vocab_size else None

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:  # noqa: ARG002
        if 0xD800 <= token_id < 0xD900:
            return bytes([token_id - 0xD800])
        return chr(token_id).encode()

    def shows(self, token_id: int, *, skip_special_tokens: bool) -> bool:
        return not (skip_special_tokens and token_id == 0x10FFFF)

    def pieces(self, skip_special_tokens: bool, shown: frozenset[int] = frozenset()) -> Pieces:
        def piece_of(token_id: int) -> bytes:
            skips = skip_special_tokens and token_id not in shown
            return (
                self.token_bytes(token_id)
                if self.shows(token_id, skip_special_tokens=skips)
                else b""
            )

        return Pieces(piece_of)

    def control_token_id(self, text: str) -> int | None:
        return self.control_tokens.get(text)

    def chat_prompt(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        if not self.has_chat_template:
            raise InvalidRequestError("messages: no template; use completions", param="messages")
        self.seen = (messages, tools)
        parts = [
            f"<{m['role']}{m.get('name', '')}>{text_of(m.get('content', ''))}" for m in messages
        ]
        parts += [f"[{name}={value}]" for name, value in template_kwargs.items()]
        self.continued = continue_final_message
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        return "".join(parts) + ("<assistant>" if add_generation_prompt else "")

    def encode_prompt(self, prompt: str, *, add_special_tokens: bool = False) -> list[int]:
        return self.encode("^" * add_special_tokens + prompt)


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "+".join(part["text"] for part in content)


@dataclass
class FakeEngine:
    """Answers `script` to everything. delay: seconds before each token; fail_at: tokens until
    `failure` is raised; aborted: labels of streams that were closed before their end;
    prompt_steps: items that bring prompt log-probabilities; hold: the text comes with the last;
    wait_at: tokens after which it waits for `go`; ending: the finish_reason of answers.
    """

    script: str = "Hello!"
    delay: float = 0.0
    fail_at: int | None = None
    failure: Exception = field(default_factory=lambda: RuntimeError("secret words"))
    is_alive: bool = True
    is_restarting: bool = False
    seconds_since_heartbeat: float = 0.0
    last_work: float = 0.0
    info: FakeInfo = field(default_factory=FakeInfo)
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    stats: EngineStats = field(default_factory=EngineStats)
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    latest_view: EngineView | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str | None] = field(default_factory=list)
    num_sent: int = 0
    prompt_steps: int = 1
    hold: bool = False
    wait_at: int | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    num_resets: int = 0
    num_views: int = 0
    eos_token_ids: Sequence[int] = (0, 0xFFFF)
    ending: str = "stop"

    @property
    def last_prompt(self) -> str:
        """The text of the token ids that it was asked to continue last."""
        return "".join(map(chr, self.calls[-1]["ids"]))

    async def reset_prefix_cache(self) -> None:
        self.num_resets += 1

    async def close(self) -> None:
        self.closed = True

    async def view(self) -> EngineView | None:
        self.num_views += 1
        return self.latest_view

    async def generate(
        self,
        prompt: str | list[int],
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        encoding: Encoding = USUAL_ENCODING,
        priority: int = 0,
        cache_salt: str = "",
        queue_timeout: float | None = None,
        cut_to_context: bool = False,
        caller: str = "",  # noqa: ARG002
        stream: bool = True,  # noqa: ARG002
        stop_when: StopWhen | None = None,
        prompt_field: str = "prompt",
        report_progress: bool = False,
        in_thread: bool = False,
        on_abort: OnOutput | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[RequestOutput, None]:
        limits, reserved = self.info.limits, sampling.max_tokens or 1
        ids = token_ids_of(prompt, self.tokenizer, limits, encoding, reserved=reserved)
        asked = sampling.clone()
        if cut_to_context and asked.max_tokens is not None:
            asked.max_tokens = min(asked.max_tokens, max(1, limits.max_model_len - len(ids)))
        message = AddRequest(request_id="r", prompt_token_ids=ids, sampling=asked)
        with errors_name_field(prompt_field):
            self.info.limits.check(message)
        self.calls.append(
            {
                "ids": ids,
                "sampling": sampling,
                "priority": priority,
                "cache_salt": cache_salt,
                "queue_timeout": queue_timeout,
                "cut_to_context": cut_to_context,
                "in_thread": in_thread,
            }
        )
        text = self.script * 100 if sampling.ignore_eos else self.script
        text = text[: sampling.max_tokens]
        finished = False
        is_over = stop_when() if stop_when else None
        reports = [PromptProgress(1, done, done / 8) for done in range(1, len(ids) + 1)]
        if report_progress and reports[:-1]:  # those before the last together
            early = self._item(prompt, ids, sampling, text[0], False)
            early.outputs, early.progress = [CompletionOutput(0)], tuple(reports[:-1])
            yield early
        try:
            for index, char in enumerate(text):
                await asyncio.sleep(self.delay)
                if index == self.wait_at:
                    await self.go.wait()
                if index == self.fail_at:
                    raise self.failure
                shown_text = self.tokenizer.decode([ord(char)])
                finished = index == len(text) - 1 or (is_over is not None and is_over(shown_text))
                self.num_sent += 1
                item = self._item(prompt, ids, sampling, char, finished)
                if item.prompt_logprobs is not None and index + 1 < self.prompt_steps:
                    num_scored = len(ids) * (index + 1) // self.prompt_steps
                    item.prompt_logprobs = item.prompt_logprobs[:num_scored]
                if report_progress and index == 0:
                    item.progress = tuple(reports[-1:])
                if self.hold:
                    for output in item.outputs:
                        output.text = self.tokenizer.decode(self.tokenizer.encode(text)) * finished
                yield item
                if finished:
                    return
        finally:
            if not finished:
                self.aborted.append(request_id)

    async def complete(
        self, prompt: str | list[int], sampling: SamplingParams, **options: Any
    ) -> RequestOutput:
        """What `generate` gives, joined."""
        async with aclosing(self.generate(prompt, sampling, stream=False, **options)) as outputs:
            whole = await anext(outputs)
            async for item in outputs:
                whole.append(item)
        return whole

    async def embed(
        self,
        prompt: str | list[int],
        pooling: PoolingParams,
        *,
        request_id: str | None = None,
        encoding: Encoding = USUAL_ENCODING,
        priority: int = 0,
        cache_salt: str = "",
        queue_timeout: float | None = None,
    ) -> RequestOutput:
        """A vector with the first token id and the number of tokens in it."""
        ids = token_ids_of(prompt, self.tokenizer, self.info.limits, encoding)
        self.info.limits.check_embedding(ids, pooling)
        self.calls.append(
            {
                "ids": ids,
                "pooling": pooling,
                "priority": priority,
                "cache_salt": cache_salt,
                "queue_timeout": queue_timeout,
            }
        )
        finished = False
        try:
            await asyncio.sleep(self.delay)
            if self.fail_at is not None and ids[0] == self.fail_at:
                raise self.failure
            finished = True
        finally:
            if not finished:
                self.aborted.append(request_id)
        numbers = [float(ids[0]), float(len(ids)), 0.1, -1.0][: pooling.dimensions]
        return RequestOutput(
            request_id="fake",
            prompt=None,
            prompt_token_ids=ids,
            outputs=[CompletionOutput(0, finish_reason="stop")],
            times=RequestTimes(0.0),
            num_cached_tokens=len(ids) // 2,
            embedding=struct.pack(f"<{len(numbers)}f", *numbers),
            finished=True,
        )

    def _item(
        self,
        prompt: str | list[int],
        ids: list[int],
        sampling: SamplingParams,
        char: str,
        finished: bool,
    ) -> RequestOutput:
        reason = "length" if sampling.ignore_eos else self.ending
        outputs = [
            CompletionOutput(
                index,
                self.tokenizer.decode([ord(char)]),
                self.tokenizer.encode(char),
                logprobs=None if sampling.logprobs is None else [position(ord(char))],
                finish_reason=reason if finished else None,
            )
            for index in range(sampling.n)
        ]
        text = prompt if isinstance(prompt, str) else None
        asked = sampling.prompt_logprobs is not None
        return RequestOutput(
            request_id="fake",
            prompt=text,
            prompt_token_ids=ids,
            outputs=outputs,
            times=RequestTimes(0.0),
            prompt_logprobs=[None, *map(position, ids[1:])] if asked else None,
            num_cached_tokens=len(ids) // 2,
            finished=finished,
        )


def position(token_id: int) -> PositionLogprobs:
    """The token itself at rank 2, and better and worse ones."""
    return {
        token_id: Logprob(-1.5, 2, shown(token_id)),
        token_id + 1: Logprob(-0.5, 1, shown(token_id + 1)),
        token_id + 2: Logprob(float("-inf"), 3, shown(token_id + 2)),
    }


shown = FakeTokenizer().token_text
