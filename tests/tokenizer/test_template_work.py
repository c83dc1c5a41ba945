"""Operations of a template that no clock can interrupt are bounded by what they run over."""

from __future__ import annotations

import pytest
from cpu_limit import cpu_limit
from hypothesis import given
from hypothesis import strategies as st
from jinja2.utils import Namespace

from quire.background import hurry
from quire.errors import CheckpointError, InvalidRequestError
from quire.tokenizer.chat_template import ChatTemplate
from quire.tokenizer.template_prices import pricing_filter, pricing_test
from quire.tokenizer.template_work import TemplateLimitError, start_render, weight

DOUBLED = (
    "{% set n = namespace(a=[1], b=[1]) %}"
    "{% for i in range(26) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"
)
TUPLES = DOUBLED.replace("a=[1]", "a=1").replace("[n.a, n.a]", "(n.a, n.a)")  # have a hash
LONG = "{% set s = ' a' * 1000000 %}"
MANY_TIMES = 400
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
    "a view": DOUBLED + "{{ {'a': n.a}.values() }}",
    "items": DOUBLED + "{{ {'a': n.a}.items() | string | length }}",
    "a namespace": DOUBLED + "{{ n }}",
    "a namespace's text": DOUBLED + "{{ n | string | length }}",
    "a cycler": DOUBLED + "{{ cycler(n.a).items }}",
    "percent": DOUBLED + "{{ ('%s' % [n.a]) | length }}",
    "the filter format": DOUBLED + "{{ '%s' | format([n.a]) | length }}",
    "the method format": DOUBLED + "{{ '{}'.format(n.a) | length }}",
    "a mapping's format": DOUBLED + "{{ '{a}'.format_map({'a': n.a}) | length }}",
    "count": DOUBLED + "{{ [n.a].count(n.b) }}",
    "index": DOUBLED + "{{ [n.a].index(n.b) }}",
    "changed": DOUBLED + "{% for x in [n.a, n.b] %}{{ loop.changed(x) }}{% endfor %}",
    "upper": DOUBLED + "{{ n.a | upper | length }}",
    "trim": DOUBLED + "{{ n.a | trim | length }}",
    "is lower": DOUBLED + "{{ n.a is lower }}",
    "an error": DOUBLED + "{{ raise_exception(n.a) }}",
    "a macro's argument": DOUBLED + "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(n.a) }}",
    "a dict of pairs": TUPLES + "{{ dict([(n.a, 1)]) | length }}",
    "a key": TUPLES + "{{ {n.a: 1} | length }}",
    "a look-up": TUPLES + "{{ {}[n.a] }}",
    "get": TUPLES + "{{ {}.get(n.a) }}",
    "a member": TUPLES + "{{ n.a in {} }}",
    "a difference": "{% set d = dict(range(20000) | batch(2)) %}"
    + "{% set x = d.keys() - d.items() %}" * MANY_TIMES,
    "title": LONG + "{{ s | title | length }}",
    "wordwrap": LONG + "{{ s | wordwrap(1) | length }}",
    "a long word": MANY + "{{ s | wordwrap(1) | length }}" * 99,
    "wordcount": LONG + "{{ s | wordcount }}",
    "striptags": LONG + "{{ s | striptags | length }}" * 9,
    "rfind": "{% set s = 'a' * 1000000 %}{{ s.rfind('b' + 'a' * 500000) }}",
    "rsplit": "{% set s = 'a' * 1000000 %}{{ s.rsplit('b' + s[:500000]) | length }}",
    "strip": "{% set s = 'a' * 1000000 %}{{ s.strip('b' * 500000 + 'a') | length }}",
    "a format of many fields": "{% set s = '{0}' * 400000 %}{{ s.format(1) | length }}",
    "percents of open keys": "{{ ('%(' * 500000) % {} }}",
    "round": "{{ 1.5 | round(100000000, 'floor') }}",
    "a big number": "{% set x = ('1' * 1000000) | int(base=2) %}{{ x * x }}",
    "a number from bytes": "{% set x = (1).from_bytes(('a' * 1000000).encode(), 'big') %}{{ x }}",
    "slices": LONG + "{% set a = s[1:] %}" * MANY_TIMES,
    "slices of lists": "{% set x = [1] * 900000 %}" + "{% set a = x[1:] %}" * MANY_TIMES,
    "searches": LONG + "{% set a = 'b' in s %}" * MANY_TIMES,
    "joined again": LONG + "{% set a = s ~ 'x' %}" * MANY_TIMES,
    "added again": LONG + "{% set a = s + 'x' %}" * MANY_TIMES,
    "repeated again": "{% set a = 'x' * 900000 %}" * MANY_TIMES,
    "lazy filters": "{% set x = range(20000) | select('defined') | list %}" * MANY_TIMES,
    "lazy attributes": "{% set x = range(20000) | map(attribute='real') | list %}" * MANY_TIMES,
    "copies": "{% set x = [1] * 900000 %}" + "{% set a = x.copy() %}" * MANY_TIMES,
    "stripped again": LONG + "{% set a = s.strip() %}" * MANY_TIMES,
    "tabs": "{% set s = '\t' * 60000 %}{{ s.expandtabs(90000) | length }}",
    "join by a short text": MANY + "{{ ','.join([s] * 1000) | length }}",
    "a long number": "{{ ('9' * 30) | int }}",
    "a long number of a float": "{{ 1e300 | round | int }}",
    "join by method": MANY + "{{ s.join(range(60000) | map('string') | list) | length }}",
    "join of an iterator by method": MANY + "{{ s.join(range(9000) | map('string')) | length }}",
    "join of an iterator": MANY + "{{ range(9000) | map('string') | join(s) | length }}",
    "wide texts": "{{ range(9000) | map('center', 90000) | list | length }}",
    "indent": "{% set s = '\n' * 60000 %}{{ s | indent(90000) | length }}",
    "indented JSON": "{{ [[1] * 9000] * 50 | tojson(indent=90000) }}{{ [1] | tojson(indent=99) }}",
}


