"""Calls of the tokenizer with the methods of `transformers`: equal to its own, or refused."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from quire.errors import InvalidRequestError
from quire.tokenizer.tokenizer import Tokenizer
from quire.tokenizer.transformers_api import TransformersTokenizer

TEXTS = ["The quick brown fox", "dog", "It's 42 degrees, isn't it?</s> fox"]


@pytest.fixture(scope="module")
def both(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[TransformersTokenizer, PreTrainedTokenizerFast]:
    """A tokenizer that puts a token at both ends, Quire's and that of transformers."""
    backend = Backend.from_file(str(folders["gpt2"] / "tokenizer.json"))
    ids = [(name, backend.token_to_id(name)) for name in ("<s>", "</s>")]
    backend.post_processor = TemplateProcessing("<s> $A </s>", special_tokens=ids)
    folder = tmp_path_factory.mktemp("both")
    backend.save(str(folder / "tokenizer.json"))
    oracle = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        pad_token="<|end|>",
        eos_token="</s>",
        model_max_length=8,
    )
    oracle.save_pretrained(folder)
    return TransformersTokenizer(Tokenizer.from_folder(folder)), oracle


def plain(values: Any) -> Any:
    return values if isinstance(values, list) else values.tolist()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": True},
        {"padding": "longest", "return_tensors": "np"},
        {"padding": True, "return_tensors": "pt"},
        {"padding": True, "padding_side": "left"},
        {"padding": "max_length", "max_length": 30},
        {"padding": "max_length", "truncation": True, "max_length": 9, "return_tensors": "np"},
        {"truncation": True, "max_length": 6},
        {"truncation": "longest_first", "max_length": 6, "add_special_tokens": False},
        {"truncation": True},
        {"padding": "max_length", "return_tensors": "np", "truncation": True},
        {"truncation": False, "padding": "do_not_pad", "return_attention_mask": True},
        {"return_attention_mask": False},
        {"padding": True, "return_attention_mask": False, "return_tensors": "pt"},
    ],
)
def test_calls_are_those_of_transformers(both: Any, options: dict[str, Any], side: str) -> None:
    own, oracle = both
    for each in both:
        each.padding_side = each.truncation_side = side
    for text in (TEXTS, TEXTS[2]):
        found = own(text, **options)
        expected = oracle(text, return_token_type_ids=False, **options)
        assert found.keys() == expected.keys()
        for name in found:
            assert type(found[name]) is type(expected[name])
            assert plain(found[name]) == plain(expected[name])
    assert plain(own.encode(text, **options)) == plain(oracle.encode(text, **options))
    assert copy.deepcopy(own).padding_side == side


@pytest.mark.parametrize("options", [{}, {"padding": True, "return_tensors": "np"}])
def test_chats_and_batches_of_them_are_those_of_transformers(
    both: Any, options: dict[str, Any]
) -> None:
    template = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    chats = [[{"role": "user", "content": text}] for text in TEXTS[:2]]
    texts = {"chat_template": template, "tokenize": False}
    ids = {"chat_template": template, "truncation": True, "return_dict": True, **options}
    for given in (chats, tuple(chats), chats[:1], chats[0]):
        own, oracle = (each.apply_chat_template(given, **texts) for each in both)
        assert own == oracle
        own, oracle = (each.apply_chat_template(given, **ids) for each in both)
        for name in own:
            assert plain(own[name]) == plain(oracle[name])
    for none in ([], {}, [[]], 5, iter(chats), iter(chats[0])):
        with pytest.raises(InvalidRequestError, match="messages: must be a list"):
            both[0].apply_chat_template(none, **texts)


@pytest.mark.parametrize(
    "name",
    [
        *("vocab_size", "model_max_length", "padding_side", "truncation_side", "eos_token"),
        *("eos_token_id", "bos_token", "bos_token_id", "pad_token", "pad_token_id"),
        "all_special_ids",
    ],
)
def test_facts_are_those_of_transformers(both: Any, name: str) -> None:
    own, oracle = both
    assert getattr(own, name) == getattr(oracle, name)
    assert len(own) == len(oracle) > own.vocab_size  # there are added tokens


def test_lists_of_ids_are_read_as_by_transformers(both: Any) -> None:
    ids = both[1](TEXTS[2]).input_ids
    for skip in (True, False):
        for given in (
            ids,
            [ids, [], ids[:1]],
            np.array([ids, ids]),
            torch.tensor(ids),
            [],
            [both[1].eos_token_id],
        ):
            own, oracle = (each.decode(given, skip_special_tokens=skip) for each in both)
            assert own == oracle
            own, oracle = (each.batch_decode(given, skip_special_tokens=skip) for each in both)
            assert own == oracle
        own, oracle = (each.convert_ids_to_tokens(ids, skip_special_tokens=skip) for each in both)
        assert own == oracle


