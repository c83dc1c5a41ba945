"""A small random model with a tokenizer, written the way real checkpoints are."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import LLM

VOCAB_SIZE = 512


@pytest.fixture(scope="module")
def llm() -> LLM:
    """The bundled model; files with another one have their own."""
    return LLM(dtype="float32", threads=1, num_blocks=300, max_logprobs=-1)


@pytest.fixture
def raises_interrupts() -> Iterator[None]:
    """Python's own handler of SIGINT, which processes of pytest-xdist may ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama in float32 with a byte-level tokenizer and a chat template."""
    return write_model(tmp_path_factory.mktemp("tiny-llama"), VOCAB_SIZE, head_dim=16)


@pytest.fixture(scope="session")
def odd_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with sizes that compiled code does not support: PyTorch modules run it."""
    return write_model(tmp_path_factory.mktemp("odd-llama"), VOCAB_SIZE - 3, head_dim=8)


@pytest.fixture(params=["tiny_model", "odd_model"])
def either_model(request: pytest.FixtureRequest) -> Path:
    """A model that compiled code runs, and one that PyTorch modules run."""
    folder: Path = request.getfixturevalue(request.param)
    return folder


def write_model(folder: Path, vocab_size: int, head_dim: int) -> Path:
    """Random weights in a folder, which is returned."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,  # spreads the logits, so that equal tokens mean equal arithmetic
    )
    torch.manual_seed(7)
    transformers.LlamaForCausalLM(config).float().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Byte-level BPE without merges: three control tokens, then one token for each byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 1, "</s>": 2} | {char: index + 3 for index, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab | {"<pad>": 0}, merges=[]))
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<pad>", "<s>", "</s>")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant: {% endif %}"
    )
    import json

    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template})
    )
