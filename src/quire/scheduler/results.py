"""What a step's result means for one request, as a delta. No torch, no blocks, nobody in line."""

from __future__ import annotations

from quire.core.messages import ErrorKind, RequestDelta
from quire.core.request import FinishReason, Request
from quire.core.step import SampleResult, ScheduledRequest

NON_FINITE = (
    "the model computed non-finite numbers (NaN or infinity) for this request; send it again, or, "
    "if it happens every time, run the model in float32; if that is so already, check its weights"
)
NOTHING_TO_DRAW = (
    "the wishes of this request left no token that could come next: logit_bias, penalties, "
    "bad_words, structured_outputs and, until min_tokens are there, stop_token_ids ban or distort "
    "all of them; ban fewer tokens, lower min_tokens, use smaller values, or a simpler form"
)
WAITED_TOO_LONG = (
    "the request waited for its turn longer than it may; send it again when fewer are running"
)


def ending(
    request: Request,
    reason: FinishReason,
    error: str | None = None,
    error_kind: ErrorKind = ErrorKind.ENGINE,
) -> RequestDelta:
    """The last delta of a request that ends without another token."""
    return RequestDelta(
        request_id=request.request_id,
        token_ids=request.untold or [],
        num_cached_tokens=request.num_cached_tokens,
        finish_reason=reason.value,
        error=error,
        error_kind=error_kind,
    )


def delivered(
    request: Request, entry: ScheduledRequest, result: SampleResult
) -> RequestDelta | None:
    """Append the sampled token, if one was due, and tell what is new; None if that can wait.

    With a finish_reason it is the request's last delta.
    """
    reason, token_id = None, result.token_id
    if entry.samples:
        assert token_id is not None, "a request was due a token and got none"
        reason = request.append(token_id)
        if request.untold is not None:
            request.untold.append(token_id)
            if reason is None and not result.whole:
                return None
    delta = RequestDelta(request_id=request.request_id, num_cached_tokens=request.num_cached_tokens)
    if result.prompt_logprobs:  # a recomputation gives again what was told before
        told = max(0, request.num_prompt_logprobs - entry.start)
        delta.prompt_logprobs = result.prompt_logprobs[told:]
        request.num_prompt_logprobs += len(delta.prompt_logprobs)
    if token_id is not None:
        _tell_token(request, token_id, reason, result, delta)
    return delta


def _tell_token(
    request: Request,
    token_id: int,
    reason: FinishReason | None,
    result: SampleResult,
    delta: RequestDelta,
) -> None:
    """Write the token that was appended, those that waited for it, and the end into a delta."""
    delta.token_ids = [token_id] if request.untold is None else request.untold
    if request.is_quiet:
        request.untold = []
    if result.logprobs is not None:
        delta.logprobs = [result.logprobs]
    if result.whole and reason is not FinishReason.STOP:
        reason, delta.whole = FinishReason.STOP, True
    if reason is None:
        return
    delta.finish_reason = reason.value
    is_stop = reason is FinishReason.STOP and not delta.whole
    if is_stop and token_id in request.sampling.stop_token_ids:
        delta.stop_token_id = token_id
