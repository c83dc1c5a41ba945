"""Eight small tokenizers, one for each way in which models spell text, as folders on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Backend

from quire.tokenizer.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 42 degrees, isn't it?",
    "def quick(fox):\n    return fox + 1  # brown\n\n\nclass Dog:\n\tpass",
    "Größe, naïve café, señor; Привет, мир! 你好,世界。 こんにちは 안녕",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 zero\u200dwidth e\u0301",
] * 4
CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|user|>", "<|eot_id|>"]
LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_TOKENS = [f"<0x{value:02X}>" for value in range(256)]


def _byte_level(vocab_size: int = 400) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    _train_byte_level(backend, vocab_size)
    backend.add_special_tokens(CONTROL)
    return backend


def _train_byte_level(backend: Backend, vocab_size: int) -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)


def _llama_3() -> Backend:
    backend = Backend(models.BPE(ignore_merges=True))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_3_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    _train_byte_level(backend, 500)
    backend.add_special_tokens(CONTROL)
    backend.add_tokens(["<think>", "</think>", "<tool_call>", "你好世界"])
    bos = ("<s>", backend.token_to_id("<s>"))
    backend.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[bos]),
        ]
    )
    return backend


def _sentencepiece() -> Backend:
    """A BPE with byte fallback, trained on text with its spaces made visible."""
    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=["<unk>", "<s>", "</s>", *BYTE_TOKENS],
        limit_alphabet=70,
        show_progress=False,
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.train_from_iterator(CORPUS, trainer)
    spec = json.loads(backend.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] not in BYTE_TOKENS]
    spec["pre_tokenizer"] = None
    backend = Backend.from_str(json.dumps(spec))
    backend.add_special_tokens(CONTROL)
    bos = ("<s>", backend.token_to_id("<s>"))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[bos]
    )
    return backend


def _llama_2() -> Backend:
    backend = _sentencepiece()
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    return backend


def _mistral() -> Backend:
    backend = _llama_2()
    spec = json.loads(backend.to_str()) | {"normalizer": None}
    backend = Backend.from_str(json.dumps(spec))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return backend


def _gemma() -> Backend:
    backend = _sentencepiece()
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_tokens([AddedToken("\n\n", normalized=False)])
    return backend


def _unigram() -> Backend:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=220, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens(CONTROL)
    return backend


def _word_level() -> Backend:
    words = sorted(set(" ".join(CORPUS).split()))
    vocab = {word: index for index, word in enumerate(["<unk>", *words])}
    backend = Backend(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<unk>", *CONTROL])
    return backend


def _word_piece() -> Backend:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]"], show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens(CONTROL)
    return backend


BUILDERS: dict[str, Callable[[], Backend]] = {
    "gpt2": _byte_level,
    "llama3": _llama_3,
    "llama2": _llama_2,
    "mistral": _mistral,
    "gemma": _gemma,
    "unigram": _unigram,
    "word_level": _word_level,
    "word_piece": _word_piece,
}
WITH_ALL_BYTES = ("gpt2", "llama3", "llama2", "mistral", "gemma")  # can spell any text


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind → folder with tokenizer.json and tokenizer_config.json."""
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: write_folder(root / name, build()) for name, build in BUILDERS.items()}


def write_folder(folder: Path, backend: Backend, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    defaults = {"bos_token": "<s>", "eos_token": "</s>"}
    content = {"tokenizer_class": "PreTrainedTokenizerFast"} | defaults | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session", params=list(BUILDERS))
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    """A folder of each kind of tokenizer."""
    return folders[request.param]


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    """A tokenizer of each kind."""
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="session", params=WITH_ALL_BYTES)
def byte_tokenizer(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Tokenizer:
    """A tokenizer of each kind whose tokens can spell any bytes."""
    return Tokenizer.from_folder(folders[request.param])


@pytest.fixture(scope="session")
def gpt2(folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer.from_folder(folders["gpt2"])


@pytest.fixture(scope="session")
def llama2(folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer.from_folder(folders["llama2"])


@pytest.fixture(scope="session")
def byte_ids(gpt2: Tokenizer) -> list[int]:
    """For each byte, the id of the gpt2 token that is only this byte."""
    single = {gpt2.token_bytes(i): i for i in range(gpt2.vocab_size)}
    return [single[bytes([value])] for value in range(256)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder with the gpt2 kind and the given settings."""

    def write_gpt2(**settings: Any) -> Path:
        return write_folder(tmp_path / "model", _byte_level(), **settings)

    return write_gpt2
