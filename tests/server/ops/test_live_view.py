"""What the page polls: figures at any time, blocks and steps once the engine has told them."""

from __future__ import annotations

import base64
import time

from asgi_client import call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.core.messages import EngineStats, EngineView, StepSummary
from quire.server.ops.live_view import MAX_CELLS, block_cells, live_state

STEP = StepSummary(
    step_id=7,
    time=9.5,
    seconds=0.5,
    num_prefill_tokens=30,
    num_decode_tokens=3,
    num_requests=4,
    num_sampled=4,
)


def test_an_engine_without_reports_is_shown_empty(app: Starlette) -> None:
    reply = call(app, "/live")
    state = reply.json()
    assert reply.status == 200
    assert state["blocks"]["cells"] == ""
    assert (state["running"], state["steps"], state["tokens_per_second"]) == (0, [], 0.0)
    assert len(state["ttft"]["counts"]) == len(state["ttft"]["bounds"]) + 1


def test_figures_blocks_and_steps_are_joined(engine: FakeEngine) -> None:
    engine.stats = EngineStats(
        time=time.monotonic(),
        num_running=2,
        num_blocks=256,
        num_free_blocks=250,
        num_cached_blocks=2,
        num_shared_blocks=1,
        prefix_cache_queries=40,
        prefix_cache_hits=10,
    )
    view = EngineView(time=10.0, block_states=bytes([0, 1, 2, 3]), steps=[STEP])
    state = live_state(engine, engine.metrics, view, now=10.0)
    assert (state.blocks.used, state.blocks.shared, state.blocks.free) == (4, 1, 250)
    assert base64.b64decode(state.blocks.cells) == bytes([0, 1, 2, 3])
    assert state.prefix_cache.hit_rate == 0.25
    assert (state.steps[0].age, state.steps[0].prefill_tokens) == (0.5, 30)
    assert state.tokens_per_second == 4.0  # four tokens in the second since the step began


def test_steps_of_long_ago_are_no_speed(engine: FakeEngine) -> None:
    view = EngineView(time=100.0, block_states=b"", steps=[STEP])
    assert live_state(engine, engine.metrics, view, now=100.0).tokens_per_second == 0.0


def test_many_blocks_share_cells() -> None:
    assert block_cells(bytes(MAX_CELLS)) == (1, bytes(MAX_CELLS))
    states = bytes([0, 0, 3]) * MAX_CELLS + bytes([1, 2])
    per_cell, cells = block_cells(states)
    assert per_cell == 4
    assert len(cells) == -(-len(states) // 4)
    assert cells[:3] == bytes([3, 3, 3])
    assert cells[-1] == 2  # of a free, a cached and a used one, the busiest


def test_the_key_is_asked_for(engine: FakeEngine) -> None:
    from quire.server.app import build_app
    from quire.server.settings import ServerSettings

    assert call(build_app(engine, ServerSettings(api_key="k")), "/live").status == 401
