"""The bounds on the log-probabilities that one request, and all requests together, may ask for.

They cost memory and time in an API process, which has all of a request's at once unless they are
streamed: about 200 bytes for each, and half a microsecond of its event loop. Many for each token
are counted before the request runs. Of a few, one answer's are bounded by its context and those of
answers that run by the KV cache; where further answers are waited for, they are counted as they
come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from quire.core.request_limits import RequestLimits
from quire.core.request_output import PositionLogprobs, RequestOutput
from quire.core.sampling_checks import MAX_LOGPROBS
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.prompt_encoding import Prompt
from quire.errors import invalid_value
from quire.server.api.common.logprob_formats import ALL

MAX_REPORTED = 1 << 20  # by one request that asks for more than MAX_LOGPROBS for each token
MAX_HELD = 1 << 22  # by one caller in a process, of answers that wait for others of their request
CALLERS = 2  # so many may have the most at a time
REPORTED_BYTES = 200  # of each, until it is sent
_MANY = 4096  # above this they are written in a thread; on the event loop these take 2 ms


def is_wide(num_logprobs: int | None) -> bool:
    """Whether this number of log-probabilities for each token is bounded in all."""
    return num_logprobs is not None and (num_logprobs == ALL or num_logprobs > MAX_LOGPROBS)


def check_num_logprobs(
    sampling: SamplingParams,
    prompts: Sequence[Prompt],
    limits: RequestLimits,
    field: str = "logprobs",
) -> None:
    """Refuse too many log-probabilities. Raises InvalidRequestError.

    prompts: token ids where prompt_logprobs are wide. field: the request's own name for the number
    of log-probabilities of each token of the answer.
    """
    if sampling.logprobs is not None:
        limits.check_logprobs(field, sampling.logprobs)
    if sampling.prompt_logprobs is not None:
        limits.check_logprobs("prompt_logprobs", sampling.prompt_logprobs)
    for name, each, positions in _wide(sampling, prompts, limits):
        if each * positions > MAX_REPORTED:
            fix = "shorten the prompt" if name == "prompt_logprobs" else "set a lower max_tokens"
            problem = f"{each} for each of {positions} tokens are above {MAX_REPORTED} in all"
            name = field if name == "logprobs" else name
            raise invalid_value(name, f"{problem}; ask for fewer, or {fix}")


def num_wide(sampling: SamplingParams, prompts: Sequence[Prompt], limits: RequestLimits) -> int:
    """The most log-probabilities that a request reports, if they are many for each token."""
    return sum(each * positions for _, each, positions in _wide(sampling, prompts, limits))


def has_many_logprobs(*outputs: RequestOutput) -> bool:
    """Whether to write log-probabilities takes long."""
    of_prompts = sum(_num_logprobs(output.prompt_logprobs) for output in outputs)
    return of_prompts + sum(map(_num_of_answers, outputs)) > _MANY


class HeldLogprobs:
    """Counts the log-probabilities of a request's answers that wait for its others.

    hold: called with their bytes so far; raises where all requests hold too many.
    """

    def __init__(self, sampling: SamplingParams, hold: Callable[[int], None]) -> None:
        self._field = "prompt_logprobs" if sampling.logprobs is None else "logprobs"
        self._num, self._hold = 0, hold

    def add(self, output: RequestOutput) -> None:
        """Count new output. Raises InvalidRequestError or QueueFullError."""
        self._num += _num_of_answers(output)
        if output.finished:
            self._num += _num_logprobs(output.prompt_logprobs)
        if self._num > MAX_HELD:
            problem = f"the answers have more than {MAX_HELD} log-probabilities in all"
            fix = "ask for fewer, stream, or send fewer prompts or a smaller n at once"
            raise invalid_value(self._field, f"{problem}; {fix}")
        self._hold(self._num * REPORTED_BYTES)


def _num_of_answers(output: RequestOutput) -> int:
    return sum(_num_logprobs(part.logprobs) for part in output.outputs)


def _num_logprobs(positions: Sequence[PositionLogprobs | None] | None) -> int:
    return sum(map(len, filter(None, positions or ())))


def _wide(
    sampling: SamplingParams, prompts: Sequence[Prompt], limits: RequestLimits
) -> Iterator[tuple[str, int, int]]:
    """The fields with many log-probabilities, how many for each token, and how many tokens."""
    named = sampling.logprob_token_ids
    width = sampling.logprobs if named is None else len(named)
    if is_wide(width):
        longest = min(sampling.max_tokens or limits.max_model_len, limits.max_model_len)
        name = "logprobs" if named is None else "logprob_token_ids"
        yield name, _each(width, limits), longest * len(prompts) * sampling.n
    if is_wide(width := sampling.prompt_logprobs):
        yield "prompt_logprobs", _each(width, limits), sum(map(len, prompts))


def _each(width: int | None, limits: RequestLimits) -> int:
    return limits.vocab_size if width is None or width == ALL else width
