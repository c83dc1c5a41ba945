"""Variables of the chat template: those that a request sets, and those that all others get."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from quire.errors import ConfigError
from quire.options import json_object

logger = logging.getLogger(__name__)

_UNREAD = "the chat template has no variable for it"

# Arguments of chat_prompt, which template variables must not be able to pass a second time.
RESERVED_NAMES = frozenset(
    {"add_generation_prompt", "continue_final_message", "messages", "self", "tools"}
)


def parse_template_defaults(text: str | None) -> dict[str, Any]:
    """The variables of the setting default_chat_template_kwargs. Raises ConfigError."""
    if text is None:
        return {}
    found = json_object("default_chat_template_kwargs", text, '{"enable_thinking": false}')
    if reserved := sorted(RESERVED_NAMES & found.keys()):
        raise ConfigError(f"default_chat_template_kwargs cannot set {reserved[0]!r}; remove it")
    return found


def known_defaults(
    defaults: Mapping[str, Any], variables: Collection[str], model: str
) -> dict[str, Any]:
    """The defaults that a model's template reads; the others are named in the log.

    variables: the names that the template reads.
    """
    if unread := [name for name in defaults if name not in variables]:
        text = "default_chat_template_kwargs: the chat template of %s does not read %s"
        logger.warning(text, model, ", ".join(unread))
    return {name: value for name, value in defaults.items() if name in variables}


def requested_variables(
    given: Mapping[str, Any], effort: str | None, read: Collection[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The variables that a request sets, and the fields of it without effect, each with why.

    given: its chat_template_kwargs. effort: its reasoning_effort, which the template may read by
    another name. read: the names that the template reads.
    """
    unused = {f"chat_template_kwargs.{n[:64]}": _UNREAD for n in given if n not in read}
    variables = {name: value for name, value in given.items() if name in read}
    asked = {} if effort is None else _variable_of_effort(effort, read)
    if effort is not None and not asked:
        unused["reasoning_effort"] = _UNREAD
    for name, value in asked.items():
        if variables.setdefault(name, value) != value:
            unused["reasoning_effort"] = f"{name} has another value"
    return variables, unused


def _variable_of_effort(effort: str, read: Collection[str]) -> dict[str, Any]:
    if "reasoning_effort" in read:
        return {"reasoning_effort": effort}
    return {"enable_thinking": effort != "none"} if "enable_thinking" in read else {}
