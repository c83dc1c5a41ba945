from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.core.sampling_params import SamplingParams
from quire.kernels.cpu.native import num_threads, set_num_threads
from quire.sampling.host_logits import History
from quire.sampling.sampler import Sampler
from quire.sampling.sampling_state import SamplingState

# 45056 samples a case: 99.9 % power to see a shift of 0.02 in total variation on 16 tokens
REQUESTS, POSITIONS = 1408, 32


def random_logits(count: int, vocab: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, vocab, generator=generator) * scale


def expected_distribution(
    logits: np.ndarray, params: SamplingParams, prompt: list[int], answer: list[int]
) -> np.ndarray:
    """What the fields say, in float64: adjusted, tempered, cut, renormalised."""
    x = logits.astype(np.float64)
    for token, value in (params.logit_bias or {}).items():
        x[token] += value
    for token in {*prompt, *answer}:
        r = params.repetition_penalty
        x[token] = x[token] / r if x[token] > 0 else x[token] * r
    for token in set(answer):
        x[token] -= params.presence_penalty + params.frequency_penalty * answer.count(token)
    p = np.exp((x - x.max()) / params.temperature)
    order = np.argsort(-x, kind="stable")
    remaining = [i for i in order if p[i] >= params.min_p * p.max()]
    remaining = remaining[: params.top_k] if params.top_k > 0 else remaining
    running = p[remaining].cumsum()
    remaining = remaining[: int(np.searchsorted(running, params.top_p * running[-1])) + 1]
    cut = np.zeros_like(p)
    cut[remaining] = p[remaining]
    return cut / cut.sum()


def draw_many(
    logits: torch.Tensor, params: SamplingParams, prompt: list[int], answer: list[int]
) -> np.ndarray:
    """Tokens [REQUESTS, POSITIONS]: many seeds, the same logits and history at every position."""
    state = SamplingState(REQUESTS, len(logits))
    for row in range(REQUESTS):
        state.set_row(row, params, seed=row, eos_token_ids=[], bad_words_ids=[])
    tokens = []
    for position in range(POSITIONS):
        # one more token in the prompt, but none that is new to it
        known = np.array(prompt + prompt[:1] * position + answer, np.int32)
        filled = np.full(REQUESTS, len(known))
        output = Sampler(state).sample(
            logits.repeat(REQUESTS, 1).numpy(),
            list(range(REQUESTS)),
            History(np.tile(known, (REQUESTS, 1)), filled, filled - len(answer)),
        )
        assert not any(output.failed)
        tokens.append(output.token_ids)
    return np.array(tokens).T


CASES = {
    "plain": SamplingParams(),
    "cool": SamplingParams(temperature=0.4),
    "hot": SamplingParams(temperature=2.5),
    "top_k": SamplingParams(top_k=5),
    "top_p": SamplingParams(top_p=0.8),
    "min_p": SamplingParams(min_p=0.1),
    "top_k and top_p": SamplingParams(top_k=9, top_p=0.7, temperature=1.3),
    "all filters": SamplingParams(top_k=12, top_p=0.9, min_p=0.02, temperature=0.8),
    "presence": SamplingParams(presence_penalty=1.5),
    "frequency": SamplingParams(frequency_penalty=0.7, top_p=0.9),
    "repetition": SamplingParams(repetition_penalty=1.6),
    "bias": SamplingParams(logit_bias={3: 2.0, 5: -4.0, 0: 100.0}, repetition_penalty=1.2),
    "everything": SamplingParams(
        temperature=1.7,
        top_k=14,
        top_p=0.95,
        min_p=0.01,
        presence_penalty=-0.5,
        frequency_penalty=0.3,
        repetition_penalty=0.8,
        logit_bias={2: 1.0, 15: -1.0},
    ),
}


def test_draws_follow_the_distribution(chi_square_p, assert_holm) -> None:
    prompt, answer = [1, 4, 1], [2, 7, 2, 9, 2]
    p_values = {}
    for i, (name, params) in enumerate(CASES.items()):
        vocab = (16, 24, 64)[i % 3]
        logits = random_logits(1, vocab, seed=i, scale=1.5)[0]
        expected = expected_distribution(logits.numpy(), params, prompt, answer)
        tokens = draw_many(logits, params, prompt, answer)
        counts = np.bincount(tokens.ravel(), minlength=vocab)
        p_values[name] = chi_square_p(counts, expected * tokens.size)
    assert_holm(p_values)


def test_positions_and_neighbouring_seeds_are_independent(chi_square_p, assert_holm) -> None:
    logits = random_logits(1, 8, seed=4, scale=1.0)[0]
    p_values = {}
    for name, params in (("plain", SamplingParams()), ("top_p", SamplingParams(top_p=0.9))):
        p = expected_distribution(logits.numpy(), params, [1], [])
        tokens = draw_many(logits, params, [1], [])
        expected = np.outer(p, p).ravel()
        in_time = (tokens[:, :-1] * 8 + tokens[:, 1:]).ravel()
        in_seed = (tokens[:-1] * 8 + tokens[1:]).ravel()
        for kind, pairs in (("positions", in_time), ("seeds", in_seed)):
            counts = np.bincount(pairs, minlength=64)
            p_values[f"{name}, {kind}"] = chi_square_p(counts, expected * len(pairs))
    assert_holm(p_values)


def test_the_chi_square_sees_a_small_shift(chi_square_p) -> None:
    p = np.full(16, 1 / 16)
    shifted = p + np.where(np.arange(16) % 2, 0.02, -0.02) / 8  # total variation 0.02
    counts = np.random.default_rng(0).multinomial(45_056, shifted)
    assert chi_square_p(counts, p * 45_056) < 1e-3


