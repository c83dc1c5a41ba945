"""The bounds on the log-probabilities that one request may ask for.

Beyond a few for each token they cost much memory and time in an API process, which has all of a
request's at once: about 250 bytes for each, and 2 microseconds of its event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import MAX_LOGPROBS, SamplingParams
from quire.errors import invalid_value
from quire.server.api.common.logprob_formats import ALL

MAX_REPORTED = 1 << 20  # by one request that asks for more than MAX_LOGPROBS for each token


def is_wide(num_logprobs: int | None) -> bool:
    """Whether this number of log-probabilities for each token is bounded in all."""
    return num_logprobs is not None and (num_logprobs == ALL or num_logprobs > MAX_LOGPROBS)


def check_num_logprobs(
    sampling: SamplingParams,
    prompts: Sequence[str | list[int]],
    limits: RequestLimits,
    field: str = "logprobs",
) -> None:
    """Refuse too many log-probabilities. Raises InvalidRequestError.

    prompts: token ids where prompt_logprobs are wide. field: the request's own name for the number
    of log-probabilities of each token of the answer.
    """
    if sampling.logprobs is not None:
        limits.check_logprobs(field, sampling.logprobs)
        named = sampling.logprob_token_ids
        width = sampling.logprobs if named is None else len(named)
        longest = min(sampling.max_tokens or limits.max_model_len, limits.max_model_len)
        name = field if named is None else "logprob_token_ids"
        _check_total(
            name, width, longest * len(prompts) * sampling.n, limits, "set a lower max_tokens"
        )
    if sampling.prompt_logprobs is not None:
        limits.check_logprobs("prompt_logprobs", sampling.prompt_logprobs)
        if is_wide(sampling.prompt_logprobs):
            positions = sum(map(len, prompts))
            fix = "shorten the prompt"
            _check_total("prompt_logprobs", sampling.prompt_logprobs, positions, limits, fix)


def _check_total(field: str, width: int, positions: int, limits: RequestLimits, fix: str) -> None:
    if not is_wide(width):
        return
    each = limits.vocab_size if width == ALL else width
    if each * positions > MAX_REPORTED:
        problem = f"{each} for each of {positions} tokens are above {MAX_REPORTED} in all"
        raise invalid_value(field, f"{problem}; ask for fewer, or {fix}")
