"""Requests that begin with the same long prompt, on a GPU: the tokens that each gets alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from test_mixed_load import serve

from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.core.engine_core import EngineCore
from quire.engine.startup.start_engine import start_engine

pytestmark = pytest.mark.gpu


def start(model: Path, **options: object) -> EngineCore:
    settings = {"model": str(model), "device": "cuda", "dtype": "float32", "num_blocks": 1000}
    return start_engine(EngineConfig.from_options(**settings | options))[0]


def make_requests() -> list[AddRequest]:
    """Forty of two prompts of many tokens with ends of their own, and eight of others."""
    rng = random.Random(3)
    beginnings = [[rng.randrange(3, 500) for _ in range(length)] for length in (700, 900)]
    return [
        AddRequest(
            request_id=f"r{number}",
            prompt_token_ids=(beginnings[number % 2] if number % 6 else [])
            + [rng.randrange(3, 500) for _ in range(rng.randint(1, 60))],
            sampling=SamplingParams(
                temperature=number % 3 * 0.5, seed=number, max_tokens=30 + number, ignore_eos=True
            ),
        )
        for number in range(48)
    ]


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_together_equals_alone(
    odd_model: Path, enforce_eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.engine.core.shared_prefixes.LEAST_SAVED", 1)
    requests = make_requests()
    alone: dict[str, list[int]] = {}
    core = start(odd_model, enable_prefix_caching=False)
    for request in requests:
        alone |= serve(core, [request]).tokens
    core = start(odd_model, enforce_eager=enforce_eager)
    tiles = core._executor._batch._shared
    most, update = 0, tiles.update

    def watched(*arguments: object) -> None:
        nonlocal most
        update(*arguments)
        most = max(most, tiles.num_tiles)

    tiles.update = watched
    together = serve(core, requests).tokens
    assert together == alone
    assert most >= 3  # both prompts, of twenty requests each, some of which end early
