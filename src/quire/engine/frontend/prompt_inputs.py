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

_MESSAGES = "must be a list of messages, such as [{'role': 'user', 'content': 'hello'}]"


def read_prompts(prompts: Prompts) -> list[Prompt]:
    """Each prompt as text or a list of token ids. Raises InvalidRequestError."""
    found = _plain(prompts)
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list):
        kind = type(prompts).__name__
        raise invalid_value("prompt", f"must be text, token ids or a list of them, not {kind}")
    if found and all(isinstance(item, int) for item in found):
        return [found]
    for index, item in enumerate(found):
        if not isinstance(item, str | list):
            problem = f"must be text or a list of token ids, not {type(item).__name__}"
            raise invalid_value("prompt", problem, where=f"prompt[{index}]")
    return found


def read_conversations(messages: Conversation | Sequence[Conversation]) -> list[list[Message]]:
    """Each conversation as a list of messages. Raises InvalidRequestError."""
    if isinstance(messages, str):
        raise invalid_value("messages", f"{_MESSAGES}, not text; for text use generate")
    if isinstance(messages, dict):
        raise invalid_value(
            "messages", "must be a list of messages, not one message; put it in a list"
        )
    if not isinstance(messages, list | tuple):
        kind = type(messages).__name__
        raise invalid_value("messages", f"{_MESSAGES}, not {kind}")
    if any(isinstance(item, dict) for item in messages):
        return [list(messages)]
    for index, item in enumerate(messages):
        if not isinstance(item, list | tuple):
            problem = f"{_MESSAGES}, not {type(item).__name__}"
            raise invalid_value("messages", problem, where=f"messages[{index}]")
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
        problem = f"must be SamplingParams(...), or a list with one for each prompt, not {kind}"
        raise invalid_value("sampling_params", problem)
    for index, params in enumerate(sampling):
        if not isinstance(params, SamplingParams):
            problem = f"must be SamplingParams(...), not {type(params).__name__}"
            raise invalid_value("sampling_params", problem, where=f"sampling_params[{index}]")
    if len(sampling) != count:
        problem = f"must be one, or one for each of the {count} prompts, not {len(sampling)}"
        raise invalid_value("sampling_params", problem)
    return list(sampling)


def _plain(value: Any) -> Any:
    """Arrays and tuples as lists, array elements as Python numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
