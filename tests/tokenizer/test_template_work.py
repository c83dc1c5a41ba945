"""Operations of a template that no clock can interrupt are bounded by what they run over."""

from __future__ import annotations

import time

import pytest

from quire.errors import InvalidRequestError
from quire.tokenizer.chat_template import ChatTemplate

DOUBLED = (
    "{% set n = namespace(a=[1], b=[1]) %}"
    "{% for i in range(26) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"
)
MANY = "{% set s = 'a' * 60000 %}"
BOMBS = {
    "text": DOUBLED + "{{ n.a }}",
    "string": DOUBLED + "{{ n.a | string | length }}",
    "joined": DOUBLED + "{{ n.a ~ 'x' }}",
    "tojson": DOUBLED + "{{ n.a | tojson | length }}",
    "join": DOUBLED + "{{ n.a | join(',') | length }}",
    "equal": DOUBLED + "{{ n.a == n.b }}",
    "less": DOUBLED + "{{ n.a < n.b }}",
    "in": DOUBLED + "{{ n.a in [n.b] }}",
    "equalto": DOUBLED + "{{ [n.a] | select('equalto', n.b) | list | length }}",
    "sort": DOUBLED + "{{ [n.a, n.b] | sort | length }}",
    "unique": DOUBLED + "{{ [n.a, n.b] | unique | list | length }}",
    "wide": "{% set a = [[[1] * 1000] * 1000] * 1000 %}{{ a | string | length }}",
    "dict": DOUBLED + "{{ {'a': n.a} | tojson | length }}",
    "reject in": "{% set x = range(20000) | list %}{{ x | reject('in', x) | list | length }}",
    "sum": "{{ range(30000) | map('string') | map('list') | sum(start=[]) | length }}",
    "replace": MANY + "{{ s | replace('a', s) | length }}",
    "replace by method": MANY + "{{ s.replace('a', s) | length }}",
    "tabs": "{% set s = '\t' * 60000 %}{{ s.expandtabs(90000) | length }}",
    "join by method": MANY + "{{ s.join(range(60000) | map('string') | list) | length }}",
    "indent": "{% set s = '\n' * 60000 %}{{ s | indent(90000) | length }}",
    "indented JSON": "{{ [[1] * 9000] * 50 | tojson(indent=90000) }}{{ [1] | tojson(indent=99) }}",
}


def render(source: str) -> str:
    template = ChatTemplate(source, origin="x", special_tokens={})
    messages = [{"role": "user", "content": "a"}]
    return template.render(messages, tools=None, add_generation_prompt=True, options={})


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_stopped(source: str) -> None:
    begin = time.thread_time()
    with pytest.raises(InvalidRequestError, match="template"):
        render(source)
    assert time.thread_time() - begin < 3.0  # one second, on a machine that is not busy


def test_each_render_has_its_own_budget() -> None:
    source = "{% set a = [1] * 90000 %}{{ a | tojson | length }}{{ a | tojson | length }}"
    for _ in range(20):
        assert render(source) == "270000" * 2


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a-b' | replace('-', '+') }}{{ 'aaa'.replace('a', 'b', 2) }}", "a+bbba"),
        ("{{ 5 | replace('5', 'x') }}{{ 'aaa' | replace('a', 'b', 1) }}", "xbaa"),
        ("{{ [1, 2] | sum }}{{ [{'a': 2}] | sum(attribute='a') }}", "32"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ 'a\nb' | indent('> ', first=true) }}", "> a\n> b"),
        ("{{ [3, 1] | sort }}{{ [1] == [1] }}{{ 1 in [1] }}", "[1, 3]TrueTrue"),
        ("{{ [1, [2]] ~ none }}", "[1, [2]]None"),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ messages[0].role is in ['user'] }}{{ '\t'.expandtabs(2) }}|", "True  |"),
        ("{{ messages[0]['content'] is string }}{{ x is defined }}", "TrueFalse"),
    ],
)  # fmt: skip
def test_usual_operations_give_what_they_gave(source: str, text: str) -> None:
    assert render(source) == text
