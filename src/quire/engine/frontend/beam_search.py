"""Beam search on top of a batch of requests: each step draws one token for every beam."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

import msgspec

from quire.core.messages import AddRequest
from quire.core.request_limits import RequestLimits
from quire.core.request_output import PositionLogprobs, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.errors import invalid_value
from quire.plain_values import plain_number

Generate = Callable[[Sequence[list[int]], SamplingParams], list[RequestOutput]]


class BeamSearchParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of beam search, in vLLM's terms. Raises InvalidRequestError.

    beam_width: beams that go on, and answers that are returned. max_tokens: of each answer.
    temperature: without effect, as log-probabilities are those before it. length_penalty: an
    answer's score is its log-probability divided by its length, prompt included, to this power
    (-50 to 50).
    ignore_eos: end tokens end nothing. include_stop_str_in_output: answers keep their end token.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check all values, which may have been set since. Raises InvalidRequestError."""
        for name in self.__struct_fields__:
            value = plain_number(getattr(self, name))
            if name in _RANGES:
                low, high = _RANGES[name]
                is_valid = type(value) in (int, float) and low <= value <= high  # no NaN
                kind = f"a number from {low} to {high}"
            elif name in ("beam_width", "max_tokens"):
                is_valid, kind = type(value) is int and value >= 1, "an integer >= 1"
            else:
                is_valid, kind = type(value) is bool, "true or false"
            if not is_valid:
                raise invalid_value(name, f"must be {kind}, not {reprlib.repr(value)}")
            msgspec.structs.force_setattr(self, name, value)


# a length of 2^20 to the power of 50 is still a float
_RANGES = {"temperature": (0, 100), "length_penalty": (-50, 50)}


class BeamSearchSequence(msgspec.Struct, frozen=True):
    """One answer. tokens: the prompt's and its own. text: of all tokens.

    finish_reason: "stop"; None where max_tokens ended it.
    """

    tokens: list[int]
    logprobs: list[PositionLogprobs]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None


class BeamSearchOutput(msgspec.Struct, frozen=True):
    """The answers to one prompt, the best one first."""

    sequences: list[BeamSearchSequence]

    def decoded(self, decode: Callable[[list[int]], str]) -> BeamSearchOutput:
        """These answers with texts. decode: from token ids to text."""
        return BeamSearchOutput(
            [msgspec.structs.replace(one, text=decode(one.tokens)) for one in self.sequences]
        )


def search(
    prompts: Sequence[list[int]],
    params: BeamSearchParams,
    eos_token_ids: Collection[int],
    limits: RequestLimits,
    generate: Generate,
) -> list[BeamSearchOutput]:
    """The best answers to each prompt. generate: answers prompts of token ids with params.

    Raises InvalidRequestError for more beams than the engine's log-probabilities allow, and
    ContextLengthError, before the search, for a prompt whose answer of max_tokens does not fit.
    """
    if not isinstance(params, BeamSearchParams):
        kind = "BeamSearchParams(beam_width=..., max_tokens=...)"
        raise invalid_value("params", f"must be {kind}, not {type(params).__name__}")
    params.check()
    if 0 <= limits.max_logprobs < 2 * params.beam_width:
        problem = f"{params.beam_width} beams need {2 * params.beam_width} log-probabilities"
        raise invalid_value("beam_width", f"{problem}; start with max_logprobs of that many")
    whole = SamplingParams(max_tokens=params.max_tokens)
    for prompt in prompts:
        limits.check(AddRequest(request_id="", prompt_token_ids=prompt, sampling=whole))
    searches = [_Search(prompt, params, frozenset(eos_token_ids)) for prompt in prompts]
    step = SamplingParams(
        max_tokens=1,
        temperature=0.0,
        logprobs=2 * params.beam_width,
        ignore_eos=True,  # an end token is a candidate as any other
        detokenize=False,
    )
    for _ in range(params.max_tokens):
        asked = [beam.tokens for one in searches for beam in one.beams]
        if not asked:
            break
        answers = iter(generate(asked, step))
        for one in searches:
            one.extend(list(islice(answers, len(one.beams))))
    return [one.output() for one in searches]


class _Search:
    """The search for one prompt."""

    def __init__(
        self, prompt: list[int], params: BeamSearchParams, eos_token_ids: frozenset[int]
    ) -> None:
        self.beams = [BeamSearchSequence(list(prompt), [])]
        self._params = params
        self._ends = frozenset[int]() if params.ignore_eos else eos_token_ids
        self._finished: list[BeamSearchSequence] = []
        self._num_prompt = len(prompt)

    def extend(self, answers: Sequence[RequestOutput]) -> None:
        """Go one token on. answers: one for each beam."""
        found = [
            candidate
            for beam, answer in zip(self.beams, answers, strict=True)
            for candidate in self._candidates(beam, answer)
        ]
        ended = [beam for beam in found if beam.finish_reason]
        self._finished = self._best([*self._finished, *ended])
        self.beams = self._best([beam for beam in found if not beam.finish_reason])

    def _candidates(
        self, beam: BeamSearchSequence, answer: RequestOutput
    ) -> Iterator[BeamSearchSequence]:
        (position,) = answer.outputs[0].logprobs or [{}]
        for token_id, logprob in position.items():
            ends = token_id in self._ends
            shown = not ends or self._params.include_stop_str_in_output
            yield BeamSearchSequence(
                tokens=beam.tokens + [token_id] * shown,
                logprobs=[*beam.logprobs, position],
                cum_logprob=beam.cum_logprob + logprob.logprob,
                finish_reason="stop" if ends else None,
            )

    def output(self) -> BeamSearchOutput:
        """The answers found so far, the best one first; they have no text yet."""
        return BeamSearchOutput(self._best([*self._finished, *self.beams]))

    def _best(self, beams: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        """The beams with the highest scores, as many as go on; of equals the first ones."""
        return sorted(beams, key=self._score, reverse=True)[: self._params.beam_width]

    def _score(self, beam: BeamSearchSequence) -> float:
        length = self._num_prompt + len(beam.logprobs) - bool(beam.finish_reason)  # no end token
        return beam.cum_logprob / float(length**self._params.length_penalty)
