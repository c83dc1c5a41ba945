"""Two hundred requests of all kinds at once, against the same requests one by one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from kv_usage import num_allocated_slots, num_stored_tokens

from quire.array_types import Ints
from quire.config import EngineConfig
from quire.core.messages import AbortRequests, AddRequest, RequestDelta
from quire.core.sampling_params import SamplingParams
from quire.engine.core.engine_core import EngineCore
from quire.engine.startup.start_engine import start_engine
from quire.errors import ConfigError
from quire.kernels.cpu import native
from quire.kernels.ragged_batch import RaggedBatch
from quire.layers.forward_context import Heartbeat
from quire.models.runtimes.compiled_decoder import CompiledDecoder, CompiledStates
from quire.models.runtimes.host_model import HiddenStates
from quire.models.runtimes.torch_model import TorchModel, TorchStates

NUM_REQUESTS = 200
VOCAB_SIZE = 512  # of tiny_model


@dataclass
class Served:
    """What a run gave: token ids and end of each request, and the waste seen on the way."""

    tokens: dict[str, list[int]]
    ends: dict[str, list[str]]
    stored: int = 0
    allocated: int = 0

    def take(self, delta: RequestDelta) -> None:
        self.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
        if delta.finish_reason is not None:
            self.ends.setdefault(delta.request_id, []).append(delta.finish_reason)


def random_sampling(rng: random.Random, longest: int) -> SamplingParams:
    """Random values of every field that changes the next token."""

    def maybe(value: object, otherwise: object) -> object:
        return value if rng.random() < 0.3 else otherwise

    max_tokens = rng.randint(1, longest)
    return SamplingParams(
        temperature=maybe(0.0, round(rng.uniform(0.3, 1.8), 2)),
        top_p=maybe(round(rng.uniform(0.2, 1.0), 2), 1.0),
        top_k=maybe(rng.randint(1, 60), 0),
        min_p=maybe(round(rng.uniform(0.0, 0.2), 2), 0.0),
        presence_penalty=maybe(rng.uniform(-1, 1), 0.0),
        frequency_penalty=maybe(rng.uniform(-1, 1), 0.0),
        repetition_penalty=maybe(rng.uniform(0.8, 1.4), 1.0),
        logit_bias=maybe({rng.randrange(500): rng.uniform(-9, 9) for _ in range(4)}, None),
        seed=rng.getrandbits(40),
        stop_token_ids=maybe([rng.randrange(500) for _ in range(8)], []),
        max_tokens=max_tokens,
        min_tokens=maybe(rng.randint(0, max_tokens), 0),
        ignore_eos=rng.random() < 0.5,
        logprobs=maybe(rng.randint(0, 5), None),
        prompt_logprobs=2 if rng.random() < 0.05 else None,
    )


def make_requests(seed: int, scale: int = 20, longest: int = 40) -> list[AddRequest]:
    """Prompts of very different lengths, half of them below `scale` tokens.

    A third share one of three long beginnings. longest: the most tokens that one answers.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, 500) for _ in range(count)]

    beginnings = [tokens(rng.randint(2 * scale, 6 * scale)) for _ in range(3)]
    requests = []
    for number in range(NUM_REQUESTS):
        prompt = tokens(int((rng.paretovariate(1.2) - 1) * scale) % (14 * scale) + 1)
        if rng.random() < 0.33:
            prompt = rng.choice(beginnings) + prompt
        requests.append(
            AddRequest(
                request_id=f"r{number}",
                prompt_token_ids=prompt,
                sampling=random_sampling(rng, longest),
                eos_token_ids=[2],
                bad_words_ids=[[rng.randrange(500), rng.randrange(500)], [rng.randrange(500)]],
                priority=rng.randint(-2, 2),
                cache_salt=rng.choice(["", "", "tenant"]),
            )
        )
    return requests


def start(model: Path, **options: object) -> EngineCore:
    core, _ = start_engine(
        EngineConfig.from_options(model=str(model), dtype="float32", threads=1, **options)
    )
    return core


