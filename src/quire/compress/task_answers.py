"""Questions with one right answer, scored without generation. No torch at import.

A greedy answer is the right one, token by token, just when each of its tokens is the most likely
after those before it: so one forward pass over question and answer counts exact matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.compress.text_samples import json_entries
from quire.errors import CheckpointError, ConfigError, InvalidRequestError
from quire.input_file import read_text
from quire.model_folder import BUNDLED_FOLDER, check_regular
from quire.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

BUNDLED_TASKS = BUNDLED_FOLDER / "examples.json"
_MOST_BYTES = 64 << 20
_OBJECTS = 'objects of "messages" and "expected"'


@dataclass(frozen=True, slots=True)
class Task:
    """Token ids of a question and its answer. start: where the answer begins."""

    ids: list[int]
    start: int


def read_tasks(tokenizer: Tokenizer, path: Path) -> list[Task]:
    """The questions of a file with JSON objects, in a list or in lines.

    Each has "messages" and "expected"; those whose answer is null or missing are passed over.
    Raises ConfigError, which names the line or object, also where no answer is left.
    """
    found = []
    for where, values in _values(path):
        try:
            if (task := _task(tokenizer, values)) is not None:
                found.append(task)
        except InvalidRequestError as error:
            raise ConfigError(f"tasks: {path}, {where}: {error}") from error
    if not found:
        raise ConfigError(f'tasks: {path} has no "expected"; name a file with {_OBJECTS}')
    return found


def _task(tokenizer: Tokenizer, values: Any) -> Task | None:
    """A question; None if it has no answer. Raises InvalidRequestError."""
    if not isinstance(values, dict) or not isinstance(values.get("messages"), list):
        raise InvalidRequestError('must be an object with a list of "messages"; correct it')
    messages, expected = values["messages"], values.get("expected")
    if expected is None:
        return None
    if not isinstance(expected, str):
        raise InvalidRequestError('"expected" must be a string; correct it')
    prompt, answer = tokenizer.encode_chat(messages), tokenizer.encode_inside(expected)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return Task(prompt + answer + end, len(prompt))


def count_right(tasks: list[Task], best: list[Tensor]) -> int:
    """The number of right answers. best: the most likely token after each token, [T] per task."""
    return sum(
        best[index][task.start - 1 : -1].tolist() == task.ids[task.start :]
        for index, task in enumerate(tasks)
    )


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """The values of a file, each with where it stands. Raises ConfigError."""
    try:
        check_regular(path)  # a pipe or device might never end
        return json_entries(read_text(str(path), _MOST_BYTES))
    except (OSError, ValueError, CheckpointError) as error:
        raise ConfigError(
            f"tasks: {path} cannot be read as JSON ({error}); name a file with {_OBJECTS}"
        ) from error
