from __future__ import annotations

import json
from typing import Any

import pytest

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.tokenizer.tokenizer import Tokenizer

A = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
STRUCTURES = [
    {"begin": "<f=a>", "schema": A, "end": "</f>"},
    {"begin": "<f=b>", "schema": None, "end": "</f>"},
]
OLDER = {"type": "structural_tag", "structures": STRUCTURES, "triggers": ["<f="]}
TAG = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": ["</t>", "</q>"]}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<t"], "tags": [TAG]}
SEPARATED = {"type": "tags_with_separator", "tags": [TAG], "separator": ", "}
WORD = {"type": "const_string", "value": "ok "}


def newer(tree: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": tree}


MATCHES = [
    (OLDER, ["", "hello", 'so <f=a>{"x": 3}</f> and', '<f=a>{"x":1}</f><f=b>"q"</f>', "<f x"]),
    (newer(TAG), ["<t>ab</t>", "<t></q>"]),
    (newer({"type": "sequence", "elements": [WORD, TRIGGERED]}), ["ok ", "ok a<t>1</t>b"]),
    (newer({**TRIGGERED, "at_least_one": True}), ["<t>1</t>", "<t>1</t> more <t>2</t>"]),
    (newer({**TRIGGERED, "stop_after_first": True}), ["x", "x<t>1</t>"]),
    (newer(SEPARATED), ["", "<t>1</t>", "<t>1</t>, <t>2</q>"]),
    (newer({**TAG, "content": TRIGGERED, "end": "</o>"}), ["<t></o>", "<t>x<t>1</t>y</o>"]),
    (
        newer({"type": "or", "elements": [{"type": "regex", "pattern": "[a/]+"}, WORD]}),
        ["a/a", "ok "],
    ),
    (newer({"type": "const_string", "value": "%json {\x7f"}), ["%json {\x7f"]),
    (newer({"type": "regex", "pattern": "a\\\nb\n\\\\"}), ["a\nb\n\\"]),
    (newer({"type": "json_schema", "json_schema": A}), ['{"x": 1}']),
]
OTHERS = [
    (OLDER, ["x<f=c>", 'x<f=a>{"x": "s"}</f>', "<f=", '<f=a>{"x": 1}']),
    (newer(TAG), ["<t>ab", "<t>ab</t>x", "ab"]),
    (newer({"type": "sequence", "elements": [WORD, TRIGGERED]}), ["a", "ok <tx>"]),
    (newer({**TRIGGERED, "at_least_one": True}), ["x", "x<t>1</t>"]),
    (newer({**TRIGGERED, "stop_after_first": True}), ["x<t>1</t>y"]),
    (newer({**SEPARATED, "at_least_one": True}), ["", "<t>1</t><t>2</t>"]),
    (newer({**TAG, "content": TRIGGERED, "end": "</o>"}), ["<t>x<t>1</t>y", "<t>x<t>1</t></o>a"]),
]


def derives(tag: dict[str, Any], text: str, compiler: GrammarCompiler, bytes_: Tokenizer) -> bool:
    """Whether a text is an answer: each token allowed, and the end token after them."""
    matcher = compiler.matcher(StructuredOutputs(structural_tag=tag))
    answer = bytes_.encode_inside(text)
    for count, token_id in enumerate([*answer, None]):
        matcher.advance_to(answer[:count])
        if matcher.is_terminated:
            return token_id is None
        mask = matcher.token_bitmask()
        wanted = bytes_.eos_token_id if token_id is None else token_id
        assert wanted is not None
        if not mask[wanted // 8] >> wanted % 8 & 1:
            return False
    return True


@pytest.mark.parametrize(("tag", "texts"), MATCHES)
def test_texts_that_a_structural_tag_allows(
    tag: dict[str, Any], texts: list[str], byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    for text in texts:
        assert derives(tag, text, byte_compiler, byte_tokenizer), text


@pytest.mark.parametrize(("tag", "texts"), OTHERS)
def test_texts_that_it_does_not_allow(
    tag: dict[str, Any], texts: list[str], byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    for text in texts:
        assert not derives(tag, text, byte_compiler, byte_tokenizer), text


TEXTS = {"type": "or", "elements": [{"type": "any_text"}] * 1000}
MANY_ENDS = {"type": "tag", "begin": "<", "content": TEXTS, "end": ["a"] * 1000}
DEEP = WORD
for _ in range(20):
    DEEP = {"type": "sequence", "elements": [DEEP]}


@pytest.mark.parametrize(
    ("tag", "problem"),
    [
        ("{", "must be a structural tag as JSON"),
        ([], "must be an object"),
        ({"structures": []}, "triggers: must be a list"),
        ({**OLDER, "triggers": ["<g"]}, r"tags\[0\]\.begin: must begin with exactly one of"),
        ({**OLDER, "at_least_one": True}, "at_least_one: not supported"),
        ({**OLDER, **newer(TAG)}, "structures: not supported"),
        ({"structures": [{"begin": 1}], "triggers": ["a"]}, r"structures\[0\]\.begin: must be a"),
        (newer({"type": "qwen_xml_parameter"}), "format.type: must be one of const_string, "),
        (newer({"type": "any_text", "excludes": ["a"]}), "format.excludes: not supported"),
        (newer({"type": "sequence", "elements": []}), "format.elements: must be a list with at"),
        (
            newer({"type": "sequence", "elements": [{"type": "any_text"}, WORD]}),
            r"format\.elements\[0\]: text must have an end",
        ),
        (newer(DEEP), "nested more than 16 deep"),
        (newer(MANY_ENDS), "its grammar is too long"),
        (newer({"type": "regex", "pattern": "(a{1000}){1000}"}), "lower the counts"),
        (newer({"type": "json_schema", "json_schema": {"not": {}}}), "that cannot be enforced: "),
    ],
)
def test_what_is_wrong_in_a_structural_tag(
    tag: Any, problem: str, byte_compiler: GrammarCompiler
) -> None:
    text = tag if isinstance(tag, str) else json.dumps(tag)
    with pytest.raises(
        InvalidRequestError, match=rf"^structured_outputs\.structural_tag: .*{problem}"
    ):
        byte_compiler.matcher(StructuredOutputs(structural_tag=text))
