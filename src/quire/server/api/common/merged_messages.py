"""Conversations for chat templates that refuse the order of their messages.

Agents send several messages of the user in a row, and system messages between others. The
templates of Mistral, Llama 2 and Gemma refuse that, and Gemma's any system message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from quire.errors import TemplateRefusalError

_INSTRUCTING = ("system", "developer")
NOTE = (
    "messages: the chat template refuses them as they are; system messages at the start are one,"
    " later ones are the user's, and messages of the user in a row are one"
)
NOTE_WITHOUT_SYSTEM = f"{NOTE}; the system message is in front of the user's"

ChatMessage = dict[str, Any]  # as chat templates read it


def render_accepted(
    render: Callable[[list[ChatMessage]], str], messages: list[ChatMessage]
) -> tuple[str, str | None]:
    """The rendered conversation, and a note if it was changed for the template.

    Raises what `render` raises; of several refusals by the template the first.
    """
    try:
        return render(messages), None
    except TemplateRefusalError:
        for other, note in _alternatives(messages):
            try:
                return render(other), note
            except TemplateRefusalError:
                pass
        raise


def _alternatives(messages: Sequence[ChatMessage]) -> Iterator[tuple[list[ChatMessage], str]]:
    """The conversation with fewer messages, the nearest first, and what to say of each."""
    num_first = next(
        (i for i, message in enumerate(messages) if message["role"] not in _INSTRUCTING),
        len(messages),
    )
    rest = [{**m, "role": "user"} if m["role"] in _INSTRUCTING else m for m in messages[num_first:]]
    system = _joined(messages[:num_first], "system")
    if (merged := [*system, *_merged(rest)]) != list(messages):
        yield merged, NOTE
    if system:
        yield _merged([{**system[0], "role": "user"}, *rest]), NOTE_WITHOUT_SYSTEM


def _merged(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages, those of the user in a row as one."""
    found: list[ChatMessage] = []
    for is_user, group in groupby(messages, lambda message: message["role"] == "user"):
        run = list(group)
        found += _joined(run, "user") if is_user else run
    return found


def _joined(messages: Sequence[ChatMessage], role: str) -> list[ChatMessage]:
    """One message with the texts of all; none of none. Different names are put before the texts."""
    if len(messages) < 2:
        return [{**message, "role": role} for message in messages]
    names = {message.get("name") for message in messages}
    named = {"name": name} if len(names) == 1 and (name := names.pop()) else {}
    texts = [_text(message, with_name=len(names) > 1) for message in messages]
    return [{"role": role, "content": "\n\n".join(texts), **named}]


def _text(message: ChatMessage, *, with_name: bool) -> str:
    content: str | list[dict[str, str]] = message["content"]
    text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    return f"{message['name']}: {text}" if with_name and message.get("name") else text
