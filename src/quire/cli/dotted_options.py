"""Members of an object as options, as in vLLM.

`--override-generation-config.temperature 0.2` sets a member, `--x.names+ a,b` appends texts to a
list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from quire.errors import ConfigError
from quire.options import read_integer

_DOTTED = re.compile(r"--([\w-]+)\.(?!\d)([\w.-]+)(\+?)", re.ASCII)  # not --fim-qwen-1.5b-default


def with_joined_members(words: Sequence[str]) -> list[str]:
    """A command line in which all dotted options of one name are one option, with a JSON object.

    Values are as `member_value` reads them; lists and objects of one member are joined. An object
    that the option is given besides has the other members. Raises ConfigError for a member without
    a value, or within one that is not an object.
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
            member: Any = value.split(",") if match[3] else member_value(value)
            for key in reversed(match[2].split(".")):
                member = {key: member}
            _merge(objects[_name(match)], member, flag)
        elif flag.startswith("--") and name in objects:
            given = member_value(text if sign else _following(rest, flag))
            if not isinstance(given, dict):
                raise ConfigError(f"{flag} must be a JSON object, as {flag}.NAME is given, too")
            members, objects[name] = objects[name], given
            _merge(given, members, flag)
        else:
            others.append(word)
    return others, objects


def _name(match: re.Match[str]) -> str:
    return match[1].replace("_", "-")


def _following(rest: Iterator[str], flag: str) -> str:
    value = next(rest, None)
    if value is None or value.startswith("--"):
        raise ConfigError(f"{flag}: its value is missing; write it after the option")
    return value


def _merge(members: dict[str, Any], added: dict[str, Any], flag: str) -> None:
    """Add members to those of an object; lists are appended, and objects merged."""
    for key, value in added.items():
        known = members.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value, flag)
        elif isinstance(known, list) and isinstance(value, list):
            known += value
        elif known is not None and any(isinstance(each, dict | list) for each in (known, value)):
            raise ConfigError(f"{flag}: {key} has a value already; set one of them")
        else:
            members[key] = value


def member_value(text: str) -> Any:
    """The value of a member as it is written: JSON, an integer such as 32K, or else text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return read_integer(text)
    except ValueError:
        return text
