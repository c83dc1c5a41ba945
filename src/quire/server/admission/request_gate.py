"""What a request passes before it may use the model: the count, its deadline, its tenant's salt.

Owns none of the rules (admission_control.py, deadline.py, api_keys.py), only their order.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Unpack

from starlette.types import Scope

from quire.core.pooling_params import PoolingParams
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.input_processor import Options, Prompt, StopWhen
from quire.errors import OverloadedError, QueueTimeoutError, invalid_value
from quire.server.admission.admission_control import Admission, Capacity, Ticket
from quire.server.api.common.generation_job import Job
from quire.server.engine_protocol import GenerateProtocol
from quire.server.http.api_keys import salt_of
from quire.server.http.body_memory import BodyMemory, BodySpace
from quire.server.http.deadline import Deadline
from quire.server.http.request_reader import first_headers
from quire.server.http.request_record import RequestRecord
from quire.server.model_loading import Loader
from quire.server.settings import ServerSettings

TIMEOUT_HEADER = "x-request-timeout"
_TIMEOUT_HEADER = TIMEOUT_HEADER.encode()
MAX_ARRIVING = 2048  # bodies that one process receives at once; slow ones hold up nobody else
MAX_LOOKS = 64  # at once, in one process; each may hold a whole body and what was made of it
CHARS_PER_TOKEN = 4  # of text that is not encoded yet; an estimate is enough to count by


class RequestContext:
    """One request that has been let in, until its `with` block ends. ticket: what it counts as."""

    def __init__(
        self,
        record: RequestRecord,
        loader: Loader,
        tenant: str,
        settings: ServerSettings,
        ticket: Ticket,
        space: BodySpace,
    ) -> None:
        self.record = record
        self.hold = space.hold  # told of the body's bytes as they come
        self.deadline = Deadline(settings.request_timeout)
        self._loader = loader
        self._tenant = tenant
        self._queue_timeout = settings.queue_timeout
        self._ticket = ticket
        self._space = space

    @property
    def request_id(self) -> str:
        """The label that the log and the client know it by."""
        return self.record.request_id

    def line_up(self) -> None:
        """The body is whole: it takes its place among the answers. Raises QueueFullError."""
        self._ticket.move(self._loader.models.entrance)

    def begin(
        self, job: Job, *, most_answers: int | None = None, most_tokens: int | None = None
    ) -> TenantEngine:
        """The body is read and this is what it asks for; returns what runs it.

        most_answers, most_tokens: how many of its answers and of their prompts' tokens are with the
        engine at a time; None is all. Raises QueueFullError.
        """
        self.record.job = job
        served = self._loader.models.find(job.model)
        num_tokens = sum(map(_num_tokens, job.prompts))
        num_answers = len(job.prompts) * job.sampling.n
        if most_answers is not None:
            num_answers = min(num_answers, most_answers)
        if most_tokens is not None:
            num_tokens = min(num_tokens, most_tokens)
        self._ticket.charge(num_answers, num_tokens, at=served.admission)
        self.deadline.shorten(job.timeout, "timeout")
        return TenantEngine(served.engine, self._tenant, self._queue_timeout)

    async def wait_for(self, model: str, most: float) -> None:
        """Wait until a model is loaded, in the time that the request has, `most` seconds at most.

        Until the visit ends the model stays. Raises QueueFullError or ModelNotLoadedError.
        """
        entry = self._loader.models.entry(model)
        self._ticket.move(entry.admission)
        left = self.deadline.left
        entry.num_waiting += 1
        try:
            await self._loader.load(model, most if left is None else min(most, left))
        finally:
            entry.num_waiting -= 1

    def __enter__(self) -> RequestContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, QueueTimeoutError):  # the engine does not know how fast others leave
            error.retry_after = self._ticket.admission.retry_after()
        self._space.__exit__()
        self._ticket.__exit__(kind, error, trace)


class RequestGate:
    """Lets requests in."""

    def __init__(self, loader: Loader, settings: ServerSettings) -> None:
        self._loader = loader
        self._settings = settings
        self._arriving = _bounded(MAX_ARRIVING, "requests are being received")
        self.looks = _bounded(MAX_LOOKS, "requests are being looked at")
        self.bodies = BodyMemory(
            settings.held_body_bytes, lambda: loader.models.entrance.retry_after()
        )

    def visit(self, scope: Scope) -> RequestContext:
        """Count a request in as one that arrives, and out however it ends.

        A full queue refuses it here, before its body is read. The place in it is taken by
        `line_up`: a client that sends slowly must not hold one while the engine is idle.

        Raises OverloadedError, or InvalidRequestError for a deadline that is none.
        """
        if not self._loader.models.may_answer:
            raise OverloadedError("the engine is not running; send it again", retry_after=5.0)
        asked = _asked_timeout(scope)
        state = scope["state"]
        tenant = "" if self._settings.share_prefix_cache else state["tenant"]
        self._loader.models.entrance.check()
        ticket = self._arriving.enter()
        space = self.bodies.space()
        visit = RequestContext(state["record"], self._loader, tenant, self._settings, ticket, space)
        visit.deadline.shorten(asked, TIMEOUT_HEADER)
        return visit

    @contextmanager
    def look(self, scope: Scope) -> Iterator[tuple[Deadline, Ticket, BodySpace]]:
        """Count in a request that needs no engine, such as one for token counts, as it arrives.

        Its place among the `looks` is taken when its body is whole.

        Raises QueueFullError, or InvalidRequestError for a deadline that is none.
        """
        deadline = Deadline(self._settings.request_timeout)
        deadline.shorten(_asked_timeout(scope), TIMEOUT_HEADER)
        self.looks.check()
        with self._arriving.enter() as ticket, self.bodies.space() as space:
            yield deadline, ticket, space


class TenantEngine:
    """An engine as the requests of one tenant see it: what they cache is found only by them."""

    def __init__(self, engine: GenerateProtocol, tenant: str, queue_timeout: float | None) -> None:
        self._engine = engine
        self._tenant = tenant
        self._queue_timeout = queue_timeout

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        stream: bool = True,
        stop_when: StopWhen | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[RequestOutput, None]:
        """As the engine's own."""
        return self._engine.generate(
            prompt,
            sampling,
            request_id=request_id,
            stream=stream,
            stop_when=stop_when,
            **self._own(options),
        )

    def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        stop_when: StopWhen | None = None,
        **options: Unpack[Options],
    ) -> Coroutine[None, None, RequestOutput]:
        """As the engine's own."""
        return self._engine.complete(
            prompt, sampling, request_id=request_id, stop_when=stop_when, **self._own(options)
        )

    def embed(
        self,
        prompt: Prompt,
        pooling: PoolingParams,
        *,
        request_id: str | None = None,
        **options: Unpack[Options],
    ) -> Coroutine[None, None, RequestOutput]:
        """As the engine's own."""
        return self._engine.embed(prompt, pooling, request_id=request_id, **self._own(options))

    def _own(self, options: Options) -> Options:
        """With the tenant's salt, and the server's time to wait where none is given."""
        options["cache_salt"] = salt_of(self._tenant, options.get("cache_salt", ""))
        if options.get("queue_timeout") is None:
            options["queue_timeout"] = self._queue_timeout
        return options


def _bounded(most: int, waiters: str) -> Admission:
    return Admission(Capacity(max_running=0, max_waiting=most), waiters=waiters)


def _num_tokens(prompt: Prompt) -> int:
    return len(prompt) // CHARS_PER_TOKEN if isinstance(prompt, str) else len(prompt)


def _asked_timeout(scope: Scope) -> float | None:
    given = first_headers(scope).get(_TIMEOUT_HEADER)
    if given is None:
        return None
    try:
        text = given.decode("latin-1")
        seconds = math.nan if "_" in text else float(text)  # 1_0 is a number to Python alone
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        problem = "it is no positive number of seconds; give one, such as 30"
        raise invalid_value(TIMEOUT_HEADER, problem)
    return seconds
