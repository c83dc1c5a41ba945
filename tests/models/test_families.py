"""Every family against transformers, in float32: the same logits however the work is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from checkpoints import CASES
from harness import PagedModel, PagedRequest, load_folder
from torch import Tensor

TOLERANCE = 1e-4
SPECIAL = ("phi3_longrope", "llama_dynamic_short")  # equal only in part; tests of their own below


@pytest.fixture(scope="module", params=[c for c in CASES if c not in SPECIAL])
def pair(request: pytest.FixtureRequest, checkpoint: Callable) -> tuple[PagedModel, Callable]:
    """Our model over a paged cache, and the reference: token ids to logits [T, V]."""
    folder, theirs = checkpoint(request.param)

    @torch.inference_mode()
    def oracle(token_ids: list[int]) -> Tensor:
        return theirs(torch.tensor([token_ids]), use_cache=False).logits[0]

    return PagedModel(*load_folder(folder), block_size=8), oracle


def tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(509, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().max().item() <= TOLERANCE
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def test_scores_are_not_trivial(pair: tuple[PagedModel, Callable]) -> None:
    """Checks the other tests: the reference logits must depend on distant and near tokens."""
    _, oracle = pair
    prompt = tokens(90)
    scores, changed = oracle(prompt), oracle([prompt[0] ^ 1, *prompt[1:]])
    assert scores.std() > 0.1
    assert (scores[8] - changed[8]).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("length", [70, 300])
def test_prefill_in_one_go(pair: tuple[PagedModel, Callable], length: int) -> None:
    model, oracle = pair
    prompt = tokens(length)
    assert_close(model.prefill(prompt), oracle(prompt))


@pytest.mark.parametrize("chunk", [1, 17])
def test_prefill_in_chunks(pair: tuple[PagedModel, Callable], chunk: int) -> None:
    model, oracle = pair
    prompt = tokens(60, seed=1)
    assert_close(model.prefill(prompt, chunk), oracle(prompt))


def test_requests_share_a_batch(pair: tuple[PagedModel, Callable]) -> None:
    """Prompts of 1 to 120 tokens advance together, at different paces, with mixed decodes."""
    model, oracle = pair
    requests = [PagedRequest(tokens(n, seed=n)) for n in (1, 2, 13, 64, 120)]
    paces = [1, 1, 5, 31, 40]
    logits: list[list[Tensor]] = [[] for _ in requests]
    while work := [
        (i, min(pace, len(r.token_ids) - r.num_computed))
        for i, (r, pace) in enumerate(zip(requests, paces, strict=True))
        if r.num_computed < len(r.token_ids)
    ]:
        for (i, _), part in zip(work, model.step([(requests[i], n) for i, n in work]), strict=True):
            logits[i].append(part)
    for request, parts in zip(requests, logits, strict=True):
        assert_close(torch.cat(parts), oracle(request.token_ids))


def test_greedy_continuation(pair: tuple[PagedModel, Callable]) -> None:
    model, oracle = pair
    known = tokens(40, seed=2)
    ours = model.greedy(known, 8)
    for token in ours:
        assert token == int(oracle(known)[-1].argmax())
        known.append(token)


@pytest.mark.parametrize(("max_model_len", "length"), [(64, 50), (512, 80)])
def test_longrope_takes_the_factors_of_the_longest_sequence(
    checkpoint: Callable, max_model_len: int, length: int
) -> None:
    folder, theirs = checkpoint("phi3_longrope")
    model = PagedModel(*load_folder(folder, max_model_len=max_model_len))
    prompt = tokens(length)
    with torch.inference_mode():
        expected = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
    assert_close(model.prefill(prompt), expected)


class TestDynamicRopeBeyondTheTrainedLength:
    """transformers defines it by the order of its calls, we by the position; see layers/rope.py."""

    def test_decoding_equals_transformers_with_a_cache(self, checkpoint: Callable) -> None:
        folder, theirs = checkpoint("llama_dynamic_short")
        model = PagedModel(*load_folder(folder))
        prompt = tokens(70)
        ours = torch.cat([model.prefill(prompt[:64]), *_decode(model, prompt, 64)])
        parts, cache = [], transformers.DynamicCache(config=theirs.config)
        with torch.inference_mode():
            for piece in (prompt[:64], *([token] for token in prompt[64:])):
                # by position, as versions of transformers name it differently
                step = theirs(torch.tensor([piece]), None, None, cache, use_cache=True)
                parts.append(step.logits[0])
        assert_close(ours, torch.cat(parts))

    def test_chunks_do_not_change_the_answer(self, checkpoint: Callable) -> None:
        folder, _ = checkpoint("llama_dynamic_short")
        model = PagedModel(*load_folder(folder))
        prompt = tokens(150)
        assert_close(model.prefill(prompt, 13), model.prefill(prompt))


def _decode(model: PagedModel, prompt: list[int], start: int) -> list[Tensor]:
    request = PagedRequest(prompt[:start])
    model.catch_up(request)
    request.token_ids = prompt
    return [model.catch_up(request, 1)]
