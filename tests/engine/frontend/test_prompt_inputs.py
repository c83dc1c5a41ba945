"""Types of prompts, conversations and sampling parameters, and how wrong ones are refused."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.input_processor import errors_name_field
from quire.engine.frontend.prompt_inputs import (
    expand_sampling_params,
    read_conversations,
    read_prompts,
)
from quire.errors import ContextLengthError, InvalidRequestError


def objects(*items: object) -> np.ndarray[Any, Any]:
    """An array of these, whatever they are."""
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ((1, 2), [[1, 2]]),
        ([(1, 2), "a"], [[1, 2], "a"]),
        (np.array([1, 2]), [[1, 2]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([np.array([1, 2], dtype=np.int32)], [[1, 2]]),
        ([np.int64(1), np.int64(2)], [[1, 2]]),
        ([], []),
        ({"prompt": "a"}, ["a"]),
        ([{"prompt_token_ids": (1, 2)}, "a"], [[1, 2], "a"]),
        (iter(["a", "b"]), ["a", "b"]),
        (range(2), [[0, 1]]),
        ({"a": 1, "b": 2}.keys(), ["a", "b"]),
        ({1: "a", 2: [3]}.values(), ["a", [3]]),
        (deque(["a", deque([1])]), ["a", [1]]),
        (objects("a", np.array([1])), ["a", [1]]),
    ],
)
def test_prompts(given: Any, read: list[Any]) -> None:
    found = read_prompts(given)
    assert found == read
    assert all(type(i) is int for prompt in found if isinstance(prompt, list) for i in prompt)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "prompt: must be text, token ids or a list of them, not NoneType"),
        (bytearray(b"ab"), "prompt: must be text, token ids or a list of them, not bytearray"),
        ({"a": 1}, r"prompt\.a: not supported; leave it out"),
        ([{"prompt": None}], r"prompt\[0\]: must have prompt or prompt_token_ids"),
        ({"prompt": 3}, r"prompt\.prompt: must be text or a list of token ids, not int"),
        (["a", 1.5], r"prompt\[1\]: must be text or a list of token ids, not float"),
        ([1, "a"], r"prompt\[0\]: must be text .*, not int"),
    ],
)
def test_wrong_prompts(given: Any, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        read_prompts(given)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([USER], [[USER]]),
        ((USER, USER), [[USER, USER]]),
        ([[USER], (USER,)], [[USER], [USER]]),
        (np.array([USER, USER]), [[USER, USER]]),
        (np.array([[USER], [USER]]), [[USER], [USER]]),
        (objects([USER], np.array([USER])), [[USER], [USER]]),
        (iter([iter([USER])]), [[USER]]),
        ([], []),
    ],
)
def test_conversations(given: Any, read: list[Any]) -> None:
    assert read_conversations(given) == read


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (USER, r"messages: must be a list of messages, not one message; put it in a list"),
        ("hello", r"messages: must be a list of messages, such as .*, not text"),
        (None, "messages: must be a list of messages, such as .*, not NoneType"),
        (5, "messages: must be a list of messages, .*, not int"),
        ([[USER], "hi"], r"messages\[1\]: must be a list of messages, .*, not str"),
    ],
)
def test_wrong_conversations(given: Any, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        read_conversations(given)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"n": 1}, r"sampling_params: must be SamplingParams\(\.\.\.\), or a list .*, not dict"),
        (
            [SamplingParams(), None],
            r"sampling_params\[1\]: must be SamplingParams\(\.\.\.\), not NoneType",
        ),
        (
            [SamplingParams()],
            "sampling_params: must be one, or one for each of the 2 prompts, not 1",
        ),
    ],
)
def test_wrong_sampling_params(given: Any, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        expand_sampling_params(given, 2)


@pytest.mark.parametrize(
    ("field", "position", "count", "message"),
    [
        ("prompt", 0, 1, "prompt: 9 tokens; shorten the prompt"),
        ("prompt", 1, 2, "prompt[1]: 9 tokens; shorten the prompt"),
        ("messages", 0, 1, "messages: 9 tokens; shorten them"),
        ("messages", 2, 3, "messages[2]: 9 tokens; shorten them"),
    ],
)
def test_errors_name_the_argument_and_the_entry(
    field: str, position: int, count: int, message: str
) -> None:
    with pytest.raises(ContextLengthError) as caught, errors_name_field(field, position, count):
        raise ContextLengthError(
            "prompt: 9 tokens; shorten the prompt", num_prompt_tokens=9, limit=8
        )
    assert (str(caught.value), caught.value.param) == (message, field)


def test_errors_about_other_fields_stay() -> None:
    with pytest.raises(InvalidRequestError, match=r"^n: wrong$"), errors_name_field("prompt", 1, 2):
        raise InvalidRequestError("n: wrong", param="n")
