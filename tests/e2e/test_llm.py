"""The offline API (`LLM`) on a small random model, compared with transformers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, RequestOutput, SamplingParams, processes
from quire.core.messages import AddRequest, EngineMessage
from quire.errors import (
    CheckpointError,
    ConfigError,
    ContextLengthError,
    EngineError,
    InvalidRequestError,
)
from quire.tokenizer.detokenizer import Detokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), dtype="float32", threads=1, num_blocks=200)


@pytest.fixture(scope="module")
def oracle(tiny_model: Path):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


def reference_logits(oracle, token_ids: list[int]) -> torch.Tensor:
    """float32 [T, V]"""
    with torch.inference_mode():
        return oracle(torch.tensor([token_ids])).logits[0]


def test_greedy_tokens_are_those_of_transformers(llm: LLM, oracle) -> None:
    prompts = ["a", "The quick brown fox", "naïve café ☕ 東京" * 5]
    for prompt, output in zip(prompts, llm.generate(prompts, GREEDY, use_tqdm=False), strict=True):
        ids = llm.tokenizer.encode(prompt)
        assert output.prompt == prompt
        assert output.prompt_token_ids == ids
        expected = oracle.generate(
            torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=None
        )
        assert output.outputs[0].token_ids == expected[0, len(ids) :].tolist()
        assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)
        assert output.outputs[0].finish_reason == "length"
        assert output.finished


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [[3 + i] * (1 + (7 * i) % 40) for i in range(30)]
    sampling = [SamplingParams(max_tokens=1 + i % 9, seed=i, ignore_eos=True) for i in range(30)]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    assert [o.prompt_token_ids for o in outputs] == prompts
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1 + i % 9 for i in range(30)]


def test_calls_from_several_threads_alternate(llm: LLM) -> None:
    prompts = [[5, 6, 7 + i] for i in range(6)]
    alone = [llm.generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in prompts]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda prompt: llm.generate([prompt], GREEDY), prompts))
    assert [answer[0].outputs[0].token_ids for answer in found] == alone


def test_one_prompt_needs_no_list(llm: LLM) -> None:
    assert len(llm.generate("text", GREEDY, use_tqdm=False)) == 1
    assert len(llm.generate([5, 6, 7], GREEDY, use_tqdm=False)) == 1
    assert llm.generate([], GREEDY, use_tqdm=False) == []


def test_logprobs_are_exact(llm: LLM, oracle) -> None:
    sampling = SamplingParams(temperature=0.9, seed=3, max_tokens=8, logprobs=4, ignore_eos=True)
    (output,) = llm.generate([list(range(5, 40))], sampling, use_tqdm=False)
    answer = output.outputs[0]
    assert answer.logprobs is not None
    ids = output.prompt_token_ids + answer.token_ids
    expected = reference_logits(oracle, ids).log_softmax(-1)
    for index, (token_id, position) in enumerate(
        zip(answer.token_ids, answer.logprobs, strict=True)
    ):
        row = expected[len(output.prompt_token_ids) - 1 + index]
        assert next(iter(position)) == token_id
        assert position[token_id].rank == int((row > row[token_id]).sum()) + 1
        for candidate, entry in position.items():
            assert entry.logprob == pytest.approx(row[candidate].item(), abs=1e-4)
        assert set(row.topk(4).indices.tolist()) <= set(position)
    total = sum(
        expected[len(output.prompt_token_ids) - 1 + i, t].item()
        for i, t in enumerate(answer.token_ids)
    )
    assert answer.cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_prompt_logprobs_are_exact_though_the_prompt_is_cached(llm: LLM, oracle) -> None:
    prompt = [3 + (7 * i) % 200 for i in range(100)]
    llm.generate([prompt], GREEDY, use_tqdm=False)
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    (output,) = llm.generate([prompt], sampling, use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    expected = reference_logits(oracle, prompt).log_softmax(-1)
    for index, position in enumerate(output.prompt_logprobs[1:], start=1):
        assert position is not None
        found = position[prompt[index]].logprob
        assert found == pytest.approx(expected[index - 1, prompt[index]].item(), abs=1e-4)


def test_several_answers_differ_and_are_repeatable(llm: LLM) -> None:
    sampling = SamplingParams(n=4, temperature=1.5, seed=5, max_tokens=12, ignore_eos=True)
    first, second = (llm.generate("Hello", sampling, use_tqdm=False)[0] for _ in range(2))
    assert [o.index for o in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(o.token_ids) for o in first.outputs}) == 4
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in second.outputs]
    alone = SamplingParams(temperature=1.5, seed=5, max_tokens=12, ignore_eos=True)
    (single,) = llm.generate("Hello", alone, use_tqdm=False)
    assert single.outputs[0].token_ids == first.outputs[0].token_ids


def test_stop_strings_cut_the_text_and_the_tokens(llm: LLM) -> None:
    free = llm.generate("stop here", GREEDY, use_tqdm=False)[0].outputs[0]
    middle = len(free.text) // 2
    stop = free.text[middle : middle + 3]
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop=["☃☃", stop])
    output = llm.generate("stop here", sampling, use_tqdm=False)[0].outputs[0]
    assert output.text == free.text[: free.text.index(stop)]
    assert output.finish_reason == "stop"
    assert output.stop_reason == stop
    assert len(output.token_ids) < len(free.token_ids)
    assert llm.stats.num_running == 0


def test_stop_token_is_in_the_ids_and_not_in_the_text(llm: LLM) -> None:
    free = llm.generate("more", GREEDY, use_tqdm=False)[0].outputs[0]
    stop_id = free.token_ids[5]
    sampling = SamplingParams(
        temperature=0.0, max_tokens=24, ignore_eos=True, stop_token_ids=[stop_id]
    )
    output = llm.generate("more", sampling, use_tqdm=False)[0].outputs[0]
    length = free.token_ids.index(stop_id) + 1
    assert output.token_ids == free.token_ids[:length]
    assert output.text == llm.tokenizer.decode(free.token_ids[: length - 1])
    assert (output.finish_reason, output.stop_reason) == ("stop", stop_id)


def test_bad_words_never_appear(llm: LLM) -> None:
    free = llm.generate("words", GREEDY, use_tqdm=False)[0].outputs[0]
    word = next(char for char in free.text if char.isascii() and char.isalnum())
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, bad_words=[word])
    assert word not in llm.generate("words", sampling, use_tqdm=False)[0].outputs[0].text


def test_max_tokens_none_goes_to_the_limit(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), dtype="float32", max_model_len=50, threads=1)
    sampling = SamplingParams(max_tokens=None, ignore_eos=True, seed=1)
    (output,) = llm.generate([[5] * 20], sampling, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 30


def test_max_tokens_beyond_the_context_end_with_it(llm: LLM) -> None:
    """As in vLLM: finish_reason says it, and a long prompt costs the others nothing."""
    sampling = SamplingParams(max_tokens=10**6, ignore_eos=True, seed=1)
    (output,) = llm.generate([[5] * 2000], sampling, use_tqdm=False)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (48, "length")
    assert sampling.max_tokens == 10**6


def test_each_part_of_an_answer_is_there_as_it_comes(llm: LLM) -> None:
    parts: dict[str, list[str]] = {}

    def take(output: RequestOutput) -> None:
        parts.setdefault(output.request_id, []).append(output.outputs[0].text)

    outputs = llm.generate(["a list", "b"], GREEDY, use_tqdm=False, on_output=take)
    for output in outputs:
        assert len(parts[output.request_id]) > 1
        assert "".join(parts[output.request_id]) == output.outputs[0].text


def test_what_a_callback_raises_ends_the_call_alone(llm: LLM) -> None:
    def leave(_: RequestOutput) -> None:
        raise KeyboardInterrupt

    before = llm.generate("a list", GREEDY, use_tqdm=False)[0].outputs[0].text
    with pytest.raises(KeyboardInterrupt):
        llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False, on_output=leave)
    assert llm.generate("a list", GREEDY, use_tqdm=False)[0].outputs[0].text == before


def test_each_answer_is_there_once_it_and_those_before_it_have_ended(llm: LLM) -> None:
    lengths, seen = (2, 12, 4, 1), list[list[str]]()
    sampling = [SamplingParams(max_tokens=n, ignore_eos=True, temperature=0) for n in lengths]
    prompts = ["a list", "b", [5000], "d"]  # of which the third one is refused
    num_ended = 0

    def leave_after_the_first(output: RequestOutput) -> None:
        seen.append([part.text for part in output.outputs])
        assert output.finished
        if num_ended == len(seen):
            raise KeyboardInterrupt

    outputs = llm.generate(
        prompts, sampling, use_tqdm=False, raise_errors=False, on_answer=leave_after_the_first
    )
    assert seen == [[part.text for part in output.outputs] for output in outputs]
    assert [bool(texts) for texts in seen] == [True, True, False, True]
    seen.clear()
    num_ended = 1
    with pytest.raises(KeyboardInterrupt):
        llm.generate(
            prompts, sampling, use_tqdm=False, raise_errors=False, on_answer=leave_after_the_first
        )
    assert seen == [[part.text for part in outputs[0].outputs]]


def test_parts_stay_as_they_came(llm: LLM) -> None:
    parts: list[RequestOutput] = []
    sampling = SamplingParams(max_tokens=5, temperature=1, n=2, seed=3)
    (output,) = llm.generate("a list", sampling, use_tqdm=False, on_output=parts.append)
    for index, answer in enumerate(output.outputs):
        of_answer = [part for item in parts for part in item.outputs if part.index == index]
        assert len(of_answer) > 1
        assert "".join(part.text for part in of_answer) == answer.text
        assert [i for part in of_answer for i in part.token_ids] == answer.token_ids


def test_a_callback_may_not_call_what_called_it(llm: LLM) -> None:
    """It would wait for itself."""
    calls = (lambda: llm.generate("b", GREEDY), llm.sleep, llm.reset_prefix_cache, llm.close)
    for call in calls:
        with pytest.raises(ConfigError, match="call it afterwards"):
            llm.generate("a list", GREEDY, use_tqdm=False, on_output=lambda _, call=call: call())  # type: ignore[misc]
    assert llm.generate("a list", GREEDY, use_tqdm=False)


@pytest.mark.parametrize("name", ["on_output", "on_answer"])
def test_a_callback_that_cannot_be_called_is_refused_first(llm: LLM, name: str) -> None:
    """Not when the first answer is there."""
    callback: Any = {name: 5}
    with pytest.raises(InvalidRequestError, match=f"{name}: must be a function that takes a resu"):
        llm.generate("a list", GREEDY, use_tqdm=False, **callback)
    assert llm.generate("a list", GREEDY, use_tqdm=False)


def test_a_callback_has_no_progress_bar_beside_it(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would print what the callback prints, part by part in lines of their own."""
    (output,) = llm.generate(
        "a list", GREEDY, on_output=lambda part: print(part.outputs[0].text, end="")
    )
    assert capsys.readouterr() == (output.outputs[0].text, "")


