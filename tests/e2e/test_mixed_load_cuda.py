"""The two hundred mixed requests on a GPU: together as alone, by CUDA graphs and without."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from test_mixed_load import make_requests, one_by_one, serve

from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.engine.core.engine_core import EngineCore
from quire.engine.startup.start_engine import start_engine

pytestmark = pytest.mark.gpu
PRESSURE = {"block_size": 4, "num_blocks": 250, "max_num_batched_tokens": 256}


@pytest.fixture(scope="module")
def requests() -> list[AddRequest]:
    return make_requests(seed=11)


def start(model: Path, **options: object) -> EngineCore:
    settings = {"model": str(model), "device": "cuda", "threads": 1} | options
    return start_engine(EngineConfig.from_options(**settings))[0]


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize(
    ("dtype", "batch_invariant"),
    [("float32", False), ("float32", True), ("bfloat16", True), ("float16", True)],
)
def test_together_equals_alone(
    odd_model: Path,
    requests: list[AddRequest],
    dtype: str,
    batch_invariant: bool,
    enforce_eager: bool,
) -> None:
    """In float32 this model's logits differ clearly; in 16 bits every sum has to be identical."""
    options = {"dtype": dtype, "enforce_eager": enforce_eager, "batch_invariant": batch_invariant}
    alone = one_by_one(
        start(odd_model, enable_prefix_caching=False, num_blocks=256, **options), requests
    )
    core = start(odd_model, **PRESSURE, **options)
    together = serve(core, requests)
    assert core.stats.num_preemptions > 0, "no pressure: the test shows nothing"
    assert core.stats.prefix_cache_hits > 0
    assert {len(ends) for ends in together.ends.values()} == {1}
    assert together.ends == alone.ends
    assert together.tokens == alone.tokens
    assert core.stats.num_free_blocks + core.stats.num_cached_blocks == core.stats.num_blocks
    core._scheduler._kv.pool.check()


def test_a_large_vocabulary_and_long_prompts_are_the_same_in_any_batch() -> None:
    """The bundled model in bfloat16: its scores lie close together."""
    longer = [
        msgspec.structs.replace(
            request,
            prompt_token_ids=(request.prompt_token_ids * 8)[:900],
            bad_words_ids=[],
            sampling=msgspec.structs.replace(request.sampling, prompt_logprobs=None),
        )
        for request in make_requests(seed=4)[::4]
    ]
    model = Path("quire-tiny")
    options = {"dtype": "bfloat16", "batch_invariant": True, "num_blocks": 600}
    alone = one_by_one(start(model, enable_prefix_caching=False, **options), longer)
    together = serve(start(model, **options), longer)
    assert together.tokens == alone.tokens
