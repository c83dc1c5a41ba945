"""Three small tokenizers of the two ways in which most models spell text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.vocabulary import Vocabulary
from quire.tokenizer.tokenizer import Tokenizer

EOS = "</s>"
PIECES = ["ab", "bc", "abc", "aa", "true", "fal", "se", '{"', '":', '"}', "  ", "12", "yes", "no"]


def _merged(pieces: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges that build each piece from the left."""
    tokens: dict[str, None] = {}
    merges = []
    for piece in pieces:
        for end in range(2, len(piece) + 1):
            if piece[:end] not in tokens:
                tokens[piece[:end]] = None
                merges.append((piece[: end - 1], piece[end - 1]))
    return list(tokens), merges


def byte_level(pieces: list[str]) -> Tokenizer:
    """Every byte is a token, and so are the pieces (of visible ASCII and spaces)."""
    tokens, merges = _merged([piece.replace(" ", "Ġ") for piece in pieces])
    names = ["<s>", EOS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *tokens]
    vocab = {name: index for index, name in enumerate(names)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", EOS)])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, names={"eos_token": EOS})


def sentencepiece() -> Tokenizer:
    """Pieces of text with visible spaces, and byte tokens for all that they do not spell."""
    tokens, merges = _merged(PIECES)
    letters = sorted({letter for piece in PIECES for letter in piece})
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    names = ["<unk>", "<s>", EOS, *bytes_, "▁", *letters, *tokens, "▁a"]
    vocab = {name: index for index, name in enumerate(dict.fromkeys(names))}
    backend = Backend(
        models.BPE(
            vocab=vocab,
            merges=[*merges, ("▁", "a")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", EOS)])
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend, names={"eos_token": EOS})


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: byte_level([]),
    "byte-level": lambda: byte_level(PIECES),
    "sentencepiece": sentencepiece,
}


@pytest.fixture(scope="session", params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    return TOKENIZERS["bytes"]()


def compiler_for(tokenizer: Tokenizer) -> GrammarCompiler:
    """A compiler for a model with ten more rows than the tokenizer has tokens."""
    size, eos = tokenizer.vocab_size + 10, tokenizer.eos_token_id
    assert eos is not None
    return GrammarCompiler(lambda: Vocabulary(tokenizer, size, [eos]))


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler_for(tokenizer)


@pytest.fixture(scope="session")
def byte_compiler(byte_tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler_for(byte_tokenizer)