def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, origin="x", special_tokens={})


def render(template: ChatTemplate) -> str:
    messages = [{"role": "user", "content": "a"}]
    return template.render(messages, tools=None, add_generation_prompt=True, options={})


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_stopped(source: str) -> None:
    template = compiled(source)
    with cpu_limit(6.0), pytest.raises(InvalidRequestError, match=r"was stopped \("):
        render(template)


def test_an_operation_that_is_not_listed_costs_the_square() -> None:
    test, filtered = pricing_test("new", bool), pricing_filter("new", len)
    for function in (test, filtered):
        start_render()
        assert function("a" * 128)
        for _ in range(10):
            function("a" * 5000)
        with pytest.raises(TemplateLimitError):
            function("a" * 50_000)


@pytest.mark.parametrize("name", ["pprint", "urlize"])
def test_filters_that_are_too_slow_are_not_there(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"No filter named '{name}'"):
        compiled(f"{{{{ 'a' | {name} }}}}")


@pytest.mark.parametrize(
    "value",
    [
        "'a'.center(90000)",
        "('a' * 4000).replace('a', 'b' * 120)",
        "('a' * 4000) | replace('a', 'b' * 120)",
        "('\t' * 4000).expandtabs(4000)",
        "('\n' * 4000) | indent(4000, true, true)",
    ],
)
def test_texts_that_are_collected_have_a_price(value: str) -> None:
    """The clock would stop them, too, but after gigabytes."""
    keep = f"{{% set n.x = [n.x, {value}] %}}"
    template = compiled(
        f"{{% set n = namespace(x=0) %}}{{% for i in range(8000) %}}{keep}{{% endfor %}}"
    )
    with pytest.raises(InvalidRequestError, match="values of more than"):
        render(template)


LEAVES = st.one_of(st.integers(), st.none(), st.text(max_size=200))
HELD = st.recursive(
    LEAVES, lambda held: st.lists(held, max_size=4) | st.dictionaries(st.text(max_size=40), held)
)


def walked(value: object) -> int:
    """The weight of a value, part by part."""
    if isinstance(value, str):
        return 1 + len(value) // 32
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(walked, [*value.keys(), *value.values()]))
    return 1 + len(value) + sum(map(walked, value)) if isinstance(value, list) else 1


@given(HELD, st.integers(0, 5))
def test_a_weight_counts_a_part_as_often_as_it_appears(value: object, doublings: int) -> None:
    start_render()
    for _ in range(doublings):
        value = [value, {"a": value}, value]
    assert weight(value) == walked(value)
    if isinstance(value, dict):
        assert weight(value.items()) == 1 + sum(
            2 + walked(k) + walked(v) + 2 for k, v in value.items()
        )


@pytest.mark.parametrize("depth", [40, 10_000])
def test_a_list_held_many_times_is_weighed_at_once(depth: int) -> None:
    value: object = [1]
    for _ in range(depth):
        value = [value, value]
    with cpu_limit(0.05), pytest.raises(TemplateLimitError):
        weight(value)


def test_a_render_on_the_event_loop_has_a_small_part_of_the_work_of_others() -> None:
    start_render()
    assert weight([1] * 100_000) > 100_000
    with hurry():
        start_render()
    with pytest.raises(TemplateLimitError):
        weight([1] * 100_000)
    start_render()


def test_what_may_hold_others_unseen_has_no_weight() -> None:
    start_render()
    with pytest.raises(TemplateLimitError, match="a value of the type object"):
        weight([object()])


def test_what_holds_itself_is_too_heavy() -> None:
    value = Namespace()
    value["own"] = value
    with pytest.raises(TemplateLimitError):
        weight(value)


def test_each_render_has_its_own_budget() -> None:
    source = "{% set a = [1] * 90000 %}{{ a | tojson | length }}{{ a | tojson | length }}"
    template = compiled(source)
    for _ in range(7):
        assert render(template) == "270000" * 2


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
    assert render(compiled(source)) == text
