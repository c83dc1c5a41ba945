"""`--override-generation-config.temperature 0.2`: members of an object as options, as in vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from quire.errors import ConfigError

_DOTTED = re.compile(r"--([\w-]+)\.([\w.-]+)", re.ASCII)


def with_joined_members(words: Sequence[str]) -> list[str]:
    """A command line in which all dotted options of one name are one option, with a JSON object.

    Values are JSON, or else text. An object that the option is given besides has the other members.
    Raises ConfigError for a member without a value, or within one that is no object.
    """
    end = words.index("--") if "--" in words else len(words)  # behind it are no options
    joined, objects = _joined(words[:end])
    for name, members in objects.items():
        joined += [f"--{name}", json.dumps(members)]
    return joined + list(words[end:])


def _joined(words: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The other words, and each dotted option's object."""
    others: list[str] = []
    objects: dict[str, dict[str, Any]] = {_name(m): {} for m in map(_DOTTED.match, words) if m}
    rest = iter(words)
    for word in rest:
        flag, sign, text = word.partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        if (match := _DOTTED.fullmatch(flag)) is not None:
            value = text if sign else _following(rest, flag)
            _set(objects[_name(match)], match[2].split("."), _plain(value), flag)
        elif flag.startswith("--") and name in objects:
            given = _plain(text if sign else _following(rest, flag))
            if not isinstance(given, dict):
                raise ConfigError(f"{flag} must be a JSON object, as {flag}.NAME is given, too")
            objects[name] = given | objects[name]
        else:
            others.append(word)
    return others, objects


def _name(match: re.Match[str]) -> str:
    return match[1].replace("_", "-")


def _following(rest: Iterator[str], flag: str) -> str:
    value = next(rest, None)
    if value is None:
        raise ConfigError(f"{flag}: its value is missing")
    return value


def _set(members: dict[str, Any], path: list[str], value: Any, flag: str) -> None:
    """Set a member within objects; those on the way are made."""
    for key in path[:-1]:
        members = members.setdefault(key, {})
        if not isinstance(members, dict):
            raise ConfigError(f"{flag}: {key} has a value already; set one of them")
    members[path[-1]] = value


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
