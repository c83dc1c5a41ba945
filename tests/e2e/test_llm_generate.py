"""Prompts, answers, log-probabilities, embeddings and beams of `LLM`, on the bundled model."""

from __future__ import annotations

import dataclasses
import json
import math
import pprint
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from llm_calls import GREEDY, texts
from msgspec.structs import replace

from quire import LLM, BeamSearchParams, PoolingParams, SamplingParams
from quire.errors import CheckpointError, InvalidRequestError


def test_prompts_that_are_never_cut_need_no_other_setting() -> None:
    with LLM(enable_chunked_prefill=False, num_blocks=300) as whole:
        longest = whole.info.limits.max_model_len
        sampling = SamplingParams(temperature=0, max_tokens=1)
        (output,) = whole.generate([[5] * (longest - 1)], sampling, use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"


def test_prompts_of_other_kinds(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("A list is")
    kinds: list[Any] = [
        "A list is", {"prompt": "A list is"}, {"prompt_token_ids": ids}, tuple(ids), np.array(ids),
        torch.tensor(ids), {"prompt_token_ids": torch.tensor(ids), "multi_modal_data": None},
    ]  # fmt: skip
    found = texts(llm.generate((kind for kind in kinds), GREEDY, use_tqdm=False))
    assert len(set(found)) == 1
    assert texts(llm.generate({"prompt": "A list is"}, GREEDY, use_tqdm=False)) == found[:1]
    with pytest.raises(InvalidRequestError, match=r"^prompt\[1\]\.multi_modal_data: not supported"):
        llm.generate(["a", {"prompt": "b", "multi_modal_data": {"image": 1}}], use_tqdm=False)


def test_prompts_are_cut_at_their_start(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("A list is a list of things")
    for prompt in ("A list is a list of things", ids):
        output = llm.generate(prompt, GREEDY, truncate_prompt_tokens=3, use_tqdm=False)[0]
        assert output.prompt_token_ids == ids[-3:]
    longest = llm.info.limits.max_model_len
    for count, options in (
        (longest - 8, {"truncate_prompt_tokens": -1}),
        (9, {"tokenization_kwargs": {"truncate_prompt_tokens": 9, "add_special_tokens": False}}),
        (longest - 8, {"tokenization_kwargs": {"truncation": True}}),
        (9, {"tokenization_kwargs": {"truncation": "longest_first", "max_length": 9}}),
        (7, {"tokenization_kwargs": {"truncation": True}, "truncate_prompt_tokens": 7}),
    ):
        output = llm.generate("list " * 9999, GREEDY, use_tqdm=False, **options)[0]
        assert len(output.prompt_token_ids) == count
    vector = llm.embed("list " * 9999, truncate_prompt_tokens=5, use_tqdm=False)[0]
    assert len(vector.prompt_token_ids) == 5
    for wrong in ({"truncate_prompt_tokens": 0}, {"tokenization_kwargs": {"truncation": 3}}):
        with pytest.raises(InvalidRequestError, match=r"^trunca.*(must be|; use truncate_prompt)"):
            llm.generate("a", use_tqdm=False, **wrong)


def test_a_prompt_is_not_cut_for_an_answer_that_never_fits(llm: LLM) -> None:
    prompt = "a b c d " * 100
    params = SamplingParams(max_tokens=10**6, ignore_eos=True)
    whole = len(llm.generate(prompt, GREEDY, use_tqdm=False)[0].prompt_token_ids)
    (output,) = llm.generate(prompt, params, truncate_prompt_tokens=-1, use_tqdm=False)
    assert len(output.prompt_token_ids) == whole > 100
    assert whole + len(output.outputs[0].token_ids) == llm.info.limits.max_model_len


def test_default_params_are_those_of_generation_config(tmp_path: Path) -> None:
    asked = {"temperature": 0.0, "max_new_tokens": 3, "eos_token_id": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    llm = LLM(num_blocks=64, generation_config=tmp_path)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=3)
    output = llm.generate("A list is", use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) == 3
    assert LLM(num_blocks=64).get_default_sampling_params() == SamplingParams()
    (tmp_path / "generation_config.json").write_text('{"top_p": 3}')
    with pytest.raises(CheckpointError, match=r"generation_config\.json: top_p: must be"):
        LLM(num_blocks=64, generation_config=tmp_path)


def test_all_log_probabilities(llm: LLM) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=2, logprobs=-1, prompt_logprobs=-1)
    output = llm.generate("A list is", sampling, use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    assert output.outputs[0].logprobs is not None
    for position in (*output.prompt_logprobs[1:], *output.outputs[0].logprobs):
        assert position is not None
        assert sorted(position) == list(range(llm.info.limits.vocab_size))
        assert sum(math.exp(score.logprob) for score in position.values()) == pytest.approx(1)


def test_log_probabilities_of_named_tokens(llm: LLM) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=2, logprobs=-1)
    whole = llm.generate("A list is", sampling, use_tqdm=False)[0].outputs[0]
    sampling.logprob_token_ids = [7, 1000]
    output = llm.generate("A list is", sampling, use_tqdm=False)[0].outputs[0]
    for token_id, all_of_them, some in zip(
        whole.token_ids, whole.logprobs or (), output.logprobs or (), strict=True
    ):
        assert list(some) == [token_id, 7, 1000]
        assert [score.rank for score in some.values()] == [1, None, None]
        for named, score in some.items():
            assert score.logprob == pytest.approx(all_of_them[named].logprob, abs=1e-5)


def test_log_probabilities_have_a_limit(llm: LLM) -> None:
    few = LLM(num_blocks=64)
    with pytest.raises(InvalidRequestError, match=r"^logprobs: -1 \(all \d+\) is above max_log"):
        few.generate("A list is", SamplingParams(logprobs=-1), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"^prompt_logprobs: 9999 is above max_logprobs"):
        llm.generate("A list is", SamplingParams(prompt_logprobs=9999), use_tqdm=False)


def test_token_ids_alone(llm: LLM) -> None:
    plain, bare = (
        llm.generate(
            "A list is", SamplingParams(temperature=0, detokenize=detokenize), use_tqdm=False
        )[0].outputs[0]
        for detokenize in (True, False)
    )
    assert plain.text
    assert (bare.text, bare.token_ids) == ("", plain.token_ids)


def test_tokens_in_and_tokens_out(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("A list is")
    bare = LLM(dtype="float32", threads=1, num_blocks=64, skip_tokenizer_init=True)
    sampling = SamplingParams(temperature=0, max_tokens=8, logprobs=1)
    output, plain = (
        each.generate([ids], sampling, use_tqdm=False)[0].outputs[0] for each in (bare, llm)
    )
    assert (output.text, output.token_ids) == ("", plain.token_ids)
    assert len(bare.embed([ids], use_tqdm=False)[0].embedding) == bare.info.limits.hidden_size
    for params, text in (
        (SamplingParams(stop="x"), "^stop: answers have no text here"),
        (SamplingParams(bad_words="x"), "^bad_words: this engine has no tokenizer"),
        (
            SamplingParams(structured_outputs={"regex": "a"}),
            "regex: answers have no text here",
        ),
    ):
        with pytest.raises(InvalidRequestError, match=text):
            bare.generate([ids], params, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"^prompt: this engine has no tokenizer; use"):
        bare.generate("text", use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"^messages: this engine has no tokenizer; use"):
        bare.chat([{"role": "user", "content": "text"}], use_tqdm=False)


def test_the_outputs_other_scripts_read(llm: LLM) -> None:
    output = llm.generate("A list is", GREEDY, use_tqdm=False)[0]
    metrics = output.metrics
    assert output.finished
    assert output.outputs[0].finished()
    assert metrics.first_token_time is not None
    assert metrics.finished_time is not None
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time
    vector = llm.embed("A list is", use_tqdm=False)[0]
    assert vector.outputs.embedding == vector.embedding.tolist()
    assert vector.outputs.hidden_size == llm.info.limits.hidden_size
    encoded = llm.encode("A list is", use_tqdm=False)[0]
    np.testing.assert_array_equal(encoded.outputs.data, vector.embedding)
    short = llm.embed("A list is", pooling_params=PoolingParams(dimensions=8), use_tqdm=False)[0]
    assert len(short.embedding) == 8


def test_outputs_are_data_classes_to_those_who_ask(llm: LLM) -> None:
    (output,) = llm.generate("A list is", replace(GREEDY, logprobs=2), use_tqdm=False)
    assert dataclasses.is_dataclass(output)
    found, answer = dataclasses.asdict(output), output.outputs[0]
    assert [*found] == [field.name for field in dataclasses.fields(output)]
    assert (found["prompt"], found["outputs"][0]["text"]) == ("A list is", answer.text)
    assert answer.logprobs is not None
    for stored, given in zip(found["outputs"][0]["logprobs"], answer.logprobs, strict=True):
        assert {i: msgspec.to_builtins(each) for i, each in given.items()} == stored
    assert dataclasses.replace(answer, text="other").token_ids == answer.token_ids
    assert pprint.pformat([output] * 2).count("RequestOutput(") == 2
    (vector,) = llm.embed("A list is", use_tqdm=False)
    np.testing.assert_array_equal(dataclasses.asdict(vector)["embedding"], vector.embedding)
    (score,) = llm.score("a b", "a b", use_tqdm=False)
    assert dataclasses.asdict(score)["outputs"] == {"score": score.outputs.score}


def test_scores_are_cosines(llm: LLM) -> None:
    texts = ["A list is", "A list is", "red shoes"]
    same, other = llm.score(texts[0], texts[1:], use_tqdm=False)
    assert same.outputs.score == pytest.approx(1, abs=1e-5)
    assert other.outputs.score < 0.999
    pair = llm.score([texts[0], texts[2]], [texts[2], texts[2]], use_tqdm=False)
    assert pair[0].outputs.score == pytest.approx(other.outputs.score, abs=1e-5)
    with pytest.raises(InvalidRequestError, match=r"^data_2: must have as many texts as data_1"):
        llm.score(texts[:2], texts, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="no classification head"):
        llm.classify("a")


def test_a_beam_search_has_one_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=6, ignore_eos=True)
    llm.beam_search(["A list is", "A"], params, use_tqdm=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines if line] == ["tokens"]
    assert " 6/6 " in lines[-1]


def test_one_beam_is_the_greedy_answer(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
    (answer,) = llm.generate("A list is", greedy, use_tqdm=False)
    params = BeamSearchParams(beam_width=1, max_tokens=6, ignore_eos=True)
    (output,) = llm.beam_search("A list is", params)
    (beam,) = output.sequences
    assert beam.tokens == answer.prompt_token_ids + answer.outputs[0].token_ids
    assert beam.cum_logprob == pytest.approx(answer.outputs[0].cumulative_logprob)
    assert beam.text == "A list is" + answer.outputs[0].text