def serve(core: EngineCore, requests: list[AddRequest]) -> Served:
    served = Served({}, {})
    for request in requests:
        core.handle(request)
    kv = core._scheduler._kv
    while core.has_work:
        for delta in core.step().deltas:
            served.take(delta)
        served.stored += num_stored_tokens(kv)
        served.allocated += num_allocated_slots(kv)
    return served


@pytest.fixture(scope="module")
def requests() -> list[AddRequest]:
    return make_requests(seed=11)


def one_by_one(core: EngineCore, requests: list[AddRequest]) -> Served:
    """Run each request after the previous one has ended."""
    served = Served({}, {})
    for request in requests:
        alone = serve(core, [request])
        served.tokens |= alone.tokens
        served.ends |= alone.ends
    return served


def run_alone(model: Path, requests: list[AddRequest]) -> Served:
    """Run each request alone in an engine that shares nothing and has memory for all."""
    return one_by_one(start(model, enable_prefix_caching=False, num_blocks=256), requests)


@pytest.fixture(scope="module")
def solo(tiny_model: Path, requests: list[AddRequest]) -> Served:
    return run_alone(tiny_model, requests)


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 4, "num_blocks": 250, "max_num_batched_tokens": 256},
        {"block_size": 2, "num_blocks": 240, "max_num_batched_tokens": 64, "max_num_seqs": 50},
        {"block_size": 4, "num_blocks": 160, "scheduling_policy": "priority"},
        {"block_size": 1, "num_blocks": 900, "enable_chunked_prefill": False},
    ],
    ids=["pressure", "heavy-pressure", "priority", "whole-prompts"],
)
def test_together_equals_alone(
    tiny_model: Path, requests: list[AddRequest], solo: Served, options: dict[str, object]
) -> None:
    core = start(tiny_model, **options)
    together = serve(core, requests)
    stats = core.stats
    assert stats.num_preemptions > 0, "no pressure: the test shows nothing"
    assert stats.prefix_cache_hits > 0
    assert {name: len(ends) for name, ends in together.ends.items()} == dict.fromkeys(
        (request.request_id for request in requests), 1
    )
    assert together.ends == solo.ends
    assert together.tokens == solo.tokens
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    core._scheduler._kv.pool.check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_batch_invariance_on_a_cpu(
    dtype: str, quantization: str, requests: list[AddRequest]
) -> None:
    if native.library() is None or (quantization == "int4" and native.instruction_set() == "amx"):
        pytest.skip("it is refused")
    some = requests[::4]
    options: dict[str, Any] = {
        "model": "quire-tiny-draft", "device": "cpu", "dtype": dtype, "quantization": quantization,
        "batch_invariant": True,
    }  # fmt: skip
    core, _ = start_engine(EngineConfig.from_options(**options, num_blocks=130, block_size=4))
    together = serve(core, some)
    assert core.stats.num_preemptions > 0
    options |= {"enable_prefix_caching": False, "num_blocks": 256}
    alone = one_by_one(start_engine(EngineConfig.from_options(**options))[0], some)
    assert together.tokens == alone.tokens


def test_batch_invariance_is_refused_where_pytorch_runs_the_model(odd_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"runs this model \(.*\); leave batch_invariant out"):
        start(odd_model, batch_invariant=True, device="cpu")


def test_an_answer_goes_on_in_another_engine_as_if_nothing_had_happened(
    tiny_model: Path, requests: list[AddRequest], solo: Served
) -> None:
    rng = random.Random(5)
    started = [
        msgspec.structs.replace(request, output_token_ids=tokens[: rng.randrange(len(tokens))])
        for request in requests
        if (tokens := solo.tokens[request.request_id])
    ]
    assert sum(len(request.output_token_ids) for request in started) > 1000
    rest = serve(start(tiny_model, num_blocks=250, block_size=4), started)
    for request in started:
        name = request.request_id
        assert request.output_token_ids + rest.tokens[name] == solo.tokens[name]
        assert rest.ends[name] == solo.ends[name]


