"""Questions with one right answer, scored without generation. No torch at import.

A greedy answer is the right one, token by token, just when each of its tokens is the most likely
after those before it: so one forward pass over question and answer counts exact matches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError, ConfigError, InvalidRequestError
from quire.hub import BUNDLED_FOLDER
from quire.model_folder import check_regular, parse_json
from quire.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

BUNDLED_TASKS = BUNDLED_FOLDER / "examples.json"


@dataclass(frozen=True, slots=True)
class Task:
    """Token ids of a question and its answer. start: where the answer begins."""

    ids: list[int]
    start: int


def read_tasks(tokenizer: Tokenizer, path: Path) -> list[Task]:
    """The questions of a file with JSON objects, in a list or in lines.

    Each has "messages" and "expected"; those without an answer are passed over. Raises ConfigError.
    """
    found = []
    for number, values in enumerate(_objects(path), 1):
        messages, expected = values.get("messages"), values.get("expected")
        if isinstance(messages, list) and isinstance(expected, str):
            try:
                found.append(_task(tokenizer, messages, expected))
            except InvalidRequestError as error:
                raise ConfigError(f"tasks: {path}, object {number}: {error}") from error
    return found


def _task(tokenizer: Tokenizer, messages: list[Any], expected: str) -> Task:
    prompt, answer = tokenizer.encode_chat(messages), tokenizer.encode_inside(expected)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return Task(prompt + answer + end, len(prompt))


def count_right(tasks: list[Task], best: list[Tensor]) -> int:
    """The number of right answers. best: the most likely token after each token, [T] per task."""
    return sum(
        best[index][task.start - 1 : -1].tolist() == task.ids[task.start :]
        for index, task in enumerate(tasks)
    )


def _objects(path: Path) -> list[dict[str, Any]]:
    try:
        check_regular(path)  # a pipe or device might never end
        text = path.read_text(encoding="utf-8")
        values = parse_json(text.encode()) if text.lstrip().startswith("[") else _lines(text)
    except (OSError, ValueError, CheckpointError) as error:
        raise ConfigError(
            f"tasks: {path} cannot be read as JSON ({error}); name a file with objects of "
            '"messages" and "expected"'
        ) from error
    return [each for each in values if isinstance(each, dict)]


def _lines(text: str) -> list[Any]:
    return [parse_json(line.encode()) for line in text.split("\n") if line.strip()]
