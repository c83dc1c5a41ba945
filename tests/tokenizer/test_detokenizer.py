"""The detokenizer against a reference that decodes everything again after each token."""

from __future__ import annotations

import time
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import pytest
from cpu_limit import cpu_limit
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.tokenizer.detokenizer import Detokenizer
from quire.tokenizer.tokenizer import Tokenizer

EURO, THUMB = "€".encode(), "👍🏽".encode()
FAMILY = "👩‍👩‍👧‍👦"


def is_started(data: bytes) -> bool:
    """Whether the bytes are a character without its end, or half a surrogate.

    Python's incremental decoder waits for a surrogate's third byte before it calls it wrong.
    """
    if len(data) == 2 and data[0] == 0xED and 0xA0 <= data[1] <= 0xBF:
        return True
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False


def started_tail(data: bytes) -> bytes:
    return next((data[-n:] for n in (3, 2, 1) if n <= len(data) and is_started(data[-n:])), b"")


def shown_bytes(tokenizer: Tokenizer, ids: list[int], skip: bool) -> list[bytes]:
    """What each token adds, by its definition; b"" for those that are skipped."""
    shown, first = [], True
    for token_id in ids:
        visible = tokenizer.shows(token_id, skip_special_tokens=skip)
        shown.append(tokenizer.token_bytes(token_id, first=first) if visible else b"")
        first = first and not visible
    return shown


def oracle_texts(tokenizer: Tokenizer, prompt: list[int], ids: list[int], skip: bool) -> list[str]:
    """The answer's text that is certain after each of its tokens, and at last the whole."""
    shown = shown_bytes(tokenizer, prompt + ids, skip)
    before, parts = b"".join(shown[: len(prompt)]), shown[len(prompt) :]
    tail, answer = started_tail(before), b"".join(parts)
    if tail and answer and not is_started(tail + answer[:1]):
        try:
            (tail + answer[:1]).decode()
        except UnicodeDecodeError:
            tail = b""  # the prompt's character is broken, and that is the prompt's text
    if not answer:
        tail = b""
    certain = []
    for read in accumulate(parts, initial=b""):
        data = tail + read if read else b""
        held = started_tail(data)
        certain.append(data[: len(data) - len(held)].decode(errors="replace"))
    return [*certain[1:], (tail + answer).decode(errors="replace")]


def oracle(texts: list[str], stops: list[str], include: bool, min_tokens: int) -> tuple[str, Any]:
    """(text, stop string): the first match that ends at token min_tokens or later."""
    whole = texts[-1]
    num_tokens = len(texts) - 1
    for end in range(1, len(whole) + 1):
        token = next((n for n, t in enumerate(texts[:-1], 1) if len(t) >= end), num_tokens)
        ending = [stop for stop in stops if whole[:end].endswith(stop)]
        if ending and token >= min_tokens:
            stop = max(ending, key=len)
            return whole[: end if include else end - len(stop)], stop
    return whole, None


def run(
    tokenizer: Tokenizer, prompt: list[int], ids: list[int], cuts: list[int], **options: Any
) -> tuple[list[str], Detokenizer]:
    detokenizer = Detokenizer(tokenizer, prompt, **options)
    marks = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    parts = [detokenizer.push(ids[a:b]) for a, b in pairwise(marks)]
    return [*parts, detokenizer.finish()], detokenizer


@cache
def ids_by_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    return {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}