def test_waste_is_below_four_percent_under_pressure(tiny_model: Path) -> None:
    """Blocks of 16, requests of some hundred tokens: as right as alone, and little is wasted.

    Half of its last block is empty, on average, whatever a request's length: 8 slots are 12 % of
    the 60 tokens of the mix above, which is why this one has longer prompts.
    """
    requests = make_requests(seed=16, scale=50, longest=50)
    core = start(tiny_model, num_blocks=72, max_num_batched_tokens=512)
    together = serve(core, requests)
    stats = core.stats
    assert core._scheduler._kv.block_size == 16
    assert stats.num_preemptions > 0, "no pressure: the test shows nothing"
    assert 1 - together.stored / together.allocated < 0.04
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    core._scheduler._kv.pool.check()
    assert len(together.ends) == NUM_REQUESTS
    assert {len(ends) for ends in together.ends.values()} == {1}
    alone = run_alone(tiny_model, requests[::8])  # the mixes above compare all of theirs
    assert {name: together.ends[name] for name in alone.ends} == alone.ends
    assert {name: together.tokens[name] for name in alone.tokens} == alone.tokens


def test_aborts_leave_the_others_alone(
    tiny_model: Path, requests: list[AddRequest], solo: Served
) -> None:
    core = start(tiny_model, num_blocks=160, max_num_batched_tokens=256)
    rng = random.Random(3)
    doomed = {r.request_id for r in requests if rng.random() < 0.4}
    served = Served({}, {})
    for request in requests:
        core.handle(request)
    remaining = sorted(doomed)
    while core.has_work:
        for delta in core.step().deltas:
            served.take(delta)
        if remaining and rng.random() < 0.5:
            core.handle(AbortRequests(request_ids=[remaining.pop()]))
    assert all(len(ends) == 1 for ends in served.ends.values())
    assert set(served.ends) == {r.request_id for r in requests}
    for request in requests:
        name = request.request_id
        tokens, expected = served.tokens.get(name, []), solo.tokens[name]
        if name in doomed:
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected
    stats = core.stats
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


class LostLogits:
    """A model whose logits are no numbers, and its hidden states."""

    def __init__(self, sound: Any) -> None:
        self._sound = sound

    def forward(self, *args: Any) -> LostLogits:
        self._states = self._sound.forward(*args)
        return self

    def finite(self) -> Any:
        return self._states.finite()

    def logits(self, tokens: Any) -> np.ndarray:
        return np.full_like(self._states.logits(tokens), np.nan)


def test_nan_logits_end_one_request_and_are_never_shared(either_model: Path) -> None:
    """A prefix whose KV is damaged must not be served to the next request that starts with it."""
    core = start(either_model, num_blocks=160)
    prompt = list(range(3, 103))

    def request(name: str) -> AddRequest:
        sampling = SamplingParams(temperature=0.0, max_tokens=4)
        return AddRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling)

    runner = core._executor._runner
    runner._model, sound = LostLogits(runner._model), runner._model
    sick = serve(core, [request("sick")])
    runner._model = sound
    well = serve(core, [request("well")])
    assert sick.ends == {"sick": ["error"]}
    assert sick.tokens == {"sick": []}
    assert core.stats.prefix_cache_hits == 0
    fresh = serve(start(either_model, num_blocks=160), [request("well")])
    assert well.tokens == fresh.tokens


