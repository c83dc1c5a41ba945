"""Arguments of `LLM`: prompts, conversations and sampling params in the types that users pass.

Converts each to a list and names the entry that is wrong. The content is checked by the input
processor and the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.prompt_encoding import Prompt
from quire.errors import invalid_value
from quire.plain_values import plain_value


class TextPrompt(TypedDict):
    """A prompt as a map, which is what vLLM's scripts make of this class."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt's token ids as a map."""

    prompt_token_ids: list[int]


Message = dict[str, Any]  # {"role": ..., "content": ...}
# one prompt or several: text, token ids (a list, tuple, array or tensor) and maps are all iterable;
# a union of them refuses lists that mix kinds, whose type has only what the kinds have in common
Prompts = Iterable[int | Iterable[object]]
OnePrompt = Prompt | Iterable[int] | Mapping[str, object]
Conversation = Sequence[Message]

_MESSAGES = "must be a list of messages, such as [{'role': 'user', 'content': 'hello'}]"


def read_prompts(prompts: Prompts) -> list[Prompt]:
    """Each prompt as text or a list of token ids. Raises InvalidRequestError."""
    found = plain_value(prompts)
    if isinstance(found, str | dict):
        return [_read_prompt(found, "prompt")]
    if not isinstance(found, list):
        kind = type(prompts).__name__
        raise invalid_value("prompt", f"must be text, token ids or a list of them, not {kind}")
    if found and all(isinstance(item, int) for item in found):
        return [found]
    return [_read_prompt(item, f"prompt[{index}]") for index, item in enumerate(found)]


def read_prompt(prompt: OnePrompt) -> Prompt:
    """One prompt as text or a list of token ids. Raises InvalidRequestError."""
    if isinstance(prompt, str) or (type(prompt) is list and set(map(type, prompt)) <= {int}):
        return prompt  # as a server's are; the ids need no look at each in Python
    return _read_prompt(plain_value(prompt), "prompt")


def _read_prompt(item: Any, where: str) -> Prompt:
    if isinstance(item, dict):
        return _read_map(item, where)
    if not isinstance(item, str | list):
        problem = f"must be text or a list of token ids, not {type(item).__name__}"
        raise invalid_value("prompt", problem, where=where)
    return item


def _read_map(item: dict[Any, Any], where: str) -> Prompt:
    """The prompt of a map with `prompt` or `prompt_token_ids`, as other engines have it."""
    given = {name: value for name, value in item.items() if value is not None}
    if "role" in given:
        raise invalid_value("prompt", "it is a message of a chat; use chat", where=where)
    for name in sorted(map(str, given.keys() - {"prompt", "prompt_token_ids"})):
        raise invalid_value("prompt", "not supported; leave it out", where=f"{where}.{name[:64]}")
    if not given:
        raise invalid_value("prompt", "must have prompt or prompt_token_ids", where=where)
    name = "prompt_token_ids" if "prompt_token_ids" in given else "prompt"
    return _read_prompt(plain_value(given[name]), f"{where}.{name}")


def read_conversations(given: Conversation | Iterable[Conversation]) -> list[list[Message]]:
    """Each conversation as a list of messages. Raises InvalidRequestError."""
    messages: Any = plain_value(given)
    if isinstance(messages, str):
        raise invalid_value("messages", f"{_MESSAGES}, not text; for text use generate")
    if isinstance(messages, dict):
        raise invalid_value(
            "messages", "must be a list of messages, not one message; put it in a list"
        )
    if not isinstance(messages, list):
        kind = type(messages).__name__
        raise invalid_value("messages", f"{_MESSAGES}, not {kind}")
    if any(isinstance(item, dict) for item in messages):
        return [messages]
    for index, item in enumerate(messages):
        if not isinstance(item, list):
            problem = f"{_MESSAGES}, not {type(item).__name__}"
            raise invalid_value("messages", problem, where=f"messages[{index}]")
    return messages


def expand_sampling_params(
    sampling: SamplingParams | Sequence[SamplingParams], count: int
) -> list[SamplingParams]:
    """The sampling params of each of `count` prompts. Raises InvalidRequestError."""
    if isinstance(sampling, SamplingParams):
        return [sampling] * count
    if not isinstance(sampling, list | tuple):
        kind = type(sampling).__name__
        problem = f"must be SamplingParams(...), or a list with one for each prompt, not {kind}"
        problem += "; use SamplingParams(**it)" if isinstance(sampling, dict) else ""
        raise invalid_value("sampling_params", problem)
    for index, params in enumerate(sampling):
        if not isinstance(params, SamplingParams):
            problem = f"must be SamplingParams(...), not {type(params).__name__}"
            raise invalid_value("sampling_params", problem, where=f"sampling_params[{index}]")
    if len(sampling) != count:
        problem = f"must be one, or one for each of the {count} prompts, not {len(sampling)}"
        raise invalid_value("sampling_params", problem)
    return list(sampling)
