"""Request deltas: what a step's result adds to one request's output. No torch."""

from __future__ import annotations

from quire.core.messages import CALLER_LIMIT_SECONDS, ErrorKind, RequestDelta
from quire.core.request import FinishReason, Request
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import SampleResult, ScheduledRequest
from quire.core.structured_outputs import TOO_MUCH_FOR_CALLER

NON_FINITE = (
    "the model computed non-finite numbers (NaN or infinity) for this request; send it again, or, "
    "if it happens every time, run the model in float32; if that is so already, check its weights"
)
_DEFAULT = SamplingParams()
# Log-probabilities in a deferred delta: its frontend reads so many in 2 ms, and others wait.
MOST_DEFERRED = 4096
QUEUE_TIMEOUT = (
    "the request waited in the queue longer than its timeout; send it again when fewer are running"
)
# params that ban tokens, or may change logits until none can be drawn; the likeliest first
_BANNING = (
    "allowed_token_ids", "structured_outputs", "bad_words", "logit_bias", "min_tokens",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


def no_token_left(
    sampling: SamplingParams, grammar_problem: str | None = None
) -> tuple[str, ErrorKind, str | None]:
    """The error of a request whose own params left no token to draw, and the first of these."""
    outputs = sampling.structured_outputs
    if outputs is not None and grammar_problem == TOO_MUCH_FOR_CALLER:
        fix = f"send it again in {CALLER_LIMIT_SECONDS:g} s, or make their grammars simpler"
        return (
            f"{outputs.name}: {grammar_problem}, and others wait; {fix}",
            ErrorKind.CALLER_LIMIT,
            outputs.name,
        )
    if outputs is not None and grammar_problem is not None:
        return (
            f"{outputs.name}: {grammar_problem}; make it simpler",
            ErrorKind.REQUEST,
            outputs.name,
        )
    names = [
        outputs.name if outputs is not None and name == "structured_outputs" else name
        for name in _BANNING
        if getattr(sampling, name) != getattr(_DEFAULT, name)
    ]
    text = (
        f"{', '.join(names) or 'the sampling params'}: left no token to draw, as all are banned or "
        "distorted; ban fewer tokens, lower min_tokens, or use smaller values or a simpler grammar"
    )
    return text, ErrorKind.REQUEST, names[0] if names else None


def make_final_delta(
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
    return _join_pending(request, delta)


def make_progress_delta(request: Request, num_computed: int) -> RequestDelta:
    """The delta that reports how many tokens of a request's prompt are computed."""
    return RequestDelta(
        request_id=request.request_id,
        num_cached_tokens=request.num_cached_tokens,
        prompt_progress=[min(num_computed, request.num_prompt_tokens)],
    )


def make_delta(
    request: Request, entry: ScheduledRequest, result: SampleResult
) -> RequestDelta | None:
    """Append the sampled token, if any, to a request; returns its delta.

    None if the request defers deltas and this one can wait. A delta with a finish_reason is the
    request's last.
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
            pending_delta.token_ids.append(token_id)  # the usual case: no new delta is made
            return None
    delta = RequestDelta(request_id=request.request_id, num_cached_tokens=request.num_cached_tokens)
    if result.prompt_logprobs:  # a recomputation repeats scores that were sent before
        num_sent = max(0, request.num_prompt_logprobs - entry.start)
        delta.prompt_logprobs = result.prompt_logprobs[num_sent:]
        request.num_prompt_logprobs += len(delta.prompt_logprobs)
        if request.reports_progress:
            num_computed = entry.start + entry.num_tokens  # a recomputation goes beyond the prompt
            delta.prompt_progress = [min(num_computed, request.num_prompt_tokens)]
    if token_id is not None:
        _set_token(request, token_id, reason, result, delta)
    delta = _join_pending(request, delta)
    if delta is pending_delta and delta.finish_reason is None and not _is_large(delta):
        return None
    if request.defers_deltas and token_id is not None:
        request.pending_delta = RequestDelta(request_id=request.request_id)
    return delta


def _is_large(delta: RequestDelta) -> bool:
    scores = delta.logprobs
    return bool(scores) and len(scores) * len(scores[-1].token_ids) > MOST_DEFERRED


def _join_pending(request: Request, delta: RequestDelta) -> RequestDelta:
    """The request's deferred delta joined with this one."""
    if request.pending_delta is None:
        return delta
    request.pending_delta.join(delta)
    return request.pending_delta


def _set_token(
    request: Request,
    token_id: int,
    reason: FinishReason | None,
    result: SampleResult,
    delta: RequestDelta,
) -> None:
    """Set the appended token, its logprobs and the end of the request in a delta."""
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
