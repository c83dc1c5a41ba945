"""`LLM.embed` and `AsyncEngine.embed` with a tokenizer in front, and broken numbers inside."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from starlette.applications import Starlette

from quire import LLM, SamplingParams
from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.pooling_params import PoolingParams
from quire.engine.frontend.async_engine import AsyncEngine
from quire.errors import ContextLengthError, InvalidRequestError
from quire.models.runtimes.torch_model import TorchModel
from quire.server.app import build_app
from quire.server.settings import ServerSettings

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


def test_defaults_and_input_types(llm: LLM) -> None:
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
    with pytest.raises(
        ContextLengthError, match=r"prompt\[1\]: too large: 257 tokens.* length is 256"
    ):
        llm.embed([[7], [7] * 257], use_tqdm=False)


@pytest.mark.parametrize(
    ("prompt", "options", "problem"),
    [
        ("a", {"dimensions": 49}, "dimensions: 49 is more than the 48"),
        ("a", {"pooling": "max"}, "pooling: must be 'mean' or 'last', not 'max'"),
        ("", {}, "prompt: must have at least one token"),
        ([600], {}, "prompt: token ids of this model must be between 0 and 511, not 600"),
    ],
)
def test_what_can_never_be_is_refused(llm: LLM, prompt, options, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        llm.embed(prompt, use_tqdm=False, **options)


def test_numbers_that_are_none_fail_one_request(either_model: Path) -> None:
    """One token's embedding is NaN, so that requests with it get NaN; all are in one batch."""
    core = LLM(either_model, **OPTIONS)._awake()._core
    model = core._executor._runner._model  # type: ignore[attr-defined]
    if isinstance(model, TorchModel):
        with torch.no_grad():
            model.model.model.embed_tokens.weight[9] = float("nan")  # type: ignore[attr-defined]
    else:
        model._weights.embedding[9] = float("nan")
    prompts = {"sound": [8] * 20, "sick": [9] * 20, "half": [8] * 9 + [9] + [8] * 9}
    options = {"mean": PoolingParams(pooling="mean"), "last": PoolingParams(), "draws": None}
    draw = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    for name, prompt in prompts.items():
        for kind, pooling in options.items():
            core.handle(
                AddRequest(
                    request_id=f"{name} {kind}",
                    prompt_token_ids=prompt,
                    sampling=draw,
                    pooling=pooling,
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


@pytest.fixture(scope="module")
def embedder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the form of Qwen3-Embedding: no head, and an end token behind each text."""
    folder = tmp_path_factory.mktemp("qwen3-embedding")
    config = transformers.Qwen3Config(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=16,
        vocab_size=509,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    torch.manual_seed(3)
    transformers.Qwen3Model(config).save_pretrained(folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    end = [("</s>", tokenizer.token_to_id("</s>"))]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=end
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("Transformer", "Pooling", "Normalize"):
        (folder / f"1_{name}").mkdir()
    modules = [
        {"path": "" if name == "Transformer" else f"1_{name}", "type": f"sentence.{name}"}
        for name in ("Transformer", "Pooling", "Normalize")
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    mode = {"word_embedding_dimension": 48, "pooling_mode_lasttoken": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(mode))
    return folder


def test_a_folder_made_for_embeddings(embedder: Path) -> None:
    llm = LLM(embedder, **OPTIONS)
    theirs = transformers.AutoModel.from_pretrained(embedder, dtype=torch.float32).eval()
    for output in llm.embed(TEXTS, use_tqdm=False):
        assert output.prompt_token_ids[-1] == llm.tokenizer.encode("")[0] == 2
        with torch.inference_mode():
            ids = torch.tensor([output.prompt_token_ids])
            state = theirs(ids).last_hidden_state[0, -1].numpy()
        assert output.embedding == pytest.approx(state / np.linalg.norm(state), abs=1e-4)
    with pytest.raises(InvalidRequestError, match="no head to generate tokens with"):
        llm.generate("a", use_tqdm=False)


def test_a_server_without_a_head(embedder: Path) -> None:
    """It computes embeddings; requests for text are refused with a message, and nothing runs."""

    async def main() -> None:
        engine = await AsyncEngine.start(
            EngineConfig.from_options(model=str(embedder), served_model_name="e", **OPTIONS)
        )
        app = build_app(engine, ServerSettings())
        vectors = await post(app, "/v1/embeddings", {"input": ["a", "b"]})
        usage = {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0}
        assert vectors["usage"] == usage
        assert [len(item["embedding"]) for item in vectors["data"]] == [48, 48]
        bodies = {
            "/v1/completions": {"prompt": "a"},
            "/v1/responses": {"input": "a"},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
        }
        for path, body in bodies.items():
            refused = await post(app, path, body)
            assert refused["error"]["type"] == "invalid_request_error"
        refused = await post(app, "/v1/completions", {"prompt": "a"})
        assert refused["error"]["param"] == "model"
        assert engine.metrics.num_sent == 2
        await engine.close()

    asyncio.run(main())


async def post(app: Starlette, path: str, body: object) -> Any:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.post(path, json=body)).json()
