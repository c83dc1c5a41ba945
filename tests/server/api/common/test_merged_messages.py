"""What agents send, to templates that take only some orders of roles."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgi_client import call
from fake_engine import FakeEngine

from quire.errors import TemplateRefusalError
from quire.server.api.common.merged_messages import NOTE, NOTE_WITHOUT_SYSTEM, render_accepted
from quire.server.app import build_app
from quire.server.settings import ServerSettings
from quire.tokenizer.chat_template import ChatTemplate

MISTRAL = (Path(__file__).parents[3] / "tokenizer/templates/mistral.jinja").read_text()
GEMMA = """{% if messages[0].role == "system" %}{{ raise_exception("no system") }}{% endif %}
{%- for m in messages %}
{%- if (m.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles") }}{% endif %}
{{- m.role[0] + ":" + m.content + "|" }}
{%- endfor %}"""


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


S, U, A, L = (
    message("system", "S"),
    message("user", "U"),
    message("assistant", "A"),
    message("system", "L"),
)


def rendered(source: str, *messages: dict[str, Any]) -> tuple[str, str | None]:
    template = ChatTemplate(
        source, origin="here", special_tokens={"bos_token": "", "eos_token": ""}
    )
    render = partial(template.render, tools=None, add_generation_prompt=True, options={})
    return render_accepted(render, list(messages))


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ((S, U, A, U), " [INST] S\n\nU [/INST] A [INST] U [/INST]"),  # as it is
        ((S, U, L), " [INST] S\n\nU\n\nL [/INST]"),  # Claude Code
        ((S, L, U, U), " [INST] S\n\nL\n\nU\n\nU [/INST]"),  # Codex
        ((U, A, L), " [INST] U [/INST] A [INST] L [/INST]"),
    ],
)
def test_mistrals_template(messages: Any, prompt: str) -> None:
    text, note = rendered(MISTRAL, *messages)
    assert text == prompt
    assert note == (None if messages == (S, U, A, U) else NOTE)


def test_gemmas_template() -> None:
    assert rendered(GEMMA, U, A, U) == ("u:U|a:A|u:U|", None)
    assert rendered(GEMMA, S, U) == ("u:S\n\nU|", NOTE_WITHOUT_SYSTEM)
    assert rendered(GEMMA, S) == ("u:S|", NOTE_WITHOUT_SYSTEM)
    parts = {"role": "user", "content": [{"type": "text", "text": "P"}]}
    assert rendered(GEMMA, parts, U, A, L)[0] == "u:P\n\nU|a:A|u:L|"


def test_names_stay_in_joined_messages() -> None:
    named = GEMMA.replace("m.role[0]", "m.role[0] ~ m.name | default('') ")
    ann, bob = {**U, "name": "ann"}, {**U, "name": "bob"}
    assert rendered(named, ann, ann) == ("uann:U\n\nU|", NOTE)
    assert rendered(named, ann, bob, U, A, bob)[0] == "u:ann: U\n\nbob: U\n\nU|a:A|ubob:U|"
    assert rendered(named, ann, U)[0] == "u:ann: U\n\nU|"
    example = {**S, "name": "example_user"}  # as OpenAI's guides write examples
    assert rendered(GEMMA, S, example, U)[0] == "u:S\n\nexample_user: S\n\nU|"


def test_the_first_refusal_is_raised() -> None:
    with pytest.raises(TemplateRefusalError, match="refuses them: no system"):
        rendered(GEMMA, S, U, A, A)


def test_the_response_says_so(engine: FakeEngine) -> None:
    plain = engine.tokenizer.chat_prompt

    def strict(messages: list[dict[str, Any]], **options: Any) -> str:
        if any(each["role"] == "system" for each in messages[1:]):
            raise TemplateRefusalError("messages: refuses them: late", param="messages")
        return plain(messages, **options)

    engine.tokenizer.chat_prompt = strict  # type: ignore[method-assign]
    app = build_app(engine, ServerSettings())
    reply = call(app, "/v1/messages", {"messages": [U, L], "system": "S", "max_tokens": 9})
    assert reply.headers["x-quire-no-effect"] == NOTE
    assert engine.last_prompt == "<system>S<user>U\n\nL<assistant>"
