"""Texts that are far too long are refused before they are encoded, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.request_limits import RequestLimits
from quire.engine.frontend.prompt_encoding import (
    CUT_TOKENS,
    USUAL_CHARS_PER_TOKEN,
    Encoding,
    ids_of_parts,
    token_ids_of,
)
from quire.errors import ContextLengthError, InvalidRequestError
from quire.hub import resolve_model
from quire.tokenizer.tokenizer import Tokenizer

PLAIN = Encoding(special=False)


def _limits(max_model_len: int) -> RequestLimits:
    return RequestLimits(
        max_model_len=max_model_len, max_kv_tokens=10**6, vocab_size=10**6, max_num_seqs=1
    )


class _Encoder:
    """A tokenizer with a fixed number of characters per token; counts the characters it encodes."""

    def __init__(self, chars_per_token: int) -> None:
        self.chars_per_token = chars_per_token
        self.num_chars = 0

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False
    ) -> list[int]:
        assert parse_special
        self.num_chars += len(text)
        return [1] * add_special_tokens + [0] * (len(text) // self.chars_per_token)

    def encode_prompt(self, prompt: str, *, add_special_tokens: bool = False) -> list[int]:
        return self.encode(prompt, add_special_tokens=add_special_tokens, parse_special=True)


def test_what_a_far_too_long_text_costs_does_not_grow_with_it() -> None:
    encode = _Encoder(1)
    with pytest.raises(
        ContextLengthError, match="messages: too large: its first 4000 of 60000 characters"
    ):
        token_ids_of("a" * 60_000, encode, _limits(1000), is_rendered=True)
    assert encode.num_chars == USUAL_CHARS_PER_TOKEN * 1000


def test_parts_have_the_bounds_of_a_whole_prompt() -> None:
    encode = _Encoder(1)
    assert ids_of_parts([7, "ab", 8], encode, _limits(1000)) == [7, 0, 0, 8]
    assert ids_of_parts(["ab", 8, "c"], encode, _limits(1000)) == [1, 0, 0, 8, 0]
    assert ids_of_parts(["ab", 8], encode, _limits(1000), special=False) == [0, 0, 8]
    with pytest.raises(ContextLengthError, match="its first 4000 of 5000 characters"):
        ids_of_parts([7, "a" * 5_000], encode, _limits(1000))
    encode.num_chars = 0
    with pytest.raises(ContextLengthError, match="70000 characters, but this"):
        ids_of_parts(["a"] * 70_000, encode, _limits(1000))
    assert encode.num_chars == 0


def test_a_long_text_of_few_tokens_is_encoded() -> None:
    encode = _Encoder(50)
    assert len(token_ids_of("a" * 40_000, encode, _limits(1000), PLAIN)) == 800
    assert encode.num_chars < 3 * 40_000


def test_a_usual_text_is_encoded_once() -> None:
    encode = _Encoder(4)
    assert len(token_ids_of("a" * 4000, encode, _limits(1000), PLAIN)) == 1000
    assert encode.num_chars == 4000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve_model("quire-tiny", None))


@given(st.lists(st.sampled_from(["a", " ", "the ", "  \n", "12", "é", "日本", "aaaa"]), max_size=9))
def test_only_what_cannot_fit_is_refused(tokenizer: Tokenizer, parts: list[str]) -> None:
    text, limits = "".join(parts) * 40, _limits(40)
    whole = tokenizer.encode(text)
    try:
        assert token_ids_of(text, tokenizer, limits) == whole
    except ContextLengthError:
        assert len(whole) > limits.max_model_len
        assert len(text) > min(USUAL_CHARS_PER_TOKEN * limits.max_model_len, CUT_TOKENS)


def test_control_tokens_count_in_a_text(tokenizer: Tokenizer) -> None:
    ids = token_ids_of("hi<|end|>", tokenizer, _limits(40))
    assert ids == tokenizer.encode("hi<|end|>", parse_special=True)
    assert ids[-1] == tokenizer.control_token_id("<|end|>")


@pytest.mark.parametrize("most", [1, 7, 90])
def test_the_side_that_is_cut(tokenizer: Tokenizer, most: int) -> None:
    text = " ".join(f"word{i}," for i in range(400))
    whole = token_ids_of(text, tokenizer, _limits(4000))
    first = token_ids_of(text, tokenizer, _limits(4000), Encoding(most, keeps_first=True))
    last = token_ids_of(text, tokenizer, _limits(4000), Encoding(most))
    assert (first, last) == (whole[:most], whole[-most:])


@pytest.mark.parametrize("is_rendered", [False, True])
@pytest.mark.parametrize("special", [None, False, True])
def test_special_tokens_are_added_as_asked_or_as_usual(
    special: bool | None, is_rendered: bool
) -> None:
    is_added = special if special is not None else not is_rendered
    ids = token_ids_of(
        "ab", _Encoder(1), _limits(9), Encoding(special=special), is_rendered=is_rendered
    )
    assert ids == [1] * is_added + [0, 0]


@pytest.mark.parametrize(("reserved", "length"), [(7, 93), (99, 1), (100, 99), (200, 99)])
def test_an_answer_as_long_as_the_context_leaves_the_prompt(reserved: int, length: int) -> None:
    encoding = Encoding(-1, special=False)
    ids = token_ids_of("a" * 500, _Encoder(1), _limits(100), encoding, reserved=reserved)
    assert len(ids) == length


@pytest.mark.parametrize("prompt", ["a" * 60_000, [0] * 60_000])
@pytest.mark.parametrize(("keep", "length"), [(5, 5), (1000, 1000), (-1, 993)])
@pytest.mark.parametrize("keeps_first", [False, True])
def test_a_prompt_is_cut_to_its_last_or_first_tokens(
    prompt: str | list[int], keep: int, length: int, keeps_first: bool
) -> None:
    tokenizer, limits = _Encoder(1), _limits(1000)
    encoding = Encoding(keep, special=False, keeps_first=keeps_first)
    ids = token_ids_of(prompt, tokenizer, limits, encoding, reserved=7)
    assert ids == [0] * length
    # not all is encoded
    assert tokenizer.num_chars <= USUAL_CHARS_PER_TOKEN * (length + CUT_TOKENS)
    with pytest.raises(
        InvalidRequestError,
        match=r"1001 is more than .* of 1000 tokens\. Please request a smaller",
    ):
        token_ids_of(prompt, tokenizer, limits, Encoding(1001))
