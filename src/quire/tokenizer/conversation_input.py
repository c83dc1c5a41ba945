"""Checks of a conversation before a template sees it.

Checks shape and roles, brings OpenAI's spellings to those that templates read, and copies every
value into plain JSON types, so that nothing with methods reaches the template. It renders nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from quire.errors import InvalidRequestError, invalid_value
from quire.options import nearest_name

TALKING_ROLES = ("system", "developer", "user", "assistant")
ROLES = (*TALKING_ROLES, "tool", "function")
BREAK = "\ufdd0"
"""A code point that Unicode reserves for use inside programs: no text may hold it, so a program
may mark places with it (the tokenizer does, in control tokens that a user typed)."""
END_MARK = "\ufdd1"
"""The next such code point: the end of a message that is to be continued."""

_USUAL_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_ECHOED = ("annotations", "audio", "function_call", "refusal")  # empty in what clients send back
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_PLAIN_KEYS = frozenset(("role", "content"))
_KEYS = frozenset((*_USUAL_KEYS, *_REASONING_NAMES))
TextMap = Callable[[str], str]


def check_text(text: str, param: str) -> None:
    """Refuse what is not Unicode text. Raises InvalidRequestError that names `param`."""
    if not isinstance(text, str):
        raise invalid_value(param, f"must be a string, not {type(text).__name__}")
    if text.isascii():
        return
    for mark in (BREAK, END_MARK):
        if mark in text:
            problem = f"it has U+{ord(mark):04X}, which is reserved for use inside programs"
            raise invalid_value(param, f"{problem}; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid_value(
            param,
            f"half of a surrogate pair, U+{ord(text[error.start]):04X}, at character "
            f"{error.start}; send whole characters",
        ) from error


def prepare_messages(
    messages: Any, map_text: TextMap, names: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Messages as templates read them, `map_text` applied to each string but the role.

    names: the words of the template, among them the keys that messages may have besides the usual
    ones.

    The role developer becomes system where the template does not know it: most would drop the
    message in silence. As `transformers` does, keys whose value is null are dropped and a message's
    reasoning is given under each name that templates use. Content parts of type text are joined by
    line ends, as vLLM and llama.cpp do; arguments of tool calls, JSON in OpenAI's form, become
    objects.
    Raises InvalidRequestError (param "messages").
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise invalid_value("messages", "must be a list with at least one message")
    return [_prepare(m, f"messages[{i}]", map_text, names) for i, m in enumerate(messages)]


def _prepare(message: Any, where: str, map_text: TextMap, names: Collection[str]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid_value("messages", "must be an object with role and content", where=where)
    if message.keys() == _PLAIN_KEYS and type(message["content"]) is str:  # as most are
        check_text(message["content"], "messages")
        return {
            "role": _checked_role(message["role"], where, names),
            "content": map_text(message["content"]),
        }
    message = {
        key: value
        for key, value in message.items()
        if value is not None and not (key in _ECHOED and _is_empty(value))
    }
    for key in message:
        if key not in _KEYS and key not in names:
            _refuse_key(key, where)
    role = _checked_role(message.get("role"), where, names)
    if "content" in message:
        message["content"] = _joined(message["content"], f"{where}.content")
    elif role != "assistant":  # whose message may be tool calls alone
        raise invalid_value(
            "messages", "it is missing; it must be a string", where=f"{where}.content"
        )
    if "tool_calls" in message:
        message["tool_calls"] = _with_parsed_arguments(message["tool_calls"], f"{where}.tool_calls")
    if not message.keys().isdisjoint(_REASONING_NAMES):
        reasoning = next(message[n] for n in _REASONING_NAMES if n in message)
        message = {"thinking": reasoning} | message | {"reasoning_content": reasoning}
    return {
        key: role if key == "role" else plain(value, map_text, "messages", where)
        for key, value in message.items()
    }


def _is_empty(value: Any) -> bool:
    """Whether a JSON value says nothing; others, such as arrays, may have no truth value."""
    return isinstance(value, str | list | dict | int | float) and not value


def _checked_role(role: Any, where: str, names: Collection[str]) -> Any:
    """The role as the template knows it."""
    if not isinstance(role, str) or role not in ROLES:
        raise invalid_value(
            "messages",
            f"must be one of {', '.join(ROLES)}, not {role!r:.64}",
            where=f"{where}.role",
        )
    return "system" if role == "developer" and role not in names else role


def _refuse_key(key: Any, where: str) -> NoReturn:
    """Raise InvalidRequestError for a message key that no chat template reads."""
    near = nearest_name(str(key), _USUAL_KEYS)
    hint = f"did you mean {near!r}?" if near else "remove it"
    shown = str(key)[:64]
    raise invalid_value("messages", f"unknown field; {hint}", where=f"{where}.{shown}")


def _joined(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid_value("messages", "must be a string or a list of text parts", where=where)
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind != "text":
        raise invalid_value(
            "messages", f"content parts must have the type text, not {kind!r:.64}", where=where
        )
    if not isinstance(part.get("text"), str):
        raise invalid_value("messages", "must be a string", where=f"{where}.text")
    text: str = part["text"]
    return text


def _with_parsed_arguments(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise invalid_value("messages", "must be a list of objects", where=where)
    return [_with_parsed(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _with_parsed(call: dict[str, Any], where: str) -> dict[str, Any]:
    """A call whose arguments are an object; they and its name may be in it without `function`."""
    if "function" not in call and "name" in call:
        return _with_object(call, where)
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    return call | {"function": _with_object(function, f"{where}.function")}


def _with_object(function: dict[str, Any], where: str) -> dict[str, Any]:
    arguments, field = function.get("arguments"), f"{where}.arguments"
    if arguments is None:  # as in vLLM: most templates fail where there are none
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            if _is_cut(arguments, error):
                return function  # as the model wrote it
            problem = f"not JSON ({_reason(error)}); send the object"
            raise invalid_value("messages", problem, where=field) from error
    if not isinstance(arguments, dict):  # templates read them by name
        problem = "must be a JSON object; send the arguments by their names"
        raise invalid_value("messages", problem, where=field)
    return function | {"arguments": arguments}


def _is_cut(text: str, error: Exception) -> bool:
    """Whether the text is the begin of an object, as that of a call which max_tokens has cut."""
    if not isinstance(error, json.JSONDecodeError) or not text.startswith("{"):
        return False
    return error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return str(error)
    return "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"


def prepare_tools(tools: Any, map_text: TextMap) -> list[dict[str, Any]] | None:
    """Tools as plain JSON objects. Raises InvalidRequestError (param "tools")."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise invalid_value("tools", "must be a list of objects")
    prepared: list[dict[str, Any]] = plain(tools, map_text, "tools", "tools")
    return prepared


def tools_not_read() -> InvalidRequestError:
    """The error for tools beside a chat template that has no place for them."""
    fix = "remove them, or use a chat template that does"
    return invalid_value("tools", f"this model's chat template does not read them; {fix}")


def plain(value: Any, map_text: TextMap, param: str, where: str) -> Any:
    """A copy made of exact JSON types, strings (keys too) passed through `map_text`.

    Raises InvalidRequestError for any other type, for broken text, and for too deep nesting.
    """
    try:
        return _plain(value, map_text, param, where)
    except RecursionError as error:
        raise invalid_value(param, "nested too deeply; flatten it", where=where) from error


def _plain(value: Any, map_text: TextMap, param: str, where: str) -> Any:
    if isinstance(value, str):
        check_text(value, param)
        return map_text(str.__str__(value))
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, dict):
        if any(isinstance(name, tuple) for name in value):
            raise invalid_value(param, "must have strings as names, not tuples", where=where)
        return {
            _plain(k, map_text, param, where): _plain(v, map_text, param, where)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item, map_text, param, where) for item in value]
    raise invalid_value(param, f"must be a JSON value, not {type(value).__name__}", where=where)