class Damaged:
    """A model that spoils one chunk of a prompt: hidden states, keys and values."""

    def __init__(self, sound: Any, at: int, prompt: list[int]) -> None:
        self._sound = sound
        self._at = at  # position of the token that is spoilt, with all of its chunk behind it
        self._prompt = prompt
        self.num_spoilt = 0

    @torch.inference_mode()
    def forward(
        self, input_ids: Ints, batch: RaggedBatch, heartbeat: Heartbeat, needed: Ints | None
    ) -> HiddenStates:
        states = self._sound.forward(input_ids, batch, heartbeat, needed)
        positions = batch.flat.positions.tolist()
        for first, end in itertools.pairwise(batch.flat.query_start.tolist()):
            chunk = range(positions[first], positions[first] + end - first)
            tokens = input_ids[first:end].tolist()
            if self._at in chunk and tokens == self._prompt[chunk.start : chunk.stop]:
                spoilt = first + chunk.index(self._at)
                spoil(states, spoilt)  # amid the chunk, whose end looks well
                for slots in stored_rows(self._sound):
                    slots[batch.slots[spoilt]] = np.nan
                self.num_spoilt += 1
        return states


def spoil(states: CompiledStates | TorchStates, token: int) -> None:
    """Make a token's row not finite, wherever that is noticed."""
    if isinstance(states, CompiledStates):
        states.is_finite[token] = False
    elif isinstance(states, TorchStates) and states.heads is not None:
        states.heads[token] = np.nan
    else:
        states.states[token] = np.nan


def stored_rows(model: CompiledDecoder | TorchModel) -> Iterator[Any]:
    """Keys and values of all layers, by slot."""
    if isinstance(model, TorchModel):
        for cache in itertools.chain(*model.kv_caches):
            yield cache.flatten(0, 1)
    else:
        for page in model.cache.pages:
            yield page.view(np.float32).reshape(160 * model.cache.block_size, -1)


def test_a_damaged_chunk_is_never_shared_though_no_token_is_drawn_after_it(
    either_model: Path,
) -> None:
    """A middle chunk of a prompt is damaged while other requests decode."""
    options = {
        "num_blocks": 160,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 24,
    }
    prompt = [3 + i % 251 for i in range(100)]

    def request(name: str, prompt: list[int]) -> AddRequest:
        sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
        return AddRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling)

    others = [request(f"other{i}", [300 + i] * 20) for i in range(3)]
    well, after = request("well", prompt), request("after", prompt)
    expected = serve(start(either_model, **options), [*others, well]).tokens
    core = start(either_model, **options)
    runner = core._executor._runner
    sound = runner._model
    runner._model = damage = Damaged(sound, at=40, prompt=prompt)
    sick = serve(core, [*others, request("sick", prompt)])
    runner._model = sound
    assert damage.num_spoilt == 1
    assert sick.ends.pop("sick") == ["error"]
    assert sick.tokens.pop("sick") == []
    assert sick.tokens == {other.request_id: expected[other.request_id] for other in others}
    assert core.stats.prefix_cache_hits == 0
    healthy = serve(core, [well])
    assert core.stats.prefix_cache_hits == 0
    assert healthy.tokens["well"] == expected["well"]
    assert serve(core, [after]).tokens["after"] == expected["well"]
    assert core.stats.prefix_cache_hits == 96
    assert core.stats.num_free_blocks + core.stats.num_cached_blocks == core.stats.num_blocks


def test_sampling_params_that_leave_no_token_end_one_request_and_cost_no_cached_block(
    tiny_model: Path,
) -> None:
    core = start(tiny_model, num_blocks=160)
    prompt = list(range(3, 103))

    def request(name: str, bad_words_ids: list[list[int]]) -> AddRequest:
        return AddRequest(
            request_id=name,
            prompt_token_ids=prompt,
            sampling=SamplingParams(
                temperature=0.0,
                max_tokens=4,
                ignore_eos=True,
                bad_words=["a"] * bool(bad_words_ids),
            ),
            bad_words_ids=bad_words_ids,
        )

    first = serve(core, [request("first", [])])
    deltas = []
    core.handle(request("picky", [[token_id] for token_id in range(VOCAB_SIZE)]))
    while core.has_work:
        deltas += core.step().deltas
    [delta] = deltas
    assert delta.finish_reason == "error"
    assert "bad_words" in (delta.error or "")
    again = serve(core, [request("again", [])])
    assert again.tokens["again"] == first.tokens["first"]
    assert core.stats.prefix_cache_hits == 2 * 96