def test_greedy_takes_the_highest_and_of_equals_the_lowest_id(sample) -> None:
    logits = random_logits(5, 700)
    logits[1, [33, 400, 699]] = 50.0
    logits[2] = 0.0
    logits[3] = -torch.inf
    logits[3, 123] = -7.0
    drawn = sample(logits, SamplingParams(temperature=0.0)).token_ids
    assert drawn == [int(logits[0].argmax()), 33, 0, 123, int(logits[4].argmax())]


MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(top_p=0.9, logprobs=5),
    SamplingParams(top_k=50, temperature=0.7),
    SamplingParams(min_p=0.05, presence_penalty=0.5, logprobs=0),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, logprobs=20),
    SamplingParams(top_p=0.999, temperature=3.0),
    SamplingParams(logit_bias={5: 3.0}, min_tokens=9, bad_words=["x"], logprobs=3),
    SamplingParams(top_k=200, top_p=0.95, frequency_penalty=0.4),
    SamplingParams(temperature=0.05, logprobs=1),
    SamplingParams(logprob_token_ids=[60, 3]),
]


def test_named_tokens_are_scored_instead_of_the_most_probable(sample) -> None:
    logits = random_logits(3, 300)
    params = [
        SamplingParams(temperature=0.0, logprob_token_ids=ids, logprobs=9)
        for ids in ([5, 299], [7])
    ]
    found = sample(logits, [*params, SamplingParams(temperature=0.0, logprobs=2)]).logprobs
    expected = torch.log_softmax(logits, -1)
    for i, named in enumerate(([5, 299], [7])):
        ids = [int(logits[i].argmax()), *named]
        assert (found[i].token_ids, found[i].rank) == (ids, 1)
        assert found[i].logprobs == pytest.approx(expected[i, ids].tolist(), abs=2e-6)
    assert len(found[2].token_ids) == 3


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocab", [100, 32_001])
def test_a_row_is_the_same_alone_and_in_any_batch(vocab: int, threads: int, sample) -> None:
    count = 3 * len(MIXED)
    logits = random_logits(count, vocab, seed=vocab)
    rng = np.random.default_rng(vocab)
    params = [MIXED[i % len(MIXED)] for i in range(count)]
    prompts = [rng.integers(0, vocab, 4).tolist() for _ in range(count)]
    answers = [rng.integers(0, vocab, i % 7).tolist() for i in range(count)]

    def run(index: list[int], rows: list[int]) -> list[tuple]:
        output = sample(
            logits[index],
            [params[i] for i in index],
            seeds=[1000 + i for i in index],
            prompts=[prompts[i] for i in index],
            answers=[answers[i] for i in index],
            rows=rows,
            eos_token_ids=[7],
            bad_words_ids=[[9], [1, 2]],
        )
        return list(zip(output.token_ids, output.logprobs, output.failed, strict=True))

    before = num_threads()
    set_num_threads(threads)
    try:
        alone = [run([i], [0])[0] for i in range(count)]
        for size in (2, 3, 8, 17, count):
            index = rng.permutation(count)[:size].tolist()
            rows = rng.permutation(count + 4)[:size].tolist()
            assert run(index, rows) == [alone[i] for i in index]
    finally:
        set_num_threads(before)


def test_the_seed_and_the_position_decide(sample) -> None:
    logits = torch.zeros(1, 1000).repeat(4, 1)
    same = sample(logits, SamplingParams(), seeds=[5, 5, 6, -5]).token_ids
    assert same[0] == same[1]
    assert len(set(same)) == 3
    # one token further on, in prompt or answer, it is the same position
    further = sample(logits, SamplingParams(), seeds=[5] * 4, answers=[[1], [2], [], []]).token_ids
    in_prompt = sample(logits, SamplingParams(), seeds=[5] * 4, prompts=[[1, 2]] * 4).token_ids
    assert further[0] == further[1] == in_prompt[0]
    assert further[0] != further[2] == same[0]


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("vocab", [100, 640])
def test_a_poisoned_row_fails_alone(vocab: int, poison: float, sample) -> None:
    clean = random_logits(len(MIXED), vocab)
    fine = sample(clean, MIXED)
    for row in range(len(MIXED)):
        logits = clean.clone()
        logits[row, vocab - 1] = poison
        output = sample(logits, MIXED)
        assert output.failed == [i == row for i in range(len(MIXED))]
        assert output.logprobs[row] is None
        for i in set(range(len(MIXED))) - {row}:
            assert output.token_ids[i] == fine.token_ids[i]
            assert output.logprobs[i] == fine.logprobs[i]


def test_the_model_fails_a_row_and_its_own_sampling_params_exhaust_it(sample) -> None:
    logits = random_logits(3, 70)
    logits[0] = -torch.inf
    logits[1] = -torch.inf
    logits[1, 11] = 1.0  # the only token, and it is banned
    output = sample(logits, SamplingParams(min_tokens=1), eos_token_ids=[11])
    assert output.failed == [True, False, False]
    assert output.exhausted == [False, True, False]


def test_masked_tokens_are_legal(sample) -> None:
    logits = torch.full((len(MIXED), 300), -torch.inf)
    logits[:, 100:103] = torch.tensor([0.5, 1.0, 0.0])
    output = sample(logits, MIXED)
    assert not any(output.failed)
    assert set(output.token_ids) <= {100, 101, 102}


def test_extreme_logits_are_drawn_from(sample) -> None:
    logits = torch.tensor([[3e38, -3e38, 2.9e38, 0.0]]).repeat(len(MIXED), 1)
    params = [p for p in MIXED if p.repetition_penalty == 1.0]
    output = sample(logits[: len(params)], params)
    assert output.failed == [False] * len(params)
    assert set(output.token_ids) == {0}


def test_no_rows(sample) -> None:
    assert sample(torch.zeros(0, 50), []).token_ids == []
