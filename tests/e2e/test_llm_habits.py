"""`LLM` as users of other engines call it, on the bundled model."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pprint
import re
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from child_process import run_to_end
from msgspec.structs import replace

from quire import LLM, BeamSearchParams, EngineArgs, PoolingParams, RequestOutput, SamplingParams
from quire.compat.method_names import METHODS
from quire.config import EngineConfig
from quire.core.reasoning_marks import ReasoningMarks
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.core.engine_core import EngineCore
from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend import loaded_model
from quire.engine.frontend.llm_engine import LLMEngine
from quire.engine.startup.start_engine import start_engine
from quire.errors import (
    CheckpointError,
    ConfigError,
    ContextLengthError,
    InvalidRequestError,
    NoEffectWarning,
    UserError,
)
from quire.model_folder import BUNDLED_FOLDER


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", threads=1, num_blocks=300, max_logprobs=-1)


def test_prompts_that_are_never_cut_need_no_other_setting() -> None:
    with LLM(enable_chunked_prefill=False, num_blocks=300) as whole:
        longest = whole.info.limits.max_model_len
        sampling = SamplingParams(temperature=0, max_tokens=1)
        (output,) = whole.generate([[5] * (longest - 1)], sampling, use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"


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


def test_reasoning_ends_with_its_budget(llm: LLM) -> None:
    def answers(budget: int | None, end: list[int], **params: Any) -> list[list[int]]:
        marks = ReasoningMarks(begin=[5], end=end, is_open=True)
        sampling = SamplingParams(
            max_tokens=8, thinking_token_budget=budget, reasoning_marks=marks, **params
        )
        outputs = llm.generate(["A list is"] * 2, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    plain = answers(None, [9, 9], temperature=0)[0]
    for budget in (0, 3):
        for tokens in answers(budget, [9, 8], temperature=0):
            assert tokens[: budget + 2] == [*plain[:budget], 9, 8]
        for tokens in answers(budget, [9, 8], seed=1, allowed_token_ids=[7, 11]):
            assert tokens[budget : budget + 2] == [9, 8]
            assert {7, 11} >= {*tokens[:budget], *tokens[budget + 2 :]}
    assert answers(3, plain[1:2], temperature=0)[0] == plain  # it ended by itself
    with pytest.raises(InvalidRequestError, match=r"^thinking_token_budget: how this model marks"):
        llm.generate("A list is", SamplingParams(thinking_token_budget=1), use_tqdm=False)
    none = SamplingParams(thinking_token_budget=0, max_tokens=2)
    assert llm.generate("A list is", none, use_tqdm=False)[0].outputs[0].token_ids
    assert llm.chat([{"role": "user", "content": "hi"}], none, use_tqdm=False)


@pytest.mark.parametrize("end", ["<think>\n", "", "<think>\n\n</think>\n\n"])
def test_a_constraint_is_for_what_follows_the_reasoning_of_a_chat(llm: LLM, end: str) -> None:
    """end: of the prompt: what opens the reasoning, nothing, or what switches it off."""
    template, is_open = "{{ messages[0]['content'] }}{{ end }}{# </think> #}", end == "<think>\n"
    choices = ["red", "blue shoes"]
    sampling = SamplingParams(
        temperature=0, max_tokens=40, structured_outputs={"choice": choices},
        thinking_token_budget=5,
    )  # fmt: skip
    chat: dict[str, Any] = {"chat_template": template, "end": end, "use_tqdm": False}
    (output,) = llm.chat(CHAT, sampling, **chat)
    thought, mark, answer = output.outputs[0].text.rpartition("</think>")
    assert (bool(thought), bool(mark)) == (is_open, is_open)
    assert (answer.strip() if is_open else answer) in choices
    sampling.temperature, sampling.thinking_token_budget = 1.0, None
    if end.endswith("</think>\n\n"):
        (output,) = llm.chat(CHAT, replace(sampling, n=9, seed=1), **chat)
        assert {answer.text for answer in output.outputs} <= {*choices}
    sampling.structured_outputs = StructuredOutputs(json="[]")
    with pytest.raises(InvalidRequestError, match=r"^structured_outputs\.json: must be a JSON sch"):
        llm.chat(CHAT, sampling, **chat)


def test_marks_of_reasoning_that_are_control_tokens_are_in_the_text_of_a_chat(
    tmp_path: Path,
) -> None:
    """Without a constraint, too: nothing else would separate the reasoning from the answer."""
    folder = shutil.copytree(BUNDLED_FOLDER / "quire-tiny-draft", tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text()
        text = text.replace("<|pad|>", "[THINK]").replace("<|system|>", "[/THINK]")
        (folder / name).write_text(text)
    with LLM(folder, num_blocks=64) as model:
        end = model.get_tokenizer().convert_tokens_to_ids("[/THINK]")
        bias = {end: -50.0}
        sampling = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logit_bias=bias)
        (plain,) = model.chat(CHAT, sampling, use_tqdm=False)
        sampling.thinking_token_budget = 2
        sampling.reasoning_marks = ReasoningMarks(begin=[0], end=[end], is_open=True)
        (output,) = model.chat(CHAT, sampling, use_tqdm=False)
        (raw,) = model.generate("A list is", sampling, use_tqdm=False)
    thought, mark, answer = output.outputs[0].text.partition("[/THINK]")
    assert plain.outputs[0].text.startswith(thought)
    assert (bool(thought), mark, bool(answer)) == (True, "[/THINK]", True)
    assert "[/THINK]" not in raw.outputs[0].text  # as skip_special_tokens says


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


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


GREEDY = SamplingParams(temperature=0, max_tokens=8)
CHAT = [{"role": "user", "content": "red runing shoes"}]


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


def test_the_tokenizer_has_the_methods_of_transformers(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)
    assert tokenizer.encode(text) == ids == tokenizer(text)["input_ids"]
    assert (tokenizer(text).input_ids, tokenizer(text).attention_mask) == (ids, [1] * len(ids))
    assert tokenizer.convert_ids_to_tokens(tokenizer.pad_token_id) == tokenizer.pad_token
    assert tokenizer.decode(ids) == text
    encoded = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)
    assert encoded == tokenizer(text)
    assert tokenizer(["a", "b c"], return_tensors=None)["attention_mask"] == [[1], [1, 1]]
    assert tokenizer(text, return_tensors="pt")["input_ids"].shape == (1, len(ids))
    assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids)) == ids
    assert tokenizer.convert_tokens_to_ids(tokenizer.eos_token) == tokenizer.eos_token_id
    assert len(tokenizer) == max(tokenizer.get_vocab().values()) + 1
    assert texts(llm.generate(text, GREEDY, use_tqdm=False)) == texts(
        llm.chat(CHAT, GREEDY, use_tqdm=False)
    )


def test_another_chat_template(llm: LLM) -> None:
    template = "{{ messages[0].content }} {{ word }}"
    given = llm.chat(
        CHAT, GREEDY, chat_template=template, chat_template_kwargs={"word": "blue"}, use_tqdm=False
    )
    plain = llm.generate("red runing shoes blue", GREEDY, use_tqdm=False)
    assert given[0].prompt_token_ids == plain[0].prompt_token_ids


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


def test_an_engine_that_sleeps_and_ends() -> None:
    with LLM(dtype="float32", threads=1, num_blocks=64) as llm:
        before = texts(llm.generate("A list is", GREEDY, use_tqdm=False))
        assert llm.generate("A list is " * 9, GREEDY, use_tqdm=False)
        assert llm.generate("A list is " * 9, GREEDY, use_tqdm=False)[0].num_cached_tokens > 0
        assert llm.reset_prefix_cache()
        assert llm.generate("A list is " * 9, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
        with pytest.raises(InvalidRequestError, match=r"^level: must be 1 or 2, not 0"):
            llm.sleep(level=0)
        assert not llm.is_sleeping()
        llm.sleep(level=2)
        assert llm.is_sleeping()
        with pytest.raises(
            InvalidRequestError, match=r"^tags: must be weights or kv_cache, not 'all'"
        ):
            llm.wake_up(tags=["all"])
        with pytest.raises(ConfigError, match=r"sleeps; call wake_up\(\)"):
            llm.generate("A list is", GREEDY, use_tqdm=False)
        llm.wake_up(tags=["weights"])
        llm.wake_up(tags=["kv_cache"])
        assert texts(llm.generate("A list is", GREEDY, use_tqdm=False)) == before
    with pytest.raises(ConfigError, match="closed"):
        llm.embed("A list is", use_tqdm=False)
    with pytest.raises(ConfigError, match="closed"):
        llm.wake_up()


def test_requests_are_checked_by_the_limits_of_the_engine_that_woke_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LLM(dtype="float32", threads=1, num_blocks=64) as llm:
        bad_words = SamplingParams(max_tokens=1, bad_words=["list"])
        llm.generate("A", bad_words, use_tqdm=False)
        llm.sleep()

        def start_smaller(config: EngineConfig) -> tuple[EngineCore, EngineInfo]:
            core, info = start_engine(config)
            return core, replace(info, limits=replace(info.limits, max_model_len=8))

        monkeypatch.setattr(loaded_model, "start_engine", start_smaller)
        llm.wake_up()
        with pytest.raises(ContextLengthError):
            llm.generate("A list is " * 9, GREEDY, use_tqdm=False)
        inputs = llm._inputs
        inputs.set_limits(replace(llm.info.limits, vocab_size=3))
        (request,) = inputs.prepare("a", [1], bad_words).messages
        assert request.bad_words_ids == [], "ids that the model does not have"


def test_a_close_does_not_wait_for_the_call_of_another_thread() -> None:
    llm = LLM(dtype="float32", threads=1, num_blocks=64)
    params = SamplingParams(max_tokens=900, ignore_eos=True)
    runs, errors = threading.Event(), list[Exception]()

    def ask() -> None:
        try:
            llm.generate("A list is", params, on_output=lambda _: runs.set())
        except ConfigError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert runs.wait(60)
    llm.close()
    asking.join(60)
    assert ["closed" in str(error) for error in errors] == [True]


def test_an_interrupted_close_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    llm = LLM(dtype="float32", threads=1, num_blocks=64)
    monkeypatch.setattr(loaded_model, "_free_memory", interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.close()
    with pytest.raises(ConfigError, match="closed"):
        llm.generate("A list is", GREEDY, use_tqdm=False)


FORKS = """
import os, signal, sys
from quire import LLM, SamplingParams

