"""What programs hand to `LLM`: the forms that prompts, conversations and wishes may come in.

Brings each to one list and says which entry is wrong. What is in a prompt or a message is checked
by the input processor and by the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.input_processor import Prompt
from quire.errors import invalid_value

Message = dict[str, Any]  # {"role": ..., "content": ...}
Prompts = Prompt | tuple[int, ...] | np.ndarray | Sequence[Prompt | tuple[int, ...] | np.ndarray]
Conversation = Sequence[Message]

_MESSAGES_FIX = "give a list of messages, such as [{'role': 'user', 'content': 'hello'}]"


def read_prompts(prompts: Prompts) -> list[Prompt]:
    """Each prompt as text or a list of token ids. Raises InvalidRequestError."""
    found = _plain(prompts)
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list):
        kind = type(prompts).__name__
        raise invalid_value("prompt", f"{kind} is not text, token ids or a list of them; give one")
    if found and all(isinstance(item, int) for item in found):
        return [found]
    for place, item in enumerate(found):
        if not isinstance(item, str | list):
            problem = f"{type(item).__name__} is not text or a list of token ids; give either"
            raise invalid_value("prompt", problem, where=f"prompt[{place}]")
    return found


def read_conversations(messages: Conversation | Sequence[Conversation]) -> list[list[Message]]:
    """Each conversation as a list of messages. Raises InvalidRequestError."""
    if isinstance(messages, str):
        raise invalid_value(
            "messages", f"text is no conversation; {_MESSAGES_FIX}, or use generate"
        )
    if isinstance(messages, dict):
        raise invalid_value("messages", "one message is no list; put it into one: [message]")
    if not isinstance(messages, list | tuple):
        kind = type(messages).__name__
        raise invalid_value("messages", f"{kind} is not a conversation; {_MESSAGES_FIX}")
    if any(isinstance(item, dict) for item in messages):
        return [list(messages)]
    for place, item in enumerate(messages):
        if not isinstance(item, list | tuple):
            problem = f"{type(item).__name__} is neither a message nor a list of messages; "
            raise invalid_value("messages", problem + _MESSAGES_FIX, where=f"messages[{place}]")
    return [list(conversation) for conversation in messages]


def one_for_each(
    sampling: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """The wishes of each of `count` prompts. Raises InvalidRequestError."""
    if sampling is None:
        sampling = SamplingParams()
    if isinstance(sampling, SamplingParams):
        return [sampling] * count
    if not isinstance(sampling, list | tuple):
        kind = type(sampling).__name__
        problem = f"{kind} is no SamplingParams; give SamplingParams(...), or one for each prompt"
        raise invalid_value("sampling_params", problem)
    for place, params in enumerate(sampling):
        if not isinstance(params, SamplingParams):
            problem = f"{type(params).__name__} is no SamplingParams; give SamplingParams(...)"
            raise invalid_value("sampling_params", problem, where=f"sampling_params[{place}]")
    if len(sampling) != count:
        problem = f"{len(sampling)} given for {count} prompts; give one, or one each"
        raise invalid_value("sampling_params", problem)
    return list(sampling)


def _plain(value: Any) -> Any:
    """Arrays and tuples as lists, and numbers of arrays as Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