def test_no_requests_have_no_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert llm.generate([], GREEDY) == llm.chat([], GREEDY) == llm.embed([]) == []
    assert capsys.readouterr() == ("", "")


def test_chat_uses_the_template(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    (output,) = llm.chat(conversation, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == llm.tokenizer.encode_chat(conversation)
    assert len(llm.chat([conversation, conversation], GREEDY, use_tqdm=False)) == 2


@pytest.mark.parametrize(
    ("prompt", "sampling", "error", "words"),
    [
        ("", GREEDY, InvalidRequestError, "must have at least one token"),
        ([5000], GREEDY, InvalidRequestError, "511"),
        ([-1], GREEDY, InvalidRequestError, "token ids of this model must be"),
        ([5] * 3000, GREEDY, ContextLengthError, "2048"),
        ("x" * 200_000, GREEDY, InvalidRequestError, "2048"),
        ("\ud800", GREEDY, InvalidRequestError, "prompt"),
        ([5], SamplingParams(allowed_token_ids=[9999]), InvalidRequestError, "allowed_token_ids"),
        ([5], SamplingParams(stop_token_ids=[9999]), InvalidRequestError, "stop_token_ids"),
        ([5], SamplingParams(logit_bias={9999: 1.0}), InvalidRequestError, "logit_bias"),
        ([5], SamplingParams(max_tokens=None, min_tokens=5000), ContextLengthError, "min_tokens"),
    ],
)
def test_bad_requests_are_refused_and_harm_nobody(
    llm: LLM, prompt, sampling: SamplingParams, error: type[Exception], words: str
) -> None:
    if prompt == "":
        prompt = []  # this tokenizer adds nothing, so that empty text has no tokens
    with pytest.raises(error, match=words):
        llm.generate([prompt], sampling, use_tqdm=False)
    assert len(llm.generate("still alive", GREEDY, use_tqdm=False)) == 1


def test_a_failed_prompt_leaves_the_others_their_answers(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["one", [5] * 3000, "two"]
    alone = [llm.generate(prompts[i], GREEDY, use_tqdm=False)[0].outputs for i in (0, 2)]
    first, refused, last = llm.generate(prompts, GREEDY, use_tqdm=False, raise_errors=False)
    assert [first.outputs, last.outputs] == alone
    assert (first.error, refused.outputs, last.error) == (None, [], None)
    assert isinstance(refused.error, ContextLengthError)
    assert str(refused.error).startswith("prompt: 3000 tokens")
    chats = [[{"role": "user"}], [{"role": "user", "content": "hi"}]]
    refused, answered = llm.chat(chats, GREEDY, use_tqdm=False, raise_errors=False)
    assert (type(refused.error), answered.error) == (InvalidRequestError, None)
    with pytest.raises(InvalidRequestError, match="stop_token_ids"):  # wrong for all of them
        llm.generate(
            prompts, SamplingParams(stop_token_ids=[9999]), use_tqdm=False, raise_errors=False
        )

    def push(*_: object) -> str:
        raise RuntimeError

    monkeypatch.setattr(Detokenizer, "push", push)
    (failed,) = llm.generate("one", GREEDY, use_tqdm=False, raise_errors=False)
    assert isinstance(failed.error, EngineError)


def test_bad_settings_name_the_fix(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="block_size"):
        LLM(str(tiny_model), block_sise=16)
    with pytest.raises(ConfigError, match="power of two"):
        LLM(str(tiny_model), block_size=15)
    with pytest.raises(ConfigError, match="seed must be between"):
        LLM(str(tiny_model), seed=2**63)
    with pytest.raises(ConfigError, match="2048"):
        LLM(str(tiny_model), max_model_len=4096)
    with pytest.raises(CheckpointError, match="nowhere"):
        LLM(str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="nowhere"):
        LLM(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="served_model_name must not be empty; set a name"):
        LLM(tiny_model, served_model_name=" ")


def test_wrong_entries_of_a_list_are_named(llm: LLM) -> None:
    user = {"role": "user", "content": "hi"}
    for conversations, words in (
        (
            [[user], [{"role": "me", "content": "hi"}]],
            r"^messages\[1\]\[0\]\.role: must be one of .*, not 'me'",
        ),
        (
            [[user], [user | {"content": "hi " * 3000}]],
            r"^messages\[1\]: too large: its first \d+ of \d+ characters .* reduce",
        ),
        ([{"role": "me"}], r"^messages\[0\]\.role: must be one of .*, not 'me'"),
    ):
        with pytest.raises(InvalidRequestError, match=words) as caught:
            llm.chat(conversations, use_tqdm=False)
        assert caught.value.param == "messages"
    with pytest.raises(InvalidRequestError, match=r"^prompt\[1\]: .* must be between 0 and"):
        llm.generate([[5], [-1]], GREEDY, use_tqdm=False)
    with pytest.raises(
        InvalidRequestError, match="tools: this model's chat template does not read"
    ):
        llm.chat([user], tools=[{"type": "function"}], use_tqdm=False)


def test_ctrl_c_while_prompts_are_added_leaves_nothing_behind(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, added = llm._awake()._core.handle, list[AddRequest]()

    def handle_one(message: EngineMessage) -> None:
        if isinstance(message, AddRequest):
            if added:
                raise KeyboardInterrupt
            added.append(message)
        handle(message)

    monkeypatch.setattr(llm._awake()._core, "handle", handle_one)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5, 6], [7, 8]], GREEDY, use_tqdm=False)
    assert processes.interrupted.is_set()
    processes.interrupted.clear()
    assert llm.stats.num_waiting == 0
