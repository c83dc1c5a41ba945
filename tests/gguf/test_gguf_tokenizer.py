"""Tokenizers made of a GGUF file's metadata give the ids of the originals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf_files import header_bytes, metadata_of

import quire
from quire.errors import CheckpointError
from quire.gguf.gguf_header import read_gguf_header
from quire.gguf.gguf_tokenizer import tokenizer_files
from quire.gguf.pre_tokenizers import PRE_TOKENIZERS
from quire.gguf.vocabulary_list import VocabularyList
from quire.tokenizer.tokenizer import Tokenizer

BUNDLED = Path(quire.__file__).parent / "bundled" / "quire-tiny"
TEXTS = [
    "red runing shoes, size 42",
    "  Ich möchte 1.234,56 €\n\nzahlen!  ",
    "<|user|>name<|end|> it's I'LL 日本語 🙂",
    "",
]
# a vocabulary of SentencePiece's kind: score 0 for what is not merged
PIECES = ["▁", "h", "e", "l", "o", "w", "r", "d", "he", "ll", "hell", "hello", "▁hello", "lo", "or"]
SPM: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [
        "<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *PIECES, "<think>",
    ],
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 4],
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(PIECES))] + [0.0],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}  # fmt: skip


def made(folder: Path, metadata: dict[str, Any]) -> Tokenizer:
    file = folder / "a.gguf"
    file.write_bytes(header_bytes(metadata, {}))
    found = read_gguf_header(file).metadata
    for name, content in tokenizer_files(found, VocabularyList.read(found)).items():
        (folder / name).write_text(json.dumps(content))
    return Tokenizer.from_folder(folder)


def bundled_metadata() -> dict[str, Any]:
    return metadata_of(BUNDLED, json.loads((BUNDLED / "config.json").read_text()))


def test_the_bundled_tokenizer_comes_back(tmp_path: Path) -> None:
    ours, original = made(tmp_path, bundled_metadata()), Tokenizer.from_folder(BUNDLED)
    for text in TEXTS:
        for special in (False, True):
            ids = original.encode(text, parse_special=special)
            assert ours.encode(text, parse_special=special) == ids
            assert ours.decode(ids) == original.decode(ids)
    chat = [{"role": "user", "content": "hi <|end|>"}]
    assert ours.encode_chat(chat) == original.encode_chat(chat)
    assert (ours.eos_token_id, ours.special_ids) == (original.eos_token_id, original.special_ids)


def test_sentence_piece_merges_by_score(tmp_path: Path) -> None:
    ours = made(tmp_path, SPM)
    names = [ours.id_to_token(i) for i in ours.encode("hello wor")]
    assert names == ["<s>", "▁hello", "▁", "w", "or"]  # "lo" has a lower score than "ll"
    ids = ours.encode("é<think>h")
    assert [ours.id_to_token(i) for i in ids[1:]] == ["▁", "<0xC3>", "<0xA9>", "<think>", "▁", "h"]
    assert ours.decode(ours.encode("hello é wor")) == "hello é wor"
    assert (ours.bos_token_id, ours.eos_token_id) == (1, 2)


def test_sentence_piece_merges_no_text_to_control_and_byte_tokens(tmp_path: Path) -> None:
    key, kinds = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
    more = ["<", "s", ">", "s>", "0", "x", "4", "1", "1>", "41>", "x41>", "0x41>"]
    changes = {key: SPM[key] + more, kinds: SPM[kinds] + [1] * len(more)}
    changes["tokenizer.ggml.scores"] = [*SPM["tokenizer.ggml.scores"], *[-99.0] * len(more)]
    ours = made(tmp_path, SPM | changes)
    for text in ("<s>", "h<0x41>"):
        assert ours.decode(ours.encode(text)) == text


def test_sentence_piece_merges_spaces_to_the_users_tokens(tmp_path: Path) -> None:
    """As Gemma's are, whose spaces are marked in some files and not in others."""
    names = ("tokens", "token_type", "scores")
    for spaces in ("\u2581\u2581", "  "):
        more = {f"tokenizer.ggml.{n}": [v] for n, v in zip(names, (spaces, 4, -99.0), strict=True)}
        longer = {key: SPM[key] + value for key, value in more.items()}
        ours = made(tmp_path, SPM | longer | {"tokenizer.ggml.add_space_prefix": False})
        ids = ours.encode("h  h", add_special_tokens=False)
        assert spaces in [ours.id_to_token(i) for i in ids]
        assert ours.decode(ids) == "h  h"


