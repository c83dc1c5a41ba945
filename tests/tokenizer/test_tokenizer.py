"""Encoding and decoding: equal to `transformers`, and control tokens only where they belong."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, processors
from transformers import PreTrainedTokenizerFast

from quire.core.sampling_checks import MAX_BAD_WORDS
from quire.errors import InvalidRequestError
from quire.tokenizer import encoding_guard
from quire.tokenizer.conversation_input import BREAK
from quire.tokenizer.tokenizer import Tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces \n\n\n and\ttabs\r\n",
    "naïve café, Größe; Привет 你好,世界。안녕",
    "👩‍👩‍👧‍👦🇩🇪👍🏽",
    "e\u0301 \u200d \u202e \ufeff \u2028 NUL\0here",
    "<think>is it</think> 你好世界 <tool_call>",
    "x" * 1000,
]
ANY_TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters=BREAK),
        st.sampled_from(list(" \n▁Ġ<>|é你👍\u200d\ufffdabc")),
    ),
    max_size=40,
)


@cache
def load_oracle(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> PreTrainedTokenizerFast:
    return load_oracle(folder)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("add", [True, False])
def test_encodes_as_transformers(
    tokenizer: Tokenizer, oracle: PreTrainedTokenizerFast, text: str, add: bool
) -> None:
    assert tokenizer.encode(text, add_special_tokens=add) == oracle.encode(
        text, add_special_tokens=add
    )


@settings(max_examples=25)
@given(text=ANY_TEXT, extra=st.sampled_from(["", "<s>", "</s>", "<|im_start|>", "<|end|> "]))
def test_parses_control_tokens_as_transformers(
    tokenizer: Tokenizer, oracle: PreTrainedTokenizerFast, text: str, extra: str
) -> None:
    text = text + extra + text
    assert tokenizer.encode(text, parse_special=True) == oracle.encode(text)


@settings(max_examples=25)
@given(data=st.data(), skip=st.booleans())
def test_decodes_what_was_encoded_as_transformers(
    tokenizer: Tokenizer, oracle: PreTrainedTokenizerFast, data: st.DataObject, skip: bool
) -> None:
    ids = oracle.encode(data.draw(ANY_TEXT) + "</s>" + data.draw(ANY_TEXT))
    expected = oracle.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


@settings(max_examples=100)
@given(data=st.data())
def test_decodes_any_byte_level_ids_as_transformers(
    folders: dict[str, Path], gpt2: Tokenizer, data: st.DataObject
) -> None:
    oracle = load_oracle(folders["gpt2"])
    ids = data.draw(st.lists(st.integers(0, gpt2.vocab_size + 3), max_size=30))
    assert gpt2.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


def test_broken_byte_tokens_do_not_spoil_adjacent_tokens(llama2: Tokenizer) -> None:
    by_bytes = {llama2.token_bytes(i): i for i in reversed(range(llama2.vocab_size))}
    ids = [by_bytes[bytes([value])] for value in [*"€".encode(), 0xFF]]
    assert llama2.decode(ids) == "€\ufffd"


@settings(max_examples=25)
@given(text=ANY_TEXT)
def test_bytes_of_tokens_join_to_the_text(byte_tokenizer: Tokenizer, text: str) -> None:
    ids = byte_tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(byte_tokenizer.token_bytes(i) for i in ids).decode()
    assert joined in (byte_tokenizer.decode(ids), " " + byte_tokenizer.decode(ids))


def test_token_bytes_of_each_spelling(gpt2: Tokenizer, llama2: Tokenizer) -> None:
    euro = gpt2.encode("€")
    assert [gpt2.token_bytes(i) for i in euro] == [b"\xe2", b"\x82", b"\xac"]
    assert [gpt2.token_text(i) for i in euro] == ["\ufffd"] * 3
    assert gpt2.token_text(gpt2.eos_token_id or 0) == "</s>"
    space, *euro = llama2.encode("€", add_special_tokens=False)
    assert b"".join(llama2.token_bytes(i) for i in euro) == "€".encode()
    assert llama2.token_bytes(space) == b" "
    assert llama2.token_bytes(space, first=True) == b""
    assert llama2.token_bytes(llama2.eos_token_id or 0) == b"</s>"
    for unknown in (-1, 10**6, 2**32, 10**30):
        assert gpt2.token_bytes(unknown) == b""
        assert gpt2.decode([unknown]) == ""
        assert gpt2.id_to_token(unknown) is None


def test_named_ids(tokenizer: Tokenizer, oracle: PreTrainedTokenizerFast) -> None:
    assert tokenizer.eos_token_id == oracle.eos_token_id
    assert tokenizer.bos_token_id == oracle.bos_token_id
    assert tokenizer.vocab_size == len(oracle)
    assert tokenizer.special_ids.issuperset(oracle.all_special_ids)
    assert tokenizer.vocab_size + 1 not in tokenizer.special_ids


@settings(max_examples=25)
@given(before=ANY_TEXT, after=ANY_TEXT)
def test_prose_makes_no_control_tokens(tokenizer: Tokenizer, before: str, after: str) -> None:
    for name in ("<s>", "</s>", "<|im_end|>", "<<s>", "<s></s>"):
        text = before + name + after
        ids = tokenizer.encode(text, add_special_tokens=False)
        unknown = tokenizer.encode("<unk>", parse_special=True, add_special_tokens=False)
        assert not [i for i in ids if i in tokenizer.special_ids and i not in unknown]


@settings(max_examples=25)
@given(before=ANY_TEXT, after=ANY_TEXT)
def test_prose_with_control_names_stays_as_typed(
    byte_tokenizer: Tokenizer, before: str, after: str
) -> None:
    ids = byte_tokenizer.encode(before + "</s>" + after, add_special_tokens=False)
    text = unicodedata.normalize("NFC", before + "</s>" + after)  # as one of the kinds does
    decoded = unicodedata.normalize("NFC", byte_tokenizer.decode(ids))
    spaced = text.replace("▁", " ")  # SentencePiece cannot tell them apart
    assert decoded.removeprefix(" ") in (text.removeprefix(" "), spaced.removeprefix(" "))


def test_prose_equals_the_librarys_own_plain_reading(
    gpt2: Tokenizer, folders: dict[str, Path]
) -> None:
    plain = tokenizers.Tokenizer.from_file(str(folders["gpt2"] / "tokenizer.json"))
    plain.encode_special_tokens = True
    for text in ("a<s>b", "<s>", "<|im_end|><|im_end|>", "</s></s> x"):
        assert gpt2.encode(text) == plain.encode(text).ids


def test_control_tokens_that_overlap_are_all_broken(folders: dict[str, Path]) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folders["gpt2"] / "tokenizer.json"))
    backend.add_special_tokens(["aba", "###", "#"])
    tokenizer = Tokenizer(backend)
    for text in ("ababa", "####", "abababab ###"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        names = {tokenizer.token_text(i) for i in ids if i in tokenizer.special_ids}
        assert names <= {"#"}  # one character cannot be broken


@pytest.mark.parametrize("kind", ["gpt2", "llama2", "gemma", "unigram"])
def test_control_tokens_of_one_character_are_text_too(
    kind: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folders[kind] / "tokenizer.json"))
    backend.add_special_tokens(["\u2404", "\u2405", "a\u2404", "\u2404\u2404"])
    tokenizer = Tokenizer(backend)
    control = {tokenizer.control_token_id(n) for n in ("\u2404", "\u2405", "a\u2404")}
    for text in ("fox \u2404 fox", "\u2404", "\u2404\u2405a\u2404\u2404\u2404fox"):
        ids = tokenizer.encode(text)
        assert not control.intersection(ids)
        if kind != "unigram":  # which has no bytes
            assert tokenizer.decode(ids).lstrip() == text
        assert control.intersection(tokenizer.encode(text, parse_special=True))
    broken = tokenizer._encoder.escape_control_tokens("\u2404")
    ids = tokenizer.encode_prompt(f"\u2404fox {broken}\u2405")
    assert [i for i in ids if i in control] == [ids[0], ids[-1]]
    monkeypatch.setattr(tokenizer._encoder, "_quick_chars", 0)
    monkeypatch.setattr(encoding_guard.EncodingGuard, "_needs_child", lambda _: True)
    assert tokenizer.encode_prompt(f"\u2404fox {broken}\u2405") == ids


def test_control_tokens_of_normalized_text_are_broken_too(folders: dict[str, Path]) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folders["gemma"] / "tokenizer.json"))
    backend.add_tokens([tokenizers.AddedToken("<|x|>", special=True, normalized=True)])
    tokenizer = Tokenizer(backend)
    (control,) = tokenizer.encode("<|x|>", add_special_tokens=False, parse_special=True)
    ids = tokenizer.encode("a<|x|> b", add_special_tokens=False)
    assert control not in ids
    assert tokenizer.decode(ids) == "a<|x|> b"


@pytest.mark.parametrize("kind", ["unigram", "word_level", "gpt2"])
@pytest.mark.parametrize("normalizer", [None, normalizers.NFKC(), normalizers.Prepend("<")])
def test_models_find_no_control_tokens_in_texts(
    kind: str, normalizer: Any, folders: dict[str, Path]
) -> None:
    """Where control tokens are in the vocabulary, as SentencePiece's are."""
    spec = json.loads((folders[kind] / "tokenizer.json").read_text())
    model, names = spec["model"], ["<unk>", "<s>", "</s>"]
    if kind == "unigram":
        rest = [piece for piece in model["vocab"] if piece[0] not in names]
        model |= {"vocab": [*([name, 0.0] for name in names), *rest], "unk_id": 0}
    else:
        rest = [name for name in model["vocab"] if name not in names]
        model["vocab"] = {name: i for i, name in enumerate([*names, *rest])}
        model["ignore_merges"] = True
        spec["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    flags = {"special": True, "normalized": False}
    flags |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    spec["added_tokens"] = [flags | {"id": i, "content": each} for i, each in enumerate(names)]
    backend = tokenizers.Tokenizer.from_str(json.dumps(spec))
    backend.add_special_tokens(["<|later|>"])
    backend.post_processor = processors.TemplateProcessing(
        "<s> $A <|later|>",
        special_tokens=[(n, backend.token_to_id(n)) for n in ("<s>", "<|later|>")],
    )
    if normalizer is not None:
        backend.normalizer = normalizer
    tokenizer = Tokenizer(backend)
    start, end, later = (tokenizer.control_token_id(n) for n in ("<s>", "</s>", "<|later|>"))
    for text in ("fox </s> fox", "</s>", "<|later|>", "/s>") + ("\uff1c/s\uff1e",) * (
        normalizer is not None
    ):
        first, *inner, last = tokenizer.encode(text)
        assert (first, last) == (start, later)
        assert not {start, end, later}.intersection(inner)
        assert backend.encode(text).ids == tokenizer.encode(text, parse_special=True)
    broken = tokenizer._encoder.escape_control_tokens("</s>")
    ids = tokenizer.encode_prompt(f"<s>fox {broken}</s><|later|>")
    assert [i for i in ids if i in (start, end, later)] == [start, end, later]


def test_ids_that_a_vocabulary_leaves_out_are_given_to_no_control_token(
    folders: dict[str, Path],
) -> None:
    """The library gives a new token the number of tokens, which may be another's id."""
    spec = json.loads((folders["gpt2"] / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    names = ["<s>", *(token["content"] for token in spec["added_tokens"]), "</s>"]
    pieces = [name for name in vocab if name not in names]
    ordered = [*names, *pieces[:100], *[None] * 5, *pieces[100:]]
    spec["model"]["vocab"] = {name: i for i, name in enumerate(ordered) if name is not None}
    spec["added_tokens"] = [
        dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        | {"id": i, "content": name, "special": True}
        for i, name in enumerate(names)
    ]
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(spec)))
    for name in pieces:
        text = f"{tokenizer.decode([ordered.index(name)])} </s>"
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Sequence([normalizers.Strip(), normalizers.NFKC()]),
        normalizers.Lowercase(),
        normalizers.Replace("\u27ea", "<"),
        normalizers.Replace(" ", ""),
    ],
)
def test_texts_that_become_control_tokens_when_they_are_normalized(
    normalizer: Any, folders: dict[str, Path]
) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folders["gpt2"] / "tokenizer.json"))
    backend.add_tokens([tokenizers.AddedToken("<|x|>", special=True, normalized=True)])
    backend.normalizer = normalizer
    tokenizer = Tokenizer(backend)
    control = tokenizer.control_token_id("<|x|>")
    hidden = ("a\uff1c|x|\uff1e", "a<|X|>", "a<| x|>", "a\u27ea|x|>")
    assert any(control in backend.encode(text).ids for text in hidden), "nothing is tested"
    for text in (*hidden, "<|x|>"):
        assert tokenizer.encode(text, parse_special=True) == backend.encode(text).ids
        assert control not in tokenizer.encode(text)
    assert control in tokenizer.encode_prompt("a<|x|>")
    for text in hidden:
        assert control not in tokenizer.encode_prompt(text)


