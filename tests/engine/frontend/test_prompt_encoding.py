"""Texts that are far too long are refused before they are encoded, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.request_limits import RequestLimits
from quire.engine.frontend.prompt_encoding import (
    CUT_TOKENS,
    USUAL_CHARS_PER_TOKEN,
    encode_conversation,
    encode_prompt,
    encode_text,
)
from quire.errors import ContextLengthError
from quire.hub import resolve_model
from quire.tokenizer.tokenizer import Tokenizer


def _limits(max_model_len: int) -> RequestLimits:
    return RequestLimits(
        max_model_len=max_model_len, max_kv_tokens=10**6, vocab_size=10**6, max_num_seqs=1
    )


class _Encoder:
    """So many characters a token; notes how much it was asked to encode."""

    def __init__(self, chars_per_token: int) -> None:
        self.chars_per_token = chars_per_token
        self.num_chars = 0

    def __call__(self, text: str) -> list[int]:
        self.num_chars += len(text)
        return [0] * (len(text) // self.chars_per_token)


def test_what_a_far_too_long_text_costs_does_not_grow_with_it() -> None:
    encode = _Encoder(1)
    with pytest.raises(ContextLengthError, match="messages: its first 4000 of 60000 characters"):
        encode_prompt(_limits(1000), encode, "a" * 60_000, param="messages")
    assert encode.num_chars == USUAL_CHARS_PER_TOKEN * 1000


def test_a_long_text_of_few_tokens_is_encoded() -> None:
    encode = _Encoder(50)
    assert len(encode_prompt(_limits(1000), encode, "a" * 40_000)) == 800
    assert encode.num_chars < 3 * 40_000


def test_a_usual_text_is_encoded_once() -> None:
    encode = _Encoder(4)
    assert len(encode_prompt(_limits(1000), encode, "a" * 4000)) == 1000
    assert encode.num_chars == 4000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve_model("quire-tiny", None))


@given(st.lists(st.sampled_from(["a", " ", "the ", "  \n", "12", "é", "日本", "aaaa"]), max_size=9))
def test_only_what_cannot_fit_is_refused(tokenizer: Tokenizer, parts: list[str]) -> None:
    text, limits = "".join(parts) * 40, _limits(40)
    whole = tokenizer.encode(text)
    try:
        assert encode_prompt(limits, tokenizer.encode, text) == whole
    except ContextLengthError:
        assert len(whole) > limits.max_model_len
        assert len(text) > min(USUAL_CHARS_PER_TOKEN * limits.max_model_len, CUT_TOKENS)


def test_control_tokens_count_in_a_text_with_and_without_limits(tokenizer: Tokenizer) -> None:
    ids = [encode_text(tokenizer, "hi<|end|>", limits) for limits in (None, _limits(40))]
    assert ids[0] == ids[1] == tokenizer.encode("hi<|end|>", parse_special=True)
    assert ids[0][-1] == tokenizer.control_token_id("<|end|>")


def test_a_conversation_is_bounded_where_there_are_limits(tokenizer: Tokenizer) -> None:
    rendered = tokenizer.chat_prompt([{"role": "user", "content": "a b " * 2000}])
    assert len(encode_conversation(tokenizer, rendered, None)) > 2000
    with pytest.raises(ContextLengthError, match="messages: "):
        encode_conversation(tokenizer, rendered, _limits(40))