def test_sentence_piece_without_a_space_in_front(tmp_path: Path) -> None:
    ours = made(tmp_path, SPM | {"tokenizer.ggml.add_space_prefix": False})
    assert [ours.id_to_token(i) for i in ours.encode("hello")[1:]] == ["hello"]
    assert ours.decode(ours.encode(" hello")) == " hello"


def test_phi_3_takes_spaces_behind_its_marks(tmp_path: Path) -> None:
    ours = made(tmp_path, SPM | {"general.architecture": "phi3"})
    assert ours.encode("<think>\n hello") == ours.encode("<think>hello")
    assert ours.encode("<s> hello", parse_special=True) != ours.encode(
        "<s>hello", parse_special=True
    )


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("llama-bpe", "I'LL pay 12345\n\n!", ["I", "'LL", " pay", " ", "123", "45", "\n\n", "!"]),
        ("qwen2", "x 123", ["x", " ", "1", "2", "3"]),
        ("tekken", "fooBar a/b", ["foo", "Bar", " a", "/b"]),
        ("gpt-4o", "HelloWorld's", ["Hello", "World's"]),
        ("gpt-2", "it's  12", ["it", "'s", " ", " 12"]),
        ("smollm", "a12", ["a", "1", "2"]),
    ],
)
def test_texts_are_cut_as_the_models_were_trained(name: str, text: str, pieces: list[str]) -> None:
    steps = PRE_TOKENIZERS[name].steps()
    model: dict[str, Any] = {"type": "BPE", "vocab": {}, "merges": []}
    spec = {"version": "1.0", "added_tokens": [], "model": model}
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    backend = tokenizers.Tokenizer.from_str(json.dumps(spec))
    found = backend.pre_tokenizer.pre_tokenize_str(text)  # type: ignore[attr-defined]
    assert [text[begin:end] for _, (begin, end) in found] == pieces


def test_ends_of_answers_are_found_by_name_and_text(tmp_path: Path) -> None:
    tokens = ["a", "<|im_end|>", "<|endoftext|>", "</s>", "<end_of_turn>"]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1, 3, 3, 1, 4],  # </s> is HTML, the last a mark all the same
        "tokenizer.ggml.eos_token_id": 2,
    }
    file = tmp_path / "a.gguf"
    file.write_bytes(header_bytes(metadata, {}))
    words = VocabularyList.read(read_gguf_header(file).metadata)
    assert words.end_ids() == [2, 1, 4]
    assert [each["id"] for each in words.added() if each["special"]] == [1, 2, 4]


def test_marks_at_the_end_are_read_where_a_file_has_no_kinds(tmp_path: Path) -> None:
    metadata = bundled_metadata()
    del metadata["tokenizer.ggml.token_type"]
    ours = made(tmp_path, metadata)
    assert ours.encode("<|end|>", parse_special=True) == [ours.eos_token_id]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "gpt-2"),
        ({"general.architecture": "qwen2"}, "qwen2"),
        ({"tokenizer.ggml.pre": "default", "general.architecture": "qwen3"}, "qwen2"),
        ({"tokenizer.ggml.tokens": [f"{i}" for i in range(128_256)]}, "llama-bpe"),
    ],
)
def test_files_without_the_rule_that_cuts_texts_have_their_familys(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    file, without = tmp_path / "a.gguf", ("tokenizer.ggml.pre", "tokenizer.ggml.token_type")
    metadata = {k: v for k, v in bundled_metadata().items() if k not in without}
    file.write_bytes(header_bytes(metadata | {"tokenizer.ggml.merges": []} | changes, {}))
    found = read_gguf_header(file).metadata
    spec = tokenizer_files(found, VocabularyList.read(found))["tokenizer.json"]
    assert spec["pre_tokenizer"]["pretokenizers"] == PRE_TOKENIZERS[name].steps()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"tokenizer.ggml.model": "bert"},
            "model is 'bert', which is not read; .*tokenizer=",
        ),
        ({"tokenizer.ggml.model": None}, "model is missing; .*tokenizer="),
        ({"tokenizer.ggml.pre": "viking"}, "pre is 'viking', which is not read .*tokenizer="),
        ({"tokenizer.ggml.merges": ["a qq"]}, "merges has 'a qq', not of tokens"),
        ({"tokenizer.ggml.merges": 3}, "merges is 3, not a list"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type is .1,., not a list of 2048"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "eos_token_id is 9999, not an integer"),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    changed = {k: v for k, v in (bundled_metadata() | changes).items() if v is not None}
    with pytest.raises(CheckpointError, match=rf"a\.gguf: tokenizer\.ggml\.{text}"):
        made(tmp_path, changed)
