"""Chats of `LLM`: templates, reasoning and the tokenizer, on the bundled model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from llm_calls import CHAT, GREEDY, texts
from msgspec.structs import replace

from quire import LLM, SamplingParams
from quire.core.reasoning_marks import ReasoningMarks
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import ConfigError, InvalidRequestError, NoEffectWarning
from quire.model_folder import BUNDLED_FOLDER


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
