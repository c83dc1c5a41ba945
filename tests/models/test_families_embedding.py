"""Embeddings of every family through the whole engine core: the states that transformers computes.

Each test runs "mean" and "last" requests of several lengths together with requests that draw
tokens, and compares the vectors with one forward pass of transformers' model without a head.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import transformers
from checkpoints import CASES, SMALL
from safetensors.torch import load_file, save_file

from quire.array_types import Singles
from quire.config import EngineConfig
from quire.core.messages import AddRequest, RequestDelta
from quire.core.pooling_params import PoolingParams
from quire.core.request import DEFAULT_SAMPLING
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import SchedulerOutput
from quire.engine.core.engine_core import EngineCore
from quire.engine.startup.start_engine import start_engine
from quire.errors import InvalidRequestError
from quire.scheduler.step_plan import StepPlan

TOLERANCE = 1e-4
BLOCK_SIZE = 4
LENGTHS = (1, 16, 17, 150)
POOLINGS = [
    PoolingParams(pooling="mean"),
    PoolingParams(pooling="last"),
    PoolingParams(pooling="mean", normalize=False),
    PoolingParams(pooling="last", normalize=False, dimensions=20),
    PoolingParams(pooling="mean", dimensions=20),
]


def start(folder: Path, **options: object) -> EngineCore:
    settings = {"num_blocks": 400, "max_num_seqs": 8, "block_size": BLOCK_SIZE} | options
    config = EngineConfig.from_options(
        model=str(folder), dtype="float32", device="cpu", max_model_len=200, **settings
    )
    return start_engine(config)[0]


class Setup:
    """A checkpoint with a head and what transformers says of a text's states."""

    def __init__(self, folder: Path, theirs: transformers.PreTrainedModel) -> None:
        self.folder = folder
        generator = torch.Generator().manual_seed(0)
        self.prompts = [torch.randint(509, (n,), generator=generator).tolist() for n in LENGTHS]
        with torch.inference_mode():
            self.states = [
                theirs(torch.tensor([prompt]), use_cache=False).last_hidden_state[0].numpy()
                for prompt in self.prompts
            ]

    def run(self, core: EngineCore, *, generating: int = 2) -> dict[str, RequestDelta]:
        """Ask for every pooling of every prompt, beside some answers; the last delta of each."""
        for index, prompt in enumerate(self.prompts):
            for number, pooling in enumerate(POOLINGS):
                name = f"{index}/{number}"
                ask = AddRequest(
                    request_id=name, prompt_token_ids=prompt, sampling=DEFAULT_SAMPLING
                )
                core.handle(msgspec.structs.replace(ask, pooling=pooling))
            if index < generating:
                draw = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
                name = f"answer {index}"
                core.handle(AddRequest(request_id=name, prompt_token_ids=prompt, sampling=draw))
        ends: dict[str, RequestDelta] = {}
        while core.has_work:
            for delta in core.step().deltas:
                if delta.finish_reason is not None:
                    assert delta.request_id not in ends
                    ends[delta.request_id] = delta
        assert len(ends) == len(self.prompts) * len(POOLINGS) + generating
        return ends

    def assert_as_transformers(self, ends: dict[str, RequestDelta]) -> None:
        for index, states in enumerate(self.states):
            for number, pooling in enumerate(POOLINGS):
                delta = ends[f"{index}/{number}"]
                assert (delta.finish_reason, delta.token_ids) == ("stop", [])
                assert delta.embedding is not None
                vector = np.frombuffer(delta.embedding, "<f4")
                assert np.abs(vector - expected(states, pooling)).max() <= TOLERANCE


def expected(states: Singles, pooling: PoolingParams) -> Singles:
    vector = states.mean(0) if pooling.pooling == "mean" else states[-1]
    vector = vector[: pooling.dimensions]
    return vector / np.linalg.norm(vector) if pooling.normalize else vector


