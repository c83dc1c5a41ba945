"""`LLM.embed` and `AsyncEngine.embed` with a tokenizer in front, and broken numbers inside."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from quire import LLM, SamplingParams
from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.pooling_params import PoolingParams
from quire.engine.client import AsyncEngine
from quire.errors import ContextLengthError, InvalidRequestError

OPTIONS = {"dtype": "float32", "threads": 1, "num_blocks": 200}
TEXTS = ["it rains", "the sun shines", "a"]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(tiny_model, max_model_len=256, **OPTIONS)


def test_vectors_are_those_of_transformers(llm: LLM, tiny_model: Path) -> None:
    theirs = transformers.AutoModel.from_pretrained(tiny_model, dtype=torch.float32).eval()
    for pooling in ("last", "mean"):
        outputs = llm.embed(TEXTS, pooling=pooling, dimensions=32, use_tqdm=False)
        for text, output in zip(TEXTS, outputs, strict=True):
            assert output.prompt == text
            assert output.prompt_token_ids == llm.tokenizer.encode(text)
            with torch.inference_mode():
                ids = torch.tensor([output.prompt_token_ids])
                states = theirs(ids).last_hidden_state[0].numpy()
            state = (states.mean(0) if pooling == "mean" else states[-1])[:32]
            assert output.embedding.dtype == np.float32
            assert output.embedding == pytest.approx(state / np.linalg.norm(state), abs=1e-4)


def test_defaults_and_forms(llm: LLM) -> None:
    (plain,) = llm.embed("a b c", use_tqdm=False)
    (spelled,) = llm.embed([plain.prompt_token_ids], pooling="last", use_tqdm=False)
    assert (plain.embedding == spelled.embedding).all()
    assert np.linalg.norm(plain.embedding) == pytest.approx(1.0, abs=1e-6)
    (raw,) = llm.embed("a b c", normalize=False, use_tqdm=False)
    assert np.linalg.norm(raw.embedding) > 1.5
    assert llm.embed([], use_tqdm=False) == []


def test_the_longest_prompt_fits_and_a_longer_one_does_not(llm: LLM) -> None:
    (output,) = llm.embed([[7] * 256], pooling="mean", use_tqdm=False)
    assert output.embedding.shape == (48,)
    with pytest.raises(ContextLengthError, match=r"prompt\[1\]: 257 tokens.* limit here is 256"):
        llm.embed([[7], [7] * 257], use_tqdm=False)


@pytest.mark.parametrize(
    ("prompt", "wishes", "problem"),
    [
        ("a", {"dimensions": 49}, "dimensions: 49 is more than the 48"),
        ("a", {"pooling": "max"}, "pooling: it is 'max'"),
        ("", {}, "prompt: it is empty"),
        ([600], {}, "prompt: token ids go from 0 to 508"),
    ],
)
def test_what_can_never_be_is_refused(llm: LLM, prompt, wishes, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        llm.embed(prompt, use_tqdm=False, **wishes)


def test_numbers_that_are_none_fail_one_request(tiny_model: Path) -> None:
    """A token is poisoned, so that NaN comes to whoever has it, all being in one batch."""
    core = LLM(tiny_model, **OPTIONS)._core
    with torch.no_grad():
        core._executor._runner._model.model.embed_tokens.weight[9] = float("nan")  # type: ignore[attr-defined]
    prompts = {"sound": [8] * 20, "sick": [9] * 20, "half": [8] * 9 + [9] + [8] * 9}
    wishes = {"mean": PoolingParams(pooling="mean"), "last": PoolingParams(), "draws": None}
    draw = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    for name, prompt in prompts.items():
        for kind, wish in wishes.items():
            core.handle(
                AddRequest(
                    request_id=f"{name} {kind}",
                    prompt_token_ids=prompt,
                    sampling=draw,
                    pooling=wish,
                )
            )
    ends: dict[str, str] = {}
    while core.has_work:
        for delta in core.step().deltas:
            if delta.finish_reason is not None:
                assert delta.request_id not in ends
                assert (delta.embedding is None) == (delta.finish_reason != "stop")
                ends[delta.request_id] = delta.finish_reason
    sound = {"sound mean": "stop", "sound last": "stop", "sound draws": "length"}
    assert ends == sound | dict.fromkeys(ends.keys() - sound.keys(), "error")
    assert len(ends) == 9


def test_who_stops_waiting_aborts(tiny_model: Path) -> None:
    async def main() -> None:
        options = OPTIONS | {"max_num_batched_tokens": 4, "max_num_seqs": 4}
        engine = await AsyncEngine.start(
            EngineConfig.from_options(model=str(tiny_model), **options)
        )
        task = asyncio.create_task(engine.embed([5] * 2000, PoolingParams(pooling="mean")))
        while not engine.stats.num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        while engine.stats.num_running:
            await asyncio.sleep(0.001)
        assert engine.stats.num_steps < 500
        assert engine.metrics.finished == {"abort": 1}
        stats = engine.stats
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
        await engine.close()

    asyncio.run(main())
