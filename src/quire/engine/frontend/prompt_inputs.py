"""Arguments of `LLM`: prompts, conversations and sampling params in the types that users pass.

Converts each to a list and names the entry that is wrong. The content is checked by the input
processor and the tokenizer.
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
    for index, item in enumerate(found):
        if not isinstance(item, str | list):
            problem = f"{type(item).__name__} is not text or a list of token ids; give either"
            raise invalid_value("prompt", problem, where=f"prompt[{index}]")
    return found


def read_conversations(messages: Conversation | Sequence[Conversation]) -> list[list[Message]]:
    """Each conversation as a list of messages. Raises InvalidRequestError."""
    if isinstance(messages, str):
        raise invalid_value(
            "messages", f"text is not a conversation; {_MESSAGES_FIX}, or use generate"
        )
    if isinstance(messages, dict):
        raise invalid_value("messages", "one message is not a list; give [message]")
    if not isinstance(messages, list | tuple):
        kind = type(messages).__name__
        raise invalid_value("messages", f"{kind} is not a conversation; {_MESSAGES_FIX}")
    if any(isinstance(item, dict) for item in messages):
        return [list(messages)]
    for index, item in enumerate(messages):
        if not isinstance(item, list | tuple):
            problem = f"{type(item).__name__} is neither a message nor a list of messages; "
            raise invalid_value("messages", problem + _MESSAGES_FIX, where=f"messages[{index}]")
    return [list(conversation) for conversation in messages]


def expand_sampling_params(
    sampling: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """The sampling params of each of `count` prompts. Raises InvalidRequestError."""
    if sampling is None:
        sampling = SamplingParams()
    if isinstance(sampling, SamplingParams):
        return [sampling] * count
    if not isinstance(sampling, list | tuple):
        kind = type(sampling).__name__
        problem = (
            f"{kind} is not a SamplingParams; give SamplingParams(...), or one for each prompt"
        )
        raise invalid_value("sampling_params", problem)
    for index, params in enumerate(sampling):
        if not isinstance(params, SamplingParams):
            problem = f"{type(params).__name__} is not a SamplingParams; give SamplingParams(...)"
            raise invalid_value("sampling_params", problem, where=f"sampling_params[{index}]")
    if len(sampling) != count:
        problem = f"{len(sampling)} given for {count} prompts; give one, or one each"
        raise invalid_value("sampling_params", problem)
    return list(sampling)


def _plain(value: Any) -> Any:
    """Arrays and tuples as lists, array elements as Python numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
