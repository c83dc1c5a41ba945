"""`LLM` with the arguments and methods of other engines, on the bundled model."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from llm_calls import CHAT, GREEDY, texts

from quire import LLM
from quire.compat.method_names import METHODS
from quire.config import EngineConfig
from quire.engine.frontend.llm_engine import LLMEngine
from quire.errors import InvalidRequestError, NoEffectWarning, UserError


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


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_are_not_there_say_what_to_use(llm: LLM, name: str) -> None:
    assert not hasattr(llm, name)
    with pytest.raises(AttributeError, match=re.escape(METHODS[name])):
        getattr(llm, name)


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