@pytest.fixture(scope="module")
def setup(checkpoint: Callable) -> Setup:
    """One family is enough: those without a head run below, and pooling knows none."""
    folder, theirs = checkpoint("qwen3")
    return Setup(folder, theirs.model)


def test_whole_and_again_with_cached_prefixes(setup: Setup) -> None:
    core = start(setup.folder)
    setup.assert_as_transformers(setup.run(core))
    again = setup.run(core)
    setup.assert_as_transformers(again)
    for index, length in enumerate(LENGTHS):
        assert again[f"{index}/0"].num_cached_tokens == 0  # a mean needs every state
        assert again[f"{index}/1"].num_cached_tokens == (length - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_in_chunks(setup: Setup) -> None:
    core = start(setup.folder, max_num_batched_tokens=13)
    setup.assert_as_transformers(setup.run(core))
    assert core.stats.num_steps > 5 * sum(LENGTHS) / 13 / 2


@pytest.mark.parametrize("cached", [False, True])
def test_preempted_in_the_middle(setup: Setup, cached: bool) -> None:
    core = start(setup.folder, max_num_batched_tokens=29, enable_prefix_caching=cached)
    preempted = preempt_each_once(core)
    setup.assert_as_transformers(setup.run(core))
    # with the cache, a last token's state is soon there: its blocks are those of a mean
    assert {pooling.pooling for pooling in preempted} == ({"mean"} if cached else {"mean", "last"})
    assert core.stats.num_free_blocks + core.stats.num_cached_blocks == core.stats.num_blocks


def preempt_each_once(core: EngineCore) -> list[PoolingParams]:
    """Prompts are admitted where they fit whole, so it takes force. Returns whom it has hit."""
    scheduler, schedule = core._scheduler, core._scheduler.schedule
    batch = scheduler._batch
    hit: list[PoolingParams] = []

    def preempt_and_schedule(now: float) -> SchedulerOutput | None:
        last = max(batch.running.values(), key=batch.waiting.key, default=None)
        if last is not None and last.pooling is not None and not last.num_preemptions:
            assert 0 < last.num_computed_tokens < last.num_prompt_tokens
            hit.append(last.pooling)
            batch.preempt(StepPlan(1))
        return schedule(now)

    scheduler.schedule = preempt_and_schedule  # type: ignore[method-assign]
    return hit


@pytest.fixture(scope="module", params=["Llama", "Mistral", "Qwen2", "Qwen3"])
def headless(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """What AutoModel saves: no head, and names without the prefix that heads bring."""
    folder = tmp_path_factory.mktemp(request.param)
    changes = CASES[request.param.lower()][1]
    config = getattr(transformers, f"{request.param}Config")(**(SMALL | changes))
    torch.manual_seed(0)
    model = getattr(transformers, f"{request.param}Model")(config).eval()
    model.save_pretrained(folder)
    return Setup(folder, model)


def test_checkpoints_without_a_head(headless: Setup) -> None:
    names = list(load_file(headless.folder / "model.safetensors"))
    assert not [name for name in names if name.startswith(("model.", "lm_head."))]
    core = start(headless.folder, load_format="auto")
    assert not core.limits.generates
    ends = headless.run(core, generating=0)
    headless.assert_as_transformers(ends)
    ask = AddRequest(request_id="x", prompt_token_ids=[1], sampling=SamplingParams())
    with pytest.raises(InvalidRequestError, match="no head to generate tokens"):
        core.limits.check(ask)


def test_a_head_and_names_without_the_prefix(setup: Setup, tmp_path: Path) -> None:
    """Qwen3-Embedding is saved so: its config names a causal model, and its head is tied."""
    tensors = load_file(setup.folder / "model.safetensors")
    save_file(
        {name.removeprefix("model."): tensor for name, tensor in tensors.items()},
        tmp_path / "model.safetensors",
    )
    config = (setup.folder / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    core = start(tmp_path)
    setup.assert_as_transformers(setup.run(core))
