"""TokenParts: an answer's outputs, split by token, whatever came together."""

from __future__ import annotations

from itertools import pairwise

from fake_engine import FakeTokenizer, position
from hypothesis import given
from hypothesis import strategies as st

from quire.core.request_output import CompletionOutput
from quire.core.sampling_params import SamplingParams
from quire.server.api.openai.response_output import TokenParts
from quire.tokenizer.detokenizer import Detokenizer

LONE_BYTES = [0xD800 + byte for byte in "\u00e9\U0001f600".encode()]
TOKENS = st.lists(st.sampled_from([*map(ord, "ab <"), 0x1F600, *LONE_BYTES]), max_size=12)


@given(TOKENS, st.data())
def test_parts_do_not_depend_on_how_the_tokens_came(tokens: list[int], data: st.DataObject) -> None:
    tokenizer, cuts = FakeTokenizer(), [0]
    while cuts[-1] < len(tokens):
        cuts.append(data.draw(st.integers(cuts[-1] + 1, len(tokens))))
    engine = Detokenizer(tokenizer, [], stop=["< "])  # which holds text back
    splitter, parts = TokenParts(tokenizer, SamplingParams(), []), list[CompletionOutput]()
    text = ""
    for begin, end in pairwise(cuts):
        ids, is_last = tokens[begin:end], end == len(tokens)
        new = engine.push(ids) + (engine.finish() if is_last else "")
        logprobs, reason = [position(i) for i in ids], "length" if is_last else None
        parts += splitter.of(CompletionOutput(0, new, ids, logprobs, reason))
        text += new
    assert [part.token_ids for part in parts] == [[token] for token in tokens]
    assert "".join(part.text for part in parts) == text
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"] * bool(
        parts
    )
    whole = TokenParts(tokenizer, SamplingParams(), []).of(
        CompletionOutput(0, text, tokens, [position(i) for i in tokens], "length")
    )
    ends = [sum(len(p.text) for p in whole[: i + 1]) for i in range(len(tokens))]
    streamed = [sum(len(p.text) for p in parts[: i + 1]) for i in range(len(tokens))]
    assert all(s <= e for s, e in zip(streamed, ends, strict=True)), "text never comes too early"
