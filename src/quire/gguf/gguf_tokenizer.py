"""The tokenizer in a GGUF file's metadata, as the files of a model's folder.

Byte-level BPE ("gpt2") and SentencePiece's BPE ("llama"). SentencePiece merges the pair whose
token has the highest score; a list of merges in that order does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import CheckpointError
from quire.gguf.metadata import Metadata
from quire.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from quire.gguf.vocabulary_list import MODEL, NORMAL, USER_DEFINED, VocabularyList

_PRE, _MERGES = "tokenizer.ggml.pre", "tokenizer.ggml.merges"
_TEMPLATE = "tokenizer.chat_template"
_ANOTHER = "name the folder of the model's tokenizer (tokenizer='FOLDER')"
_SPACE = "\u2581"  # SentencePiece's
_LLAMA3_TOKENS = 128_256
_LONGEST_PIECE = 1024  # characters; a longer token is not merged from others
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


class UnreadTokenizerError(CheckpointError):
    """A tokenizer of a kind that is not read, for which another one may be named."""


def tokenizer_files(metadata: Metadata, words: VocabularyList) -> dict[str, Any]:
    """The objects of tokenizer.json and tokenizer_config.json, by the files' names.

    Raises UnreadTokenizerError for a kind that is not read, CheckpointError for a damaged one.
    """
    if metadata.get(MODEL) is None:
        raise _unread(metadata, MODEL, "is missing")
    kind = metadata.text(MODEL)
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(metadata, words)
    elif kind == "llama":
        tokenizer, adds_bos = _sentence_piece(metadata, words), True
    else:
        raise _unread(metadata, MODEL, f"is {kind[:64]!r}, which is not read")
    tokenizer["post_processor"] = _post_processor(metadata, words, adds_bos)
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": _settings(metadata, words)}


def chat_templates(metadata: Metadata) -> list[dict[str, str]]:
    """The chat templates, each with its name."""
    names = metadata.texts(f"{_TEMPLATE}s")
    keys = {"default": _TEMPLATE} | {name: f"{_TEMPLATE}.{name}" for name in names}
    return [
        {"name": name, "template": metadata.text(key)}
        for name, key in keys.items()
        if metadata.get(key) is not None
    ]


def _settings(metadata: Metadata, words: VocabularyList) -> dict[str, Any]:
    named = {role: words.named(name) for name, role in _ROLES.items()}
    found: dict[str, Any] = {role: text for role, text in named.items() if text is not None}
    templates = chat_templates(metadata)
    return found | ({"chat_template": templates} if templates else {})


def _byte_level(metadata: Metadata, words: VocabularyList) -> tuple[dict[str, Any], bool]:
    """A byte-level BPE tokenizer, and whether it begins texts with a token unless a key says so."""
    pre = _pre_tokenizer(metadata, words)
    vocab = words.ids()
    merges = [_pair(metadata, merge, vocab) for merge in metadata.texts(_MERGES, required=True)]
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": pre.ignores_merges}
    steps: dict[str, Any] = {"type": "Sequence", "pretokenizers": pre.steps()}
    tokenizer = {
        "normalizer": {"type": "NFC"} if pre.normalizes else None,
        "pre_tokenizer": steps,
        "decoder": _byte_level_step(),
    }
    return _tokenizer(words, model, tokenizer), pre.adds_bos


def _pre_tokenizer(metadata: Metadata, words: VocabularyList) -> PreTokenizer:
    name = metadata.text(_PRE, "default")
    if name == "default":  # as older converters leave it
        qwen = metadata.text("general.architecture", "").startswith("qwen")
        name = "qwen2" if qwen else "llama-bpe" if len(words.tokens) == _LLAMA3_TOKENS else "gpt-2"
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise _unread(metadata, _PRE, f"is {name[:64]!r}, which is not read ({known} are)")
    return PRE_TOKENIZERS[name]


def _unread(metadata: Metadata, key: str, problem: str) -> UnreadTokenizerError:
    return UnreadTokenizerError(str(metadata.wrong(key, f"{problem}; {_ANOTHER}")))


def _pair(metadata: Metadata, merge: str, vocab: Mapping[str, int]) -> list[str]:
    """The two tokens of a merge, which are in the vocabulary, as is what they become."""
    first, _, second = merge.partition(" ")
    if not (first in vocab and second in vocab and first + second in vocab):
        raise metadata.wrong(_MERGES, f"has {merge[:64]!r}, not of tokens; download the file again")
    return [first, second]


def _byte_level_step() -> dict[str, Any]:
    flags = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), True)
    return {"type": "ByteLevel", **flags}


def _sentence_piece(metadata: Metadata, words: VocabularyList) -> dict[str, Any]:
    """SentencePiece's BPE with scores, and bytes for what has no token."""
    scores = metadata.numbers("tokenizer.ggml.scores", len(words.tokens))
    vocab = words.ids()
    # text never becomes another token, such as <s> or <0x41>, whose name its pieces may spell; a
    # user's is found before, but in text whose spaces are not marked yet (Gemma's ▁▁)
    merged = (NORMAL, USER_DEFINED)
    pieces = {token: i for token, i in vocab.items() if words.kinds[i] in merged}
    has_bytes = all(f"<0x{value:02X}>" in vocab for value in range(256))
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": merges_by_score(pieces, scores),
        "byte_fallback": has_bytes,
        "fuse_unk": True,
        "unk_token": words.named("unknown"),
    }
    begins = metadata.boolean("tokenizer.ggml.add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prefix = [{"type": "Prepend", "prepend": _SPACE}] if begins else []
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins else []
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    parts = {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
    return _tokenizer(words, model, parts)


def merges_by_score(vocab: Mapping[str, int], scores: Sequence[float]) -> list[list[str]]:
    """The pairs of tokens that make up a token, those with the highest score first."""
    found = list[tuple[float, int, int, list[str]]]()
    for token, token_id in vocab.items():
        for cut in range(1, len(token) if len(token) <= _LONGEST_PIECE else 0):
            first, second = token[:cut], token[cut:]
            if first in vocab and second in vocab:
                found.append((-scores[token_id], -cut, token_id, [first, second]))
    return [pair for *_, pair in sorted(found)]


def _tokenizer(words: VocabularyList, model: Any, parts: dict[str, Any]) -> dict[str, Any]:
    return {"version": "1.0", "added_tokens": words.added(), **parts, "model": model}


def _post_processor(metadata: Metadata, words: VocabularyList, adds_bos: bool) -> Any:
    """The post-processor that puts a token before or after each text; None where there is none."""
    adds = {
        "bos": metadata.boolean("tokenizer.ggml.add_bos_token", adds_bos),
        "eos": metadata.boolean("tokenizer.ggml.add_eos_token", False),
    }
    ids = {name: words.named_id(name) for name, is_added in adds.items() if is_added}
    texts = {name: words.tokens[found] for name, found in ids.items() if found is not None}
    if not texts:
        return None

    def around(sequence: str, number: int) -> list[dict[str, Any]]:
        text: dict[str, Any] = {"Sequence": {"id": sequence, "type_id": number}}
        before, behind = (
            [{"SpecialToken": {"id": texts[name], "type_id": number}}] if name in texts else []
            for name in ("bos", "eos")
        )
        return [*before, text, *behind]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            text: {"id": text, "ids": [ids[name]], "tokens": [text]} for name, text in texts.items()
        },
    }
