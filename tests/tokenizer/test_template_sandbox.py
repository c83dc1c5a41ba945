"""The sandbox: every bomb is stopped soon, no attribute escapes, honest templates pass."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Iterator

import jinja2
import psutil
import pytest
from cpu_limit import cpu_limit
from test_template_work import BOMBS as WEIGHTS

from quire.background import TooLongError, hurry
from quire.errors import CheckpointError, InvalidRequestError
from quire.tokenizer import chat_template, template_metering
from quire.tokenizer.chat_template import ChatTemplate
from quire.tokenizer.template_sandbox import Sandbox, TemplateLimitError

BOMBS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxxxx{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for x in [1] recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% for x in range(99999) recursive %}{% if depth is not defined %}{{ loop([1, 2]) }}"
    "{% endif %}{% endfor %}",
    "{% set ns = namespace(x='xxxx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}",
    "{% set ns = namespace(x='xxxx') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}",
    "{% set x = 'xxxx' %}" + "{% set x = x ~ x %}" * 60,
    "{% set x = 'xxxx' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "{{ 'x' * 10000000000 }}",
    "{{ 10000000000 * 'x' }}",
    "{{ [1] * 10000000000 }}",
    "{{ 'x' * (99999 * 99999) }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ 99 ** 99999 }}",
    "{{ 'x'.center(10000000000) }}",
    "{{ 'x'.ljust(width=10000000000) }}",
    "{{ 'x'.zfill(10000000000) }}",
    "{{ (1).to_bytes(10000000000, 'big') }}",
    "{{ 'x'|center(10000000000) }}",
    "{{ 'x\ny'|indent(10000000000) }}",
    "{{ [1]|batch(10000000000, 'x')|list }}",
    "{{ [1]|tojson(indent=10000000000) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10000000000, 1) }}",
    "{{ '%10000000000d'|format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10000000000) }}",
    "{{ '{:{w}}'.format_map({'w': 10000000000}) }}",
    "{{ '%(a)10000000000d' % {'a': 1} }}",
    "{{ '%((a))10000000000d' % {'(a)': 1} }}",
    "{{ '%.10000000000f' % 1 }}",
    "{{ range(10000000000) }}",
    "{{ lipsum(n=1000000) }}",
    "{{ strftime_now('%10000000000d') }}",
]
SHORT_WEIGHTS = [source for source in WEIGHTS.values() if len(source) < 400]  # soon compiled
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ messages.append(1) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__['__builtins__'] }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ (messages|map(attribute='__class__')|list)[0].mro() }}",
    "{{ '{0.__class__.mro}'.format(messages) }}",
    "{{ ('%s' | attr('format'))('{0.__class__}') . x . y }}",
    "{{ messages|attr('__class__')|string|length / 0 }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
]


def render(source: str) -> str:
    return render_with(ChatTemplate(source, origin="here", special_tokens={}))


def render_with(template: ChatTemplate, content: str = "hi") -> str:
    messages = [{"role": "user", "content": content}]
    return template.render(messages, tools=None, add_generation_prompt=True, options={})


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A short CPU limit, and a memory limit of 1 GiB in case the sandbox fails."""
    monkeypatch.setattr(template_metering, "MAX_CPU_SECONDS", 0.2)
    fence = psutil.Process().memory_info().vms + 2**30
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (fence, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("source", BOMBS)
def test_bombs_are_stopped(source: str) -> None:
    said = "messages: the model's chat template"
    with cpu_limit(2.0), pytest.raises(InvalidRequestError, match=said) as caught:
        render(source)  # going off takes far longer
    assert caught.value.param == "messages"
    assert "MemoryError" not in str(caught.value)


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("source", [*BOMBS, *SHORT_WEIGHTS])
def test_bombs_leave_an_event_loop_soon(source: str) -> None:
    template = ChatTemplate(source, origin="here", special_tokens={})
    gc.disable()  # of the objects of all tests before
    try:
        begin = time.thread_time()
        with hurry():
            for _ in range(20):
                with pytest.raises((TooLongError, InvalidRequestError)):
                    render_with(template)
        seconds = time.thread_time() - begin
    finally:
        gc.enable()
    assert seconds < 1.0  # 20 of them, on a busy machine; without the hurry each may take as long


def test_a_template_that_took_long_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{% for i in range(messages[0].content | int) %}{{ i * 2 }}{% endfor %}"
    template = ChatTemplate(source, origin="here", special_tokens={})
    with hurry():
        assert render_with(template, "3") == "024"
        with pytest.raises(TooLongError):
            render_with(template, "90000")
        with pytest.raises(TooLongError):
            render_with(template, "3")
        monkeypatch.setattr(chat_template, "LONG_SECONDS", 0.0)
        template._long_until = 0.0
        assert render_with(template, "3") == "024"
    assert len(render_with(template, "90000")) > 90_000


@pytest.mark.parametrize(
    "source",
    [
        "{% if a %}{% set a = 1 %}{% endif %}" * 20_000,
        "{{ [" + "a," * 30_000 + "] }}",
        "x" * 2_000_000,
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,
        "{% if a %}" * 200 + "{% endif %}" * 200,
        "{{ " + "1" * 10_000 + " }}",
        "{{ " + "(" * 1_000 + "a" + ")" * 1_000 + " }}",
    ],
    ids=["statements", "list", "text", "loops", "depth", "number", "brackets"],
)
def test_templates_that_cannot_be_compiled_soon_are_refused(source: str) -> None:
    said = r"a\.jinja: the chat template cannot be used"
    with cpu_limit(1.0), pytest.raises(CheckpointError, match=said):
        ChatTemplate(source, origin="a.jinja", special_tokens={})


@pytest.mark.parametrize("source", ESCAPES)
def test_nothing_escapes(source: str) -> None:
    try:
        text = render(source)
    except InvalidRequestError:
        text = ""
    assert text == "", "an unsafe value renders as nothing, at most"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{{ 6 * 7 }}{{ 2 ** 10 }}{{ 99999 * 99999 }}{{ -2 * 3 }}{{ 1.5 * 2 }}",
            "4210249999800001-63.0",
        ),
        ("{{ '=' * 5 }}{{ 3 * 'ab' }}{{ [1] * 2 }}{{ -1 * 'x' }}", "=====ababab[1, 1]"),
        ("{{ '**%s** is %05.1f' % ('pi', 3.14) }}", "**pi** is 003.1"),
        ("{{ '{{{}: {:*>4}}}'.format(1700000000, 'x') }}", "{1700000000: ***x}"),
        ("{{ '%(a)s' % {'a': 1} }}{{ 7 % 4 }}{{ '%d'|format(1700000000) }}", "131700000000"),
        ("{{ '%(a)s) 2026 %%1000' % {'a': 1} }}", "1) 2026 %1000"),
        ("{{ 'x{}y'.format(1) }}{{ 'ab'.center(6) }}|{{ 'a\nb'|indent(2) }}", "x1y  ab  |a\n  b"),
        ("{{ 'a' ~ 1 ~ none }}{{ [1] + [2] }}{{ 'a' + 'b' }}", "a1None[1, 2]ab"),
        (
            "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
            "3210",
        ),
        (
            "{% for x in [[1], [2]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
            "12",
        ),
        (
            "{% for x in range(9) if x > 6 %}{{ loop.index }}{{ loop.last }}{{ x }}{% endfor %}",
            "1False72True8",
        ),
        ("{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "01"),
        ("{% for x in [] %}{% else %}empty{% endfor %}{% block b %}in{% endblock %}", "emptyin"),
        ("{% set x %}{{ 1 }}2{% endset %}{{ x }}{% generation %}said{% endgeneration %}", "12said"),
        (
            "{{ {'b': '<é>', 'a': 1}|tojson }}{{ [1]|tojson(indent=1) }}",
            '{"b": "<é>", "a": 1}[\n 1\n]',
        ),
        ("{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ strftime_now('%Y')|length }}{{ nothing }}{{ nothing is defined }}", "4False"),
    ],
)
def test_honest_templates_pass(source: str, text: str) -> None:
    assert render(source) == text


def test_the_clock_starts_with_each_render() -> None:
    template = Sandbox().from_string("{% for i in range(9) %}{{ i }}{% endfor %}")
    for _ in range(3):
        assert "".join(template.generate()) == "012345678"


def test_limits_are_template_errors() -> None:
    assert issubclass(TemplateLimitError, jinja2.TemplateError)


def test_long_conversations_are_fast_enough() -> None:
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content|trim }}{% endfor %}"
    template = ChatTemplate(source, origin="here", special_tokens={})
    messages = [{"role": "user", "content": "x" * 1000}] * 5_000
    text = template.render(messages, tools=None, add_generation_prompt=True, options={})
    assert len(text) == 5_000 * 1_006