@st.composite
def token_lists(draw: st.DrawFn, tokenizer: Tokenizer, max_size: int = 25) -> list[int]:
    """Ids of text, of characters cut anywhere, and of anything at all."""
    by_bytes = ids_by_bytes(tokenizer)
    some_bytes = st.sampled_from([EURO, THUMB, FAMILY.encode(), b"\xff", b"\xe2\x82", b"ab</s>"])
    spelled = st.one_of(st.binary(max_size=4), some_bytes).map(
        lambda data: [by_bytes[bytes([value])] for value in data if bytes([value]) in by_bytes]
    )
    anything = st.integers(0, tokenizer.vocab_size).map(lambda token_id: [token_id])
    chunks = draw(st.lists(st.one_of(spelled, anything), max_size=max_size // 2))
    return [token_id for chunk in chunks for token_id in chunk][:max_size]


def some_stops(draw: st.DrawFn, text: str) -> list[str]:
    """Pieces of the text itself, prefixes of one another among them, and others."""
    stops = draw(st.lists(st.text("ab </s>€é", min_size=1, max_size=3), max_size=2))
    for _ in range(draw(st.integers(0, 3)) if text else 0):
        start = draw(st.integers(0, len(text) - 1))
        stops.append(text[start : start + draw(st.integers(1, 6))])
    return stops


@settings(max_examples=50)
@given(data=st.data(), skip=st.booleans(), include=st.booleans(), cuts=st.lists(st.integers(0, 25)))
def test_equals_the_oracle(
    tokenizer: Tokenizer, data: st.DataObject, skip: bool, include: bool, cuts: list[int]
) -> None:
    prompt = data.draw(token_lists(tokenizer, max_size=6))
    ids = data.draw(token_lists(tokenizer))
    texts = oracle_texts(tokenizer, prompt, ids, skip)
    stops = data.draw(st.composite(some_stops)(texts[-1]))
    min_tokens = data.draw(st.integers(0, len(ids) + 1))
    parts, detokenizer = run(
        tokenizer,
        prompt,
        ids,
        cuts,
        skip_special_tokens=skip,
        stop=stops,
        include_stop_str_in_output=include,
        min_tokens=min_tokens,
    )
    expected = oracle(texts, stops, include, min_tokens)
    assert ("".join(parts), detokenizer.stop_reason) == expected


@settings(max_examples=25)
@given(data=st.data(), skip=st.booleans())
def test_without_a_prompt_it_is_decode(
    tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    ids = data.draw(token_lists(tokenizer))
    parts, detokenizer = run(tokenizer, [], ids, [], skip_special_tokens=skip)
    assert "".join(parts) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert detokenizer.num_tokens == len(ids)


@settings(max_examples=25)
@given(data=st.data())
def test_after_a_prompt_it_is_the_difference(tokenizer: Tokenizer, data: st.DataObject) -> None:
    prompt = tokenizer.encode(data.draw(st.sampled_from(["hello", "The quick", "</s>fox"])))
    ids = data.draw(token_lists(tokenizer))
    parts, _ = run(tokenizer, prompt, ids, list(range(len(ids))))
    assert tokenizer.decode(prompt) + "".join(parts) == tokenizer.decode(prompt + ids)


@settings(max_examples=25)
@given(data=st.data())
def test_each_token_sends_all_that_is_certain(tokenizer: Tokenizer, data: st.DataObject) -> None:
    prompt, ids = data.draw(token_lists(tokenizer, max_size=4)), data.draw(token_lists(tokenizer))
    detokenizer, sent = Detokenizer(tokenizer, prompt), ""
    for token_id, certain in zip(ids, oracle_texts(tokenizer, prompt, ids, True), strict=False):
        sent += detokenizer.push([token_id])
        assert sent == certain


@settings(max_examples=40)
@given(text=st.text("a é👍🏽\u200d👩🇩🇪你", max_size=12))
@example(text=FAMILY)
def test_whole_text_never_shows_a_replacement(byte_tokenizer: Tokenizer, text: str) -> None:
    ids = byte_tokenizer.encode(text, add_special_tokens=False)
    parts, _ = run(byte_tokenizer, [], ids, list(range(len(ids))))
    assert not any("\ufffd" in part for part in parts)
    assert "".join(parts).lstrip(" ") == text.lstrip(" ")


@pytest.mark.parametrize(
    ("prompt", "answer", "text"),
    [
        (b"a\xe2\x82", b"\xac!", "€!"),  # the answer completes it
        (b"a\xe2\x82", b"b", "b"),  # nothing of the prompt's broken character
        (b"a\xe2", b"\x82b", "\ufffdb"),  # broken, with a byte of the answer in it
        (b"a\xe2\x82", b"", ""),
        (b"\xf0\x9f\x91", b"\x8d", "👍"),
        (b"\xac\x82", b"\xac", "\ufffd"),
        (b"\xc3", b"\xc3\xa9", "é"),
        (b"ab", b"\xe2\x82", "\ufffd"),  # the answer's own half character, at its end
    ],
)
def test_prompts_that_end_in_half_a_character(
    gpt2: Tokenizer, byte_ids: list[int], prompt: bytes, answer: bytes, text: str
) -> None:
    ids = [byte_ids[value] for value in answer]
    parts, _ = run(gpt2, [byte_ids[value] for value in prompt], ids, list(range(len(ids))))
    assert "".join(parts) == text


def test_replacement_characters_that_the_model_writes_are_not_held(gpt2: Tokenizer) -> None:
    detokenizer = Detokenizer(gpt2, [])
    assert detokenizer.push(gpt2.encode("\ufffd")) == "\ufffd"


def test_sentencepiece_space_at_the_start(llama2: Tokenizer) -> None:
    fox = llama2.encode("fox", add_special_tokens=False)
    assert Detokenizer(llama2, []).push(fox) == "fox"
    assert Detokenizer(llama2, [1]).push(fox) == "fox"  # after <s>, which has no text
    assert Detokenizer(llama2, [1, *fox]).push(fox) == " fox"
    assert Detokenizer(llama2, [1], skip_special_tokens=False).push(fox) == " fox"


def test_a_stop_string_across_tokens(gpt2: Tokenizer, byte_ids: list[int]) -> None:
    detokenizer = Detokenizer(gpt2, [], stop=["</s", "€"])
    sent = [detokenizer.push([byte_ids[v]]) for v in b"a</b \xe2\x82\xac after"]
    assert [part for part in sent if part] == ["a", "</b", " "]
    assert detokenizer.stop_reason == "€"
    assert detokenizer.num_tokens == 8
    assert detokenizer.finish() == ""


def test_held_text_is_released_at_the_end(gpt2: Tokenizer) -> None:
    detokenizer = Detokenizer(gpt2, [], stop=["STOP"])
    assert detokenizer.push(gpt2.encode("say STO")) == "say "
    assert detokenizer.finish() == "STO"
    assert detokenizer.stop_reason is None


def test_min_tokens_counts_where_a_match_ends(gpt2: Tokenizer, byte_ids: list[int]) -> None:
    ids = [byte_ids[value] for value in b"xaabb"]
    for min_tokens, text in [(0, "x"), (3, "x"), (4, "xaabb"), (6, "xaabb")]:
        parts, _ = run(gpt2, [], ids, [], stop=["aa"], min_tokens=min_tokens)
        assert "".join(parts) == text
    parts, _ = run(gpt2, [], ids, [], stop=["ab"], min_tokens=4)
    assert "".join(parts) == "xa"


@pytest.mark.parametrize("data", [b"\xff", b"\xe2\x82", b"\xf0\x9f\x91\x8d"])
def test_time_is_linear(gpt2: Tokenizer, byte_ids: list[int], data: bytes) -> None:
    ids = [byte_ids[value] for value in data] * (32_768 // len(data))
    with cpu_limit(2.0, time.process_time):
        detokenizer = Detokenizer(gpt2, ids, stop=["\ufffd\ufffdx", "never"])
        text = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.finish()
    assert len(text) >= len(ids) // 4


def test_control_tokens_that_are_not_skipped_are_shown(llama2: Tokenizer) -> None:
    begin, end = llama2.control_token_id("<s>"), llama2.control_token_id("</s>")
    assert begin is not None
    assert end is not None
    assert llama2.control_token_id("fox") is None
    ids = [begin, *llama2.encode("fox", add_special_tokens=False), end]
    assert Detokenizer(llama2, [], kept_token_ids=[end]).push(ids) == "fox</s>"