def test_special_tokens_without_a_role_are_listed(folders: dict[str, Path], tmp_path: Path) -> None:
    oracle = PreTrainedTokenizerFast(
        tokenizer_file=str(folders["gpt2"] / "tokenizer.json"),
        additional_special_tokens=["<|end|>"],
        eos_token="</s>",
    )
    oracle.save_pretrained(tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    for each in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
        assert TransformersTokenizer(each).all_special_ids == oracle.all_special_ids
    assert len(tokenizer.special_ids) > 2


def test_positions_of_arguments_are_those_of_transformers(both: Any) -> None:
    own, oracle = both
    for name in (
        *("__call__", "encode", "decode", "batch_decode", "apply_chat_template"),
        "convert_ids_to_tokens",
    ):
        found, expected = (inspect.signature(getattr(type(each), name)) for each in both)
        by_position = [
            each.name
            for each in found.parameters.values()
            if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        assert by_position == list(expected.parameters)[: len(by_position)]
    assert own.decode([own.eos_token_id], True) == oracle.decode([own.eos_token_id], True) == ""
    for call in (own, own.encode):
        assert call("fox", None) == call("fox")
        with pytest.raises(InvalidRequestError, match=r"text_pair: .*use AutoTokenizer"):
            call("fox", "dog")


def test_arguments_of_decode_that_ask_for_nothing_are_taken(both: Any) -> None:
    own, oracle = both
    ids = own.encode("It's 42 degrees , isn't it?")
    for asked in (False, None):
        options = {"clean_up_tokenization_spaces": asked}
        assert own.decode(ids, **options) == oracle.decode(ids, **options)
        assert own.batch_decode([ids], **options) == oracle.batch_decode([ids], **options)
    with pytest.raises(InvalidRequestError, match="clean_up_tokenization_spaces: is not supported"):
        own.decode(ids, clean_up_tokenization_spaces=True)
    with pytest.raises(InvalidRequestError, match="skip: unknown option"):
        own.batch_decode([ids], skip=True)


@pytest.mark.parametrize("text", [None, 5, 0.5])
def test_what_is_no_text_is_refused_by_name(both: Any, text: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"text: must be text, or a list of texts, not "):
        both[0](text)


def test_every_argument_of_transformers_is_known(both: Any) -> None:
    own, oracle = both
    for name, each in inspect.signature(type(oracle).__call__).parameters.items():
        if each.kind is each.POSITIONAL_OR_KEYWORD and name not in ("self", "text"):
            assert own("fox", **{name: each.default}) == own("fox")


def test_tensors_move_and_lists_stay(both: Any) -> None:
    own, _ = both
    found = own("dog", return_tensors="pt").to("meta")
    assert {each.device.type for each in found.values()} == {"meta"}
    assert own("dog").to("meta") == own("dog")


def test_a_chat_is_cut_and_filled_up(both: Any) -> None:
    own, _ = both
    own.padding_side = own.truncation_side = "right"
    chat, template = [{"role": "user", "content": "fox"}], "{{ messages[0].content }}"
    plain = own.apply_chat_template(chat, chat_template=template)
    cut = {"truncation": True, "max_length": 1}
    assert own.apply_chat_template(chat, chat_template=template, **cut) == plain[:1]
    filled = own.apply_chat_template(
        chat, chat_template=template, padding="max_length", max_length=9, return_tensors="pt"
    )
    assert torch.equal(filled, torch.tensor([plain + [own.pad_token_id] * (9 - len(plain))]))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"padding": "wide"}, "padding: must be one of"),
        ({"truncation": "only_last"}, "truncation: must be one of"),
        ({"max_length": 5}, "max_length: cuts with truncation=True, .*; set one of them"),
        ({"max_length": 0, "truncation": True}, "max_length: must be an integer >= 1"),
        ({"return_tensors": "tf"}, "return_tensors: must be 'np', 'pt' or None, not 'tf'"),
        ({"return_tensors": "np"}, "return_tensors: .*different numbers of tokens; use padding"),
        ({"padding_side": "top"}, "padding_side: must be 'left' or 'right', not 'top'"),
        ({"return_offsets_mapping": True}, "return_offsets_mapping: .*use AutoTokenizer"),
        ({"pading": True}, "pading: unknown option; remove it"),
    ],
)
def test_what_is_refused(both: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        both[0](TEXTS, **options)


def test_padding_needs_a_token_and_truncation_a_number(folders: dict[str, Path]) -> None:
    tokenizer = TransformersTokenizer(Tokenizer.from_folder(folders["gpt2"]))
    with pytest.raises(InvalidRequestError, match=r"truncation: .* no file names; set max_"):
        tokenizer(TEXTS, truncation=True)
    wrong: Any
    for wrong, problem in (
        (None, "truncation: .*; set max_"),
        (math.inf, "truncation: .*; set max_"),
        ("2", "model_max_length: must be an integer >= 1, not '2'"),
    ):
        tokenizer.model_max_length = wrong
        with pytest.raises(InvalidRequestError, match=problem):
            tokenizer(TEXTS, truncation=True)
    tokenizer.model_max_length = 2
    assert copy.copy(tokenizer)(TEXTS[0], truncation=True) == tokenizer(
        TEXTS[0], truncation=True, max_length=2
    )
    with pytest.raises(
        InvalidRequestError, match="padding: the tokenizer has no pad_token; set it"
    ):
        tokenizer(TEXTS, padding=True)
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer(TEXTS, padding=True).input_ids[1][-1] == tokenizer.eos_token_id
    tokenizer.pad_token_id = 5
    assert tokenizer(TEXTS, padding=True).input_ids[1][-1] == 5
    tokenizer.truncation_side = "middle"
    with pytest.raises(InvalidRequestError, match="truncation_side: must be 'left' or 'right'"):
        tokenizer(TEXTS, truncation=True, max_length=2)
