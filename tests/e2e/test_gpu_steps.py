"""Mixed requests on a GPU, by graphs of large steps and one kernel at a time: a CPU's tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from test_mixed_load import Served, make_requests, serve

from quire.config import EngineConfig
from quire.engine.core.engine_core import EngineCore
from quire.engine.core.step_sizes import StepSize, StepSizes
from quire.engine.startup.start_engine import start_engine

pytestmark = pytest.mark.gpu
# prompts whose last step has neither few tokens nor as many as the others
REQUESTS = make_requests(seed=7, scale=60)[:60]


def start(device: str, **options: object) -> EngineCore:
    core, _ = start_engine(
        EngineConfig.from_options(
            model="quire-tiny", dtype="float32", device=device, num_blocks=2000, **options
        )
    )
    return core


@cache
def on_cpu() -> Served:
    return serve(start("cpu"), REQUESTS)


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "kernel-by-kernel"])
def test_a_gpu_gives_the_cpus_tokens(enforce_eager: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[StepSize] = []
    choose = StepSizes.of

    def note(chosen: StepSizes, *step: Any) -> StepSize:
        sizes.append(choose(chosen, *step))
        return sizes[-1]

    monkeypatch.setattr(StepSizes, "of", note)
    core = start("cuda", enforce_eager=enforce_eager, max_num_seqs=64)
    served = serve(core, REQUESTS)
    large = {size for size in sizes if size.has_prefills and size.num_tokens > 512}
    assert len({size.num_tokens for size in large}) > 1
    assert len({size.num_samples for size in large}) > 1
    assert core.stats.num_graph_steps == (0 if enforce_eager else core.stats.num_steps)
    assert served.ends == on_cpu().ends
    assert served.tokens == on_cpu().tokens
