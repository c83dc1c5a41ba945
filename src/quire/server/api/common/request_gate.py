"""RequestGate: what a request passes before it may use a model.

Owns only the order of the rules: admission control (admission_control.py), the deadline
(deadline.py) and the prefix-cache salt of its API key (api_keys.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from quire.background import NUM_THREADS
from quire.engine.frontend.prompt_encoding import Prompt
from quire.errors import OverloadedError, QueueTimeoutError, invalid_value
from quire.fair_queue import FairExecutor
from quire.server.admission.admission_control import Admission, Capacity, Ticket
from quire.server.api.common.generation_job import AdmittedJob, GenerationRecord, Job
from quire.server.api.common.logprob_bounds import (
    CALLERS,
    MAX_HELD,
    MAX_REPORTED,
    REPORTED_BYTES,
    num_wide,
)
from quire.server.api.common.usage import UsageCounter
from quire.server.http.api_keys import cache_salt_of
from quire.server.http.body_memory import BodyMemory, BodySpace
from quire.server.http.deadline import Deadline
from quire.server.http.request_reader import first_headers, has_body
from quire.server.http.request_record import RequestRecord
from quire.server.model_loading import ModelLoader
from quire.server.settings import ServerSettings

TIMEOUT_HEADER = "x-request-timeout"
_TIMEOUT_HEADER = TIMEOUT_HEADER.encode()
MAX_RECEIVING = 2048  # bodies that one process receives at once; a slow one delays no other
MAX_LIGHT_REQUESTS = 64  # at once in one process; each may hold a whole body and its result
CHARS_PER_TOKEN = 4  # of text that is not encoded yet; an estimate is enough for admission


class RequestContext:
    """One admitted request, until its `with` block ends.

    scope: of its HTTP request. record: for metrics and logs. hold_bytes: called with the bytes of
    the body received so far. deadline: when the request must have ended. tenant: of its API key.
    caller: see `caller_of`. usage: its token counts, once it has started. ticket: counts it in and
    out.
    """

    def __init__(self, scope: Scope, gate: RequestGate, ticket: Ticket) -> None:
        self.scope, self.ticket, self._gate = scope, ticket, gate
        self.record: RequestRecord = scope["state"]["record"]
        self.tenant: str = scope["state"]["tenant"]
        self.caller = caller_of(scope)
        self.deadline = Deadline(gate.settings.request_timeout)
        self.usage: UsageCounter
        self._body_space = BodySpace(gate.bodies)
        self._reply_space = BodySpace(gate.replies, self.caller)
        self._held_space = BodySpace(gate.held, self.caller)
        self.hold_bytes = self._body_space.hold

    def start(
        self, job: Job, *, max_answers: int | None = None, max_tokens: int | None = None
    ) -> AdmittedJob:
        """Admit the parsed request; returns its job with the engine that runs it.

        max_answers, max_tokens: how many of its answers and prompt tokens the engine has at a
        time; None means all. Raises QueueFullError.
        """
        self.record.generation = generation = GenerationRecord(job)
        self.usage = generation.usage
        self.record.no_effect = job.no_effect
        settings = self._gate.settings
        model = self._gate.models.find(job.model)
        num_tokens = sum([_num_tokens(prompt) for prompt in job.prompts])
        num_answers = len(job.prompts) * job.sampling.n
        if max_answers is not None:
            num_answers = min(num_answers, max_answers)
        if max_tokens is not None:
            num_tokens = min(num_tokens, max_tokens)
        if num_reported := num_wide(job.sampling, job.prompts, model.engine.info.limits):
            self._reply_space.hold(num_reported * REPORTED_BYTES)
        self.ticket.charge(num_answers, num_tokens, at=model.admission)
        self.deadline.shorten(job.timeout, "timeout")
        salt = cache_salt_of("" if settings.share_prefix_cache else self.tenant, job.cache_salt)
        timeout, hold = settings.queue_timeout, self._held_space.hold
        return AdmittedJob(job, model.engine, salt, timeout, self.caller, hold)

    async def wait_for_model(self, name: str, max_seconds: float) -> None:
        """Wait until a model is loaded, at most `max_seconds` and within the deadline.

        The model stays loaded until the request ends. Raises QueueFullError or
        ModelNotLoadedError.
        """
        entry = self._gate.models.entry(name)
        self.ticket.move(entry.admission)
        entry.num_waiting += 1
        try:
            await self._gate.loader.load(name, self.deadline.within(max_seconds))
        finally:
            entry.num_waiting -= 1

    def __enter__(self) -> RequestContext:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, QueueTimeoutError):  # the engine does not know the completion rate
            error.retry_after = self.ticket.admission.retry_after()
        self._body_space.__exit__()
        self._reply_space.__exit__()
        self._held_space.__exit__()
        self.ticket.__exit__()


class RequestGate:
    """Admits requests or refuses them. One per API process.

    bodies, replies, held: count the bytes that requests hold. prepare_threads: for large bodies.
    light_threads: for those of requests without generation, which so delay no other's preparation.
    """

    def __init__(self, loader: ModelLoader, settings: ServerSettings) -> None:
        self.loader, self.models, self.settings = loader, loader.models, settings
        self._receiving = _bounded(MAX_RECEIVING, "requests are being received")
        self.light_requests = _bounded(
            MAX_LIGHT_REQUESTS, "requests without generation are being answered"
        )
        self.prepare_threads = FairExecutor(NUM_THREADS, "quire-prepare")
        self.light_threads = FairExecutor(1, "quire-light")
        retry_after = self.models.entrance.retry_after
        self.bodies = BodyMemory(settings.held_body_bytes, retry_after)
        # so large that one caller's largest answer leaves room for another's
        most = max(settings.held_body_bytes, CALLERS * MAX_REPORTED * REPORTED_BYTES)
        self.replies = BodyMemory(most, retry_after, "log-probabilities", most // CALLERS)
        most, what = MAX_HELD * REPORTED_BYTES, "log-probabilities of answers"
        self.held = BodyMemory(CALLERS * most, retry_after, what, most)

    def admit(self, scope: Scope) -> RequestContext:
        """Admit a request whose body is still to come.

        A full queue refuses it here, before its body is read. It takes its position in the queue,
        by its ticket, only once the body is complete, as it mostly is: a client that sends slowly
        must not hold one while the engine is idle.

        Raises OverloadedError, or InvalidRequestError for an invalid X-Request-Timeout.
        """
        if not self.models.may_answer:
            raise OverloadedError("the engine is not running; send it again", retry_after=5.0)
        timeout, entrance = _timeout_of(scope), self.models.entrance
        if has_body(scope):
            ticket = Ticket(entrance)
        else:
            entrance.check()
            ticket = Ticket(self._receiving)
        context = RequestContext(scope, self, ticket)
        context.deadline.shorten(timeout, TIMEOUT_HEADER)
        return context

    @contextmanager
    def admit_light(self, scope: Scope) -> Iterator[tuple[Deadline, Ticket, BodySpace]]:
        """Admit a request that needs no engine, such as one for token counts.

        It counts among the `light_requests` once its body is complete.

        Raises QueueFullError, or InvalidRequestError for an invalid X-Request-Timeout.
        """
        deadline = Deadline(self.settings.request_timeout)
        deadline.shorten(_timeout_of(scope), TIMEOUT_HEADER)
        self.light_requests.check()
        with Ticket(self._receiving) as ticket, BodySpace(self.bodies) as space:
            yield deadline, ticket, space


def caller_of(scope: Scope) -> str:
    """Whom work for a request is counted for: its API key's tenant, or its client's address."""
    tenant: str = scope["state"]["tenant"]
    return tenant or (scope.get("client") or ("",))[0]


def _bounded(most: int, waiters: str) -> Admission:
    return Admission(Capacity(max_running=0, max_waiting=most), waiters=waiters)


def _num_tokens(prompt: Prompt) -> int:
    return len(prompt) // CHARS_PER_TOKEN if isinstance(prompt, str) else len(prompt)


def _timeout_of(scope: Scope) -> float | None:
    """The value of X-Request-Timeout in seconds; None if it is not sent."""
    header = first_headers(scope).get(_TIMEOUT_HEADER)
    if header is None:
        return None
    try:
        text = header.decode("latin-1")
        seconds = math.nan if "_" in text else float(text)  # only Python takes 1_0 as a number
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        problem = "must be a number of seconds > 0, such as 30"
        raise invalid_value(TIMEOUT_HEADER, problem)
    return seconds