options = {"dtype": "float16", "threads": 2, "num_blocks": 64}  # with PyTorch and its OpenMP
llm, params = LLM(**options), SamplingParams(max_tokens=1)
prompts = ["a list is " * 60] * 8
answers = llm.generate(prompts, params, use_tqdm=False)
if child := os.fork():
    signal.alarm(60)
    assert os.waitpid(child, 0)[1] == 0
    assert len(llm.generate(prompts, params, use_tqdm=False)) == 8
    sys.exit()
signal.alarm(30)
for call in (
    lambda: llm.generate(prompts, params, use_tqdm=False),
    lambda: llm.stats, llm.sleep, llm.wake_up, llm.close,
    lambda: LLM(**options),
):
    try:
        call()
        print("done")
    except Exception as error:
        print(type(error).__name__, error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")
def test_calls_in_a_forked_process_are_refused() -> None:
    """It would wait for threads that it does not have."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = run_to_end(command)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 6), done
    fix = r"; make an LLM in each process that uses one, and none before .*get_context\('spawn'\)$"
    for line in lines[:-1]:
        assert re.match("ConfigError this LLM was made in the process .*" + fix, line), line
    assert re.match("ConfigError PyTorch has run .*in the process .*" + fix, lines[-1]), lines


FORKED_TORCH = """
import os, threading, time, torch
torch.set_num_threads(2)
if RUNS:
    torch.ones(1 << 20).exp_()
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if RUNS_AGAIN:
    torch.ones(1 << 20).exp_()
if HAS_THREAD:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
from quire import LLM
LLM(dtype="float16", threads=2, num_blocks=64)  # with PyTorch and its OpenMP
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is a fork")
@pytest.mark.parametrize(
    ("runs", "has_thread", "runs_again"),
    [(False, False, False), (False, True, True), (True, False, False), (True, True, False)],
)
def test_a_fork_of_a_program_that_has_run_pytorch_is_refused(
    runs: bool, has_thread: bool, runs_again: bool
) -> None:
    """runs_again: PyTorch runs in the fork alone."""
    code = f"RUNS, HAS_THREAD, RUNS_AGAIN = {runs}, {has_thread}, {runs_again}" + FORKED_TORCH
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = run_to_end(command)
    assert done.returncode == runs, done
    assert ("ConfigError: PyTorch has run in the process that" in done.stderr) == runs, done


def test_answers_where_the_system_starts_no_more_threads(
    no_thread_left: Callable[[], AbstractContextManager[None]], tmp_path: Path
) -> None:
    with no_thread_left(), LLM(device="cpu", prepared_weights=str(tmp_path)) as llm:
        (output,) = llm.generate("Hello", SamplingParams(max_tokens=3))
        assert len(output.outputs[0].token_ids) == 3
    assert [*tmp_path.iterdir()] == []  # nobody could write beside


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


def test_the_size_of_a_models_files_is_known(llm: LLM) -> None:
    files = (BUNDLED_FOLDER / "quire-tiny").glob("*.safetensors")
    assert llm.info.file_bytes == sum(file.stat().st_size for file in files) > 0


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


def test_arguments_of_other_engines(llm: LLM) -> None:
    plain = texts(llm.generate("A list is", GREEDY, use_tqdm=False))
    assert texts(llm.generate("A list is", GREEDY, use_tqdm=False, lora_request=None)) == plain
    with pytest.raises(InvalidRequestError, match=r"^lora_request 'x' is not supported: .*; merge"):
        llm.chat(CHAT, GREEDY, use_tqdm=False, lora_request="x")
    assert texts(llm.chat(CHAT, GREEDY, False)) == texts(llm.chat(CHAT, GREEDY, use_tqdm=False))
    with pytest.warns(NoEffectWarning, match="content_format has no effect"):
        llm.chat(CHAT, GREEDY, use_tqdm=False, chat_template_content_format="openai")


# of vLLM's methods that take no prompts: (what asks for nothing, what is refused or a warning)
VLLM_ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reset_prefix_cache": (
        {"reset_running_requests": False, "reset_connector": False},
        {"reset_running_requests": True, "reset_connector": True},
    ),
    "get_tokenizer": ({"lora_request": None}, {"lora_request": "x"}),
    "sleep": ({"level": 1, "mode": "abort"}, {"level": 3, "mode": "keep"}),
    "wake_up": ({"tags": None}, {"tags": ["x"]}),
}