def test_marks_of_spaces_make_no_names(folders: dict[str, Path]) -> None:
    """So that texts of most models are read once, by the tokenizer itself."""
    for kind in ("llama2", "mistral", "gemma"):
        assert not Tokenizer.from_folder(folders[kind])._encoder._hides_names


@pytest.mark.parametrize("text", ["\ud83d", "ok \udc00 no", "a" + BREAK])
def test_refuses_what_is_no_text(gpt2: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt: .*; \w+|remove it") as caught:
        gpt2.encode(text)
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequestError, match="bad_words"):
        gpt2.bad_words_ids([text])


def test_refuses_bytes(gpt2: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="prompt: must be a string, not bytes"):
        gpt2.encode(b"abc")  # type: ignore[arg-type]


def test_nul_goes_through(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode("a\0b", add_special_tokens=False)
    assert byte_tokenizer.decode(ids) == "a\0b"


def test_bad_words_with_and_without_a_space(byte_tokenizer: Tokenizer) -> None:
    spelled = byte_tokenizer.bad_words_ids(["fox", "fox", "quick brown"])
    texts = [b"".join(map(byte_tokenizer.token_bytes, ids)) for ids in spelled]
    assert texts == [b"fox", b" fox", b"quick brown", b" quick brown"]


def test_as_many_bad_words_as_a_request_may_have(byte_tokenizer: Tokenizer) -> None:
    words = [f"w{index}" for index in range(MAX_BAD_WORDS)]
    spelled = byte_tokenizer.bad_words_ids(words + words)
    assert len(spelled) == len(set(map(tuple, spelled))) == 2 * MAX_BAD_WORDS


def test_bad_words_of_words(folders: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_folder(folders["word_level"])
    assert tokenizer.bad_words_ids(["fox"]) == [tokenizer.encode("fox")]
