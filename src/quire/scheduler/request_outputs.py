"""What a step's result means for one request, as a delta. No torch, no blocks, nobody in line."""

from __future__ import annotations

from quire.core.messages import ErrorKind, RequestDelta
from quire.core.request import FinishReason, Request
from quire.core.scheduler_output import SampleResult, ScheduledRequest

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
    delta = RequestDelta(
        request_id=request.request_id,
        num_cached_tokens=request.num_cached_tokens,
        finish_reason=reason.value,
        error=error,
        error_kind=error_kind,
    )
    return _behind_the_untold(request, delta)


def delivered(
    request: Request, entry: ScheduledRequest, result: SampleResult
) -> RequestDelta | None:
    """Append the sampled token, if one was due, and tell what is new; None if that can wait.

    With a finish_reason it is the request's last delta.
    """
    reason, token_id, pending_delta = None, result.token_id, request.pending_delta
    if entry.samples:
        assert token_id is not None, "a request was due a token and got none"
        reason = request.append(token_id)
        if (
            pending_delta is not None
            and reason is None
            and not (result.grammar_terminated or result.logprobs)
        ):
            pending_delta.token_ids.append(token_id)  # as mostly; no delta is made for it
            return None
    delta = RequestDelta(request_id=request.request_id, num_cached_tokens=request.num_cached_tokens)
    if result.prompt_logprobs:  # a recomputation gives again what was told before
        told = max(0, request.num_prompt_logprobs - entry.start)
        delta.prompt_logprobs = result.prompt_logprobs[told:]
        request.num_prompt_logprobs += len(delta.prompt_logprobs)
    if token_id is not None:
        _tell_token(request, token_id, reason, result, delta)
    delta = _behind_the_untold(request, delta)
    if delta is pending_delta and delta.finish_reason is None:
        return None
    if request.defers_deltas and token_id is not None:
        request.pending_delta = RequestDelta(request_id=request.request_id)
    return delta


def _behind_the_untold(request: Request, delta: RequestDelta) -> RequestDelta:
    """What has waited to be told, and this."""
    if request.pending_delta is None:
        return delta
    request.pending_delta.join(delta)
    return request.pending_delta


def _tell_token(
    request: Request,
    token_id: int,
    reason: FinishReason | None,
    result: SampleResult,
    delta: RequestDelta,
) -> None:
    """Write the token that was appended, and the end, into a delta."""
    delta.token_ids = [token_id]
    if result.logprobs is not None:
        delta.logprobs = [result.logprobs]
    if result.grammar_terminated and reason is not FinishReason.STOP:
        reason, delta.grammar_terminated = FinishReason.STOP, True
    if reason is None:
        return
    delta.finish_reason = reason.value
    is_stop = reason is FinishReason.STOP and not delta.grammar_terminated
    if is_stop and token_id in request.sampling.stop_token_ids:
        delta.stop_token_id = token_id
