"""Variables of the chat template that requests get which do not set them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from quire.errors import ConfigError

logger = logging.getLogger(__name__)

# Arguments of chat_prompt, which template variables must not be able to pass a second time.
RESERVED_NAMES = frozenset(
    {"add_generation_prompt", "continue_final_message", "messages", "self", "tools"}
)


def parse_template_defaults(text: str | None) -> dict[str, Any]:
    """The variables of the setting default_chat_template_kwargs. Raises ConfigError."""
    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ConfigError(
            "default_chat_template_kwargs must be a JSON object, such as "
            f'{{"enable_thinking": false}}, not {text[:64]!r}'
        ) from None
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
        logger.warning(
            "default_chat_template_kwargs: the chat template of %s does not read %s",
            *(model, ", ".join(unread)),
        )
    return {name: value for name, value in defaults.items() if name in variables}
