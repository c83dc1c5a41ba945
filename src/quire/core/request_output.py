"""The outputs that callers get. No torch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from quire.compat.missing_names import refuse
from quire.errors import QuireError

if TYPE_CHECKING:
    from quire.array_types import Singles
else:  # a server needs no NumPy, and help() asks for the name
    Singles = Any


class _OfDataclass:
    """An attribute of a struct by which `dataclasses.asdict`, `fields` and `replace` take it.

    Made when it is asked for: a start imports no `dataclasses`.
    """

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, _instance: object, cls: type[msgspec.Struct]) -> Any:
        return getattr(_dataclass_like(cls), self._name)


@cache
def _dataclass_like(cls: type[msgspec.Struct]) -> type:
    """A data class with the same fields."""
    from dataclasses import make_dataclass

    return make_dataclass(cls.__name__, cls.__struct_fields__)


if TYPE_CHECKING:  # type checkers refuse frozen subclasses of a class that is not frozen
    _Output = msgspec.Struct
else:

    class _Output(msgspec.Struct):
        """A base, for scripts that expect data classes: `asdict`, `fields`, `replace`."""

        __dataclass_fields__ = _OfDataclass()
        __dataclass_params__ = _OfDataclass()


class Logprob(_Output, gc=False):
    """The log-probability of one token at one position; rank 1 is the most probable.

    rank: None of a token that is reported because logprob_token_ids names it.
    """

    logprob: float
    rank: int | None
    decoded_token: str


PositionLogprobs = dict[int, Logprob]  # token id → Logprob, the produced token first


class CompletionOutput(_Output, gc=False):
    """One answer; in a stream, the part that is new.

    finish_reason: "stop", "length" or "abort"; None while it is unfinished.
    stop_reason: the stop string or stop token id that ended it, None for the model's end token.
    """

    index: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    if not TYPE_CHECKING:
        __getattr__ = refuse

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the tokens' log-probabilities, if logprobs were asked for."""
        if self.logprobs is None:
            return None
        pairs = zip(self.logprobs, self.token_ids, strict=True)
        return sum(position[token_id].logprob for position, token_id in pairs)

    def finished(self) -> bool:
        """Whether the answer has ended."""
        return self.finish_reason is not None

    def copied(self) -> CompletionOutput:
        """A copy that parts may be appended to."""
        logprobs = None if self.logprobs is None else [*self.logprobs]
        return msgspec.structs.replace(self, token_ids=[*self.token_ids], logprobs=logprobs)

    def append(self, delta: CompletionOutput) -> None:
        """Append the next part of a streamed answer, which stays as it is."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        if self.logprobs is not None and delta.logprobs is not None:
            self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


class RequestTimes(_Output):
    """Times of a request in monotonic seconds; None until it happened."""

    arrival: float
    first_token: float | None = None
    last_token: float | None = None

    if not TYPE_CHECKING:
        __getattr__ = refuse

    @property
    def ttft(self) -> float | None:
        """Time to first token, in seconds."""
        return None if self.first_token is None else self.first_token - self.arrival

    # the same under the names that scripts for vLLM read

    @property
    def arrival_time(self) -> float:
        """When the request arrived."""
        return self.arrival

    @property
    def first_token_time(self) -> float | None:
        """When its first token came."""
        return self.first_token

    @property
    def last_token_time(self) -> float | None:
        """When its latest token came."""
        return self.last_token

    @property
    def finished_time(self) -> float | None:
        """When its last token came; of a finished request, its end."""
        return self.last_token

    @property
    def first_token_latency(self) -> float | None:
        """Time to first token, in seconds."""
        return self.ttft


class PromptProgress(_Output, frozen=True):
    """Progress of a prompt's computation.

    num_cached: tokens that the prefix cache had; num_computed: those included. seconds: since the
    request's arrival; 0 in the first report.
    """

    num_cached: int
    num_computed: int
    seconds: float


class RequestOutput(_Output):
    """All answers to one prompt; in a stream, their new parts.

    prompt_logprobs: as far as computed; complete with the first token. times: shared by all parts
    of a stream. embedding: little-endian float32 numbers of an embedding request, whose one answer
    has no tokens. error: why the request failed, for callers that do not want it raised. progress:
    new reports on the prompt, oldest first, if the request asks for them.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    times: RequestTimes
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    embedding: bytes | None = None
    finished: bool = False  # whether every answer has ended
    error: QuireError | None = None
    progress: tuple[PromptProgress, ...] = ()

    if not TYPE_CHECKING:
        __getattr__ = refuse

    @property
    def metrics(self) -> RequestTimes:
        """The times of the request, by vLLM's name."""
        return self.times

    def copied(self) -> RequestOutput:
        """A copy that parts may be appended to, while this one stays as it is."""
        return msgspec.structs.replace(self, outputs=[output.copied() for output in self.outputs])

    def append(self, delta: RequestOutput) -> None:
        """Append the next part of a streamed request's outputs, which stays as it is."""
        by_index = {output.index: output for output in self.outputs}
        for output in delta.outputs:
            if output.index in by_index:
                by_index[output.index].append(output)
            else:
                self.outputs.append(output.copied())
        self.outputs.sort(key=lambda output: output.index)
        self.times = delta.times
        self.prompt_logprobs = delta.prompt_logprobs
        self.num_cached_tokens = delta.num_cached_tokens
        self.embedding = delta.embedding
        self.finished = delta.finished
        self.progress += delta.progress


class EmbeddingOutput(_Output):
    """The vector of one prompt. embedding: float32 [D], D the model's hidden size or fewer."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    embedding: Singles
    num_cached_tokens: int = 0
    finished: bool = True

    @property
    def outputs(self) -> Embedding:
        """The vector as other engines return it."""
        return Embedding(self.embedding)


class Embedding(_Output, frozen=True):
    """A vector. data: float32 [D]."""

    data: Singles

    @property
    def embedding(self) -> list[float]:
        """The vector as a list of numbers."""
        numbers: list[float] = self.data.tolist()
        return numbers

    @property
    def hidden_size(self) -> int:
        """The number of dimensions of the vector."""
        return len(self.data)


class Score(_Output, frozen=True):
    """Similarity of two texts: the cosine of the angle between their vectors, -1 to 1."""

    score: float

    @classmethod
    def of(cls, cosine: float) -> Score:
        """The score of two vectors, whose cosine may be outside -1 to 1 by rounding."""
        return cls(max(-1.0, min(1.0, cosine)))


class ScoreOutput(_Output):
    """The score of one pair. prompt_token_ids: of both texts, one after the other."""

    request_id: str
    outputs: Score
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