@pytest.mark.parametrize("cls", [LLM, LLMEngine])
def test_methods_without_prompts_know_vllms_arguments(cls: type) -> None:
    config = EngineConfig.from_options(model="quire-tiny-draft")
    llm = LLM("quire-tiny-draft") if cls is LLM else LLMEngine(config)
    for method, (neutral, asking) in VLLM_ARGUMENTS.items():
        call = getattr(llm, method)
        for name, value in asking.items():
            with pytest.raises((InvalidRequestError, NoEffectWarning), match=name):
                call(**{name: value})
        call(**neutral)
    assert llm.reset_prefix_cache() is True


def test_prompts_under_their_older_names(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("A list is")
    plain = texts(llm.generate("A list is", GREEDY, use_tqdm=False))
    for call in (
        {"prompt_token_ids": [ids]},
        {"prompt_token_ids": ids},
        {"inputs": "A list is"},
        {"prompt": "A list is"},
        {"text": "A list is"},
        {"input_ids": ids},
    ):
        assert texts(llm.generate(sampling_params=GREEDY, use_tqdm=False, **call)) == plain
    vector = llm.embed("A list is", use_tqdm=False)[0].embedding
    for method in (llm.embed, llm.encode):
        (output,) = method(prompt_token_ids=[ids], use_tqdm=False, lora_request=None)
        np.testing.assert_array_equal(output.embedding, vector)
    (score,) = llm.score(text_1="A list is", text_2="A list is", use_tqdm=False)
    (other,) = llm.score(query="A list is", documents=["A list is"], use_tqdm=False)
    assert other.outputs.score == score.outputs.score
    with pytest.raises(InvalidRequestError, match=r"^querry: unknown option; remove it"):
        llm.score(querry="A list is")
    assert score.outputs.score == pytest.approx(1, abs=1e-5)
    with pytest.raises(InvalidRequestError, match=r"^prompt_token_ids: it is the same as prompts"):
        llm.generate("A list is", GREEDY, prompt_token_ids=[ids])
    with pytest.raises(InvalidRequestError, match=r"^prompt: must be text, token ids or a list"):
        llm.generate()
    with pytest.raises(InvalidRequestError, match=r"^promt: unknown option; remove it"):
        llm.generate(promt="A list is")
    with pytest.raises(InvalidRequestError, match=r"^params .*; use sampling_params$"):
        llm.generate("A list is", params=GREEDY)
    for name, same_as in (("prompt_token_ids", "prompts"), ("text_1", "data_1")):
        problem = f"^{name}: it is another name of {same_as}, which this call does not have"
        with pytest.raises(InvalidRequestError, match=problem):
            llm.chat(CHAT, GREEDY, **{name: ids})
    with pytest.raises(InvalidRequestError, match=r"^text_1: it is another name of data_1"):
        llm.generate("A list is", GREEDY, text_1="A list is")
    for name, value in (("response_format", {"type": "json_object"}), ("stream", True)):
        with pytest.raises(InvalidRequestError, match=f"^{name} .*is not supported: .*; use "):
            llm.chat(CHAT, GREEDY, **{name: value})
    assert llm.chat(CHAT, GREEDY, use_tqdm=False, stream=False, response_format={"type": "text"})
    with pytest.raises(InvalidRequestError, match=r"^tokenization_kwargs: must be a map, not 3"):
        llm.chat(CHAT, GREEDY, tokenization_kwargs=3)


@pytest.mark.parametrize("method", ["generate", "embed", "encode", "score"])
def test_each_call_knows_other_engines_arguments(llm: LLM, method: str) -> None:
    prompts = ["A list is"] * (2 if method == "score" else 1)
    call = partial(getattr(llm, method), *prompts, use_tqdm=False)
    assert call(lora_request=None, mm_processor_kwargs={}, tokenization_kwargs={})
    assert len(call(truncate_prompt_tokens=1)[0].prompt_token_ids) == len(prompts)
    for name, value in (("lora_request", "x"), ("chat_template", "{{ x }}"), ("priority", [1])):
        with pytest.raises(InvalidRequestError, match=f"^{name} .* is not supported: .*; "):
            call(**{name: value})
    with pytest.raises(InvalidRequestError, match=r"^colour: unknown option; remove it"):
        call(colour="red")


def test_conversations_are_cut_at_their_start(llm: LLM) -> None:
    whole = llm.chat(CHAT, GREEDY, use_tqdm=False, tokenization_kwargs=None)[0].prompt_token_ids
    for options in (
        {"truncate_prompt_tokens": 3},
        {"tokenization_kwargs": {"truncation_side": "left", "truncate_prompt_tokens": 3}},
    ):
        (output,) = llm.chat(CHAT, GREEDY, use_tqdm=False, **options)
        assert output.prompt_token_ids == whole[-3:]
    long = [{"role": "user", "content": "list " * 9999}]
    (output,) = llm.chat(long, GREEDY, use_tqdm=False, truncate_prompt_tokens=-1)
    assert len(output.prompt_token_ids) == llm.info.limits.max_model_len - 8
    with pytest.raises(InvalidRequestError, match=r"^truncate_prompt_tokens: must be"):
        llm.chat(CHAT, GREEDY, use_tqdm=False, truncate_prompt_tokens=0)


def test_engine_args_make_an_llm() -> None:
    with LLM.from_engine_args(EngineArgs(model="quire-tiny", max_model_len=64)) as llm:
        assert llm.info.limits.max_model_len == 64


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


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_are_not_there_say_what_to_use(llm: LLM, name: str) -> None:
    assert not hasattr(llm, name)
    with pytest.raises(AttributeError, match=re.escape(METHODS[name])):
        getattr(llm, name)


def test_a_prompt_is_not_cut_for_an_answer_that_never_fits(llm: LLM) -> None:
    prompt = "a b c d " * 100
    params = SamplingParams(max_tokens=10**6, ignore_eos=True)
    whole = len(llm.generate(prompt, GREEDY, use_tqdm=False)[0].prompt_token_ids)
    (output,) = llm.generate(prompt, params, truncate_prompt_tokens=-1, use_tqdm=False)
    assert len(output.prompt_token_ids) == whole > 100
    assert whole + len(output.outputs[0].token_ids) == llm.info.limits.max_model_len


def test_a_template_may_be_a_file(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("x {{ messages[0].content }}")
    (output,) = llm.chat(CHAT, GREEDY, chat_template=str(file), use_tqdm=False)
    (same,) = llm.chat(CHAT, GREEDY, chat_template=file.read_text(), use_tqdm=False)
    assert output.prompt_token_ids == same.prompt_token_ids
    (same,) = llm.chat(CHAT, GREEDY, chat_template=file, use_tqdm=False)
    assert output.prompt_token_ids == same.prompt_token_ids
    with pytest.raises(ConfigError, match=r"^chat_template '/nope' cannot be read"):
        llm.chat(CHAT, GREEDY, chat_template="/nope", use_tqdm=False)


def test_a_template_variable_that_is_not_read_is_a_warning(llm: LLM) -> None:
    hello = [{"role": "user", "content": "hello"}]
    with pytest.warns(NoEffectWarning, match="'enable_thinking' has no effect"):
        llm.chat(hello, SamplingParams(max_tokens=1), use_tqdm=False, enable_thinking=True)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda llm: llm.chat(CHAT, chat_template=3), "^chat_template must be a file, or the"),
        (
            lambda llm: llm.chat(CHAT, chat_template="a\0"),
            r"^chat_template 'a\\x00' cannot be read",
        ),
        (
            lambda llm: llm.chat(CHAT, chat_template_kwargs=3),
            "^chat_template_kwargs: must be a map",
        ),
        (lambda llm: llm.embed("a", pooling_params={}), "^pooling_params: must be PoolingParams"),
        (
            lambda llm: llm.score("a", "b", pooling_params=GREEDY),
            r"PoolingParams\(...\), not Sampl",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(
    call: Callable[[LLM], object], text: str, llm: LLM
) -> None:
    with pytest.raises(UserError, match=text):
        call(llm)
