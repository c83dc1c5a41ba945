"""`GET /live`: the engine's current state as JSON, which the web page polls.

The engine is asked for the map of blocks and the latest steps only by such a request.
"""

from __future__ import annotations

import base64
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.core.histogram import Histogram
from quire.core.messages import EngineView, StepSummary
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.server.http.openapi_entry import ApiRoute, JsonResponse, OpenApiEntry
from quire.server.model_registry import ModelRegistry
from quire.server.ops.server_metrics import Metrics

MAX_CELLS = 4096  # of the map; with more blocks, several share a cell
RATE_SECONDS = 2.0  # the time over which tokens/s are averaged


class LiveStep(msgspec.Struct):
    """One step. age: seconds since its end. decode_tokens: requests that computed one token."""

    id: int
    age: float
    seconds: float
    prefill_tokens: int
    decode_tokens: int
    requests: int
    sampled_tokens: int


class LiveBlocks(msgspec.Struct):
    """The KV cache, in blocks. shared: the used blocks that several requests hold.

    cells: base64 of one byte per cell: 0 free, 1 cached (unused, but it holds a prefix), 2 used,
    3 shared; of blocks_per_cell blocks in a row, the busiest. Empty until the engine answered.
    """

    total: int
    free: int
    cached: int
    used: int
    shared: int
    block_size: int
    bytes_per_block: int
    blocks_per_cell: int
    cells: str


class LiveHistogram(msgspec.Struct):
    """Counts since the start: counts[i] values were at most bounds[i], and above the one before.

    counts has one more entry than bounds, for all larger values. Seconds.
    """

    bounds: list[float]
    counts: list[int]
    sum: float
    count: int


class LivePrefixCache(msgspec.Struct):
    """Tokens looked up in the prefix cache, tokens found, and tokens not found by reason."""

    queries: int
    hits: int
    hit_rate: float
    misses: dict[str, int]


class LiveState(msgspec.Struct):
    """The engine's state. time: Unix seconds of this answer; steps: the latest, oldest first.

    age: seconds since the engine's statistics. tokens_per_second: generated, lately.
    """

    model: str
    time: float
    age: float
    is_alive: bool
    running: int
    waiting: int
    num_steps: int
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    recomputed_tokens: int
    tokens_per_second: float
    prefix_cache: LivePrefixCache
    blocks: LiveBlocks
    steps: list[LiveStep]
    ttft: LiveHistogram
    itl: LiveHistogram


def live_route(models: ModelRegistry, metrics: Metrics) -> ApiRoute:
    """The route of /live: the state of the model that the query names, or of the first."""

    async def answer(request: Request) -> Response:
        model = models.find(request.query_params.get("model"))
        view = await model.engine.view()
        state = live_state(model.engine, metrics.requests(model.name), view, time.monotonic())
        return JsonResponse(state, headers={"cache-control": "no-store"})

    entry = OpenApiEntry(
        "/live",
        "The engine at work, for live views.",
        reply=LiveState,
        errors=(404, 503),
        names_model=True,
    )
    return ApiRoute(answer, entry)


def live_state(
    engine: AsyncEngine, requests: RequestMetrics, view: EngineView | None, now: float
) -> LiveState:
    """The state, from statistics and view. now: seconds of the monotonic clock."""
    stats = engine.stats
    queries, hits = stats.prefix_cache_queries, stats.prefix_cache_hits
    steps = [] if view is None else view.steps
    return LiveState(
        model=engine.info.model_name,
        time=time.time(),
        age=max(0.0, now - stats.time) if stats.time else 0.0,
        is_alive=engine.is_alive,
        running=stats.num_running,
        waiting=stats.num_waiting,
        num_steps=stats.num_steps,
        prompt_tokens=stats.num_prompt_tokens,
        generation_tokens=stats.num_generation_tokens,
        preemptions=stats.num_preemptions,
        recomputed_tokens=stats.num_recomputed_tokens,
        tokens_per_second=_rate(steps, now),
        prefix_cache=LivePrefixCache(
            queries, hits, hits / queries if queries else 0.0, stats.prefix_cache_misses
        ),
        blocks=_blocks(engine, view),
        steps=[_step(step, now) for step in steps],
        ttft=_histogram(requests.time_to_first_token),
        itl=_histogram(requests.inter_token_latency),
    )


def block_cells(states: bytes) -> tuple[int, bytes]:
    """The states of blocks as at most MAX_CELLS cells: (blocks per cell, busiest state of each).

    The busiest state, so that a few used blocks are visible in a large cache.
    """
    per_cell = max(1, -(-len(states) // MAX_CELLS))
    if per_cell == 1:
        return 1, states
    return per_cell, bytes(max(states[i : i + per_cell]) for i in range(0, len(states), per_cell))


def _blocks(engine: AsyncEngine, view: EngineView | None) -> LiveBlocks:
    stats, info = engine.stats, engine.info
    per_cell, cells = block_cells(b"" if view is None else view.block_states)
    return LiveBlocks(
        total=info.num_blocks,
        free=stats.num_free_blocks,
        cached=stats.num_cached_blocks,
        used=stats.num_used_blocks,
        shared=stats.num_shared_blocks,
        block_size=info.block_size,
        bytes_per_block=info.kv_cache_bytes // max(1, info.num_blocks),
        blocks_per_cell=per_cell,
        cells=base64.b64encode(cells).decode(),
    )


def _step(step: StepSummary, now: float) -> LiveStep:
    return LiveStep(
        id=step.step_id,
        age=max(0.0, now - step.time),
        seconds=step.seconds,
        prefill_tokens=step.num_prefill_tokens,
        decode_tokens=step.num_decode_tokens,
        requests=step.num_requests,
        sampled_tokens=step.num_sampled,
    )


def _rate(steps: list[StepSummary], now: float) -> float:
    """Generated tokens per second, of the steps that ended lately."""
    lately = [step for step in steps if now - step.time <= RATE_SECONDS]
    if not lately:
        return 0.0
    # a list that does not reach back so far covers less time
    start = lately[0].time - lately[0].seconds
    covered = now - start if len(lately) == len(steps) else RATE_SECONDS
    return sum(step.num_sampled for step in lately) / max(covered, 1e-3)


def _histogram(histogram: Histogram) -> LiveHistogram:
    counts = histogram.counts.copy()
    return LiveHistogram(list(histogram.bounds), counts, histogram.sum, histogram.count)
