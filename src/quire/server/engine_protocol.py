"""EngineProtocol, TokenizerProtocol: what the server needs of an engine and its tokenizer.

`quire.engine.frontend.async_engine.AsyncEngine` implements them, and so does the tests' scripted
engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol, Unpack

from quire.core.messages import EngineStats, EngineView
from quire.core.pooling_params import PoolingParams
from quire.core.request_limits import RequestLimits
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.input_processor import GenerateOptions, Options, StopWhen
from quire.engine.frontend.prompt_encoding import Prompt
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.tokenizer.token_spelling import Pieces


class TokenizerProtocol(Protocol):
    """Text to token ids and back, as far as HTTP needs it."""

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Text to token ids; parse_special: also names of control tokens.

        Raises InvalidRequestError.
        """

    @property
    def vocab_size(self) -> int:
        """One above the highest token id; ids between may be unused."""

    def is_token(self, token_id: int) -> bool:
        """Whether the vocabulary has a token with this id."""

    def token_text(self, token_id: int) -> str:
        """A token as readable text; U+FFFD where it holds only part of a character."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Token ids to text."""

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        """One token's bytes, maybe parts of characters. first: whether it starts a text."""

    def shows(self, token_id: int, *, skip_special_tokens: bool) -> bool:
        """Whether the token appears in decoded text."""

    def pieces(self, skip_special_tokens: bool, unskipped: frozenset[int] = frozenset()) -> Pieces:
        """What each token adds to a text that has started; nothing if it is not shown."""

    def control_token_id(self, text: str) -> int | None:
        """The id of the control token with this name; None if there is none."""

    @property
    def chat_template_text(self) -> str:
        """The chat templates themselves; empty if there is none."""

    @property
    def chat_variables(self) -> frozenset[str]:
        """The names that the chat templates read."""

    def chat_prompt(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """A conversation through the chat template, for encode_prompt.

        Raises InvalidRequestError, also where the model has no template.
        """

    def encode_prompt(self, prompt: str, *, add_special_tokens: bool = False) -> list[int]:
        """The token ids of what chat_prompt has made."""


class EngineInfoProtocol(Protocol):
    """The fixed properties of a started engine."""

    @property
    def model_name(self) -> str:
        """The name that requests use."""

    @property
    def limits(self) -> RequestLimits:
        """The limits on a single request."""

    @property
    def pooling(self) -> PoolingParams:
        """The default pooling of embeddings."""

    @property
    def sampling_defaults(self) -> Mapping[str, float]:
        """Sampling params, by name, of requests that leave them out."""

    @property
    def num_blocks(self) -> int:
        """The number of blocks in the KV cache."""

    @property
    def block_size(self) -> int:
        """The number of tokens per KV block."""

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of the whole KV cache."""


class GenerateProtocol(Protocol):
    """Runs prompts: an engine, or an engine for one tenant."""

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        stream: bool = True,
        stop_when: StopWhen | None = None,
        prompt_field: str = "prompt",
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the new parts of the answers; closing the generator aborts the request.

        stream: without it, everything may come at the end. stop_when: makes, for each answer, a
        function that takes its text as it comes and returns whether the answer ends there. Raises
        InvalidRequestError before the first item, QueueTimeoutError, EngineError if the engine
        fails.
        """

    async def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        stop_when: StopWhen | None = None,
        prompt_field: str = "prompt",
        **options: Unpack[GenerateOptions],
    ) -> RequestOutput:
        """The complete answers; cancelling aborts the request. Raises as `generate` does."""

    async def embed(
        self,
        prompt: Prompt,
        pooling: PoolingParams,
        *,
        request_id: str | None = None,
        **options: Unpack[Options],
    ) -> RequestOutput:
        """The embedding of a prompt; cancelling aborts the request. Raises as `generate` does."""


class EngineProtocol(GenerateProtocol, Protocol):
    """The engine of one model, with many concurrent requests."""

    @property
    def info(self) -> EngineInfoProtocol:
        """The engine's fixed properties."""

    @property
    def tokenizer(self) -> TokenizerProtocol:
        """The model's tokenizer."""

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters after the latest step."""

    @property
    def metrics(self) -> RequestMetrics:
        """Metrics of the requests that this process has sent."""

    async def view(self) -> EngineView | None:
        """Blocks and latest steps, for a live view; None if the engine has not answered yet."""

    @property
    def is_alive(self) -> bool:
        """Whether the engine can answer now."""

    @property
    def is_restarting(self) -> bool:
        """Whether it cannot answer now, but is being restarted."""

    @property
    def last_work(self) -> float:
        """When it last had work, in seconds of the monotonic clock; 0: never."""

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since its last sign of life; 0 while it is being restarted."""

    async def reset_prefix_cache(self) -> None:
        """Empty the prefix cache: later requests find nothing in it."""

    async def close(self) -> None:
        """Stop the engine; unfinished streams end with EngineError."""
