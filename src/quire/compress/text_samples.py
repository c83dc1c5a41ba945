"""Token windows of a text, for calibration and, separate from those, for verification. No torch."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.compress import parquet_text
from quire.errors import CheckpointError, ConfigError, InvalidRequestError
from quire.model_folder import BUNDLED_FOLDER, check_regular, parse_json
from quire.tokenizer.conversation_input import prepare_messages
from quire.tokenizer.tokenizer import Tokenizer

DEFAULT_TEXT = BUNDLED_FOLDER / "calibration.jsonl"
_HELD_OUT = 5  # one of so many windows is left for verification
_MOST_CHARACTERS = 64 << 20  # of a file that are read
_SPACE = "\ufeff \t\r\n"  # before JSON

Windows = list[list[int]]


@dataclass(frozen=True, slots=True)
class TextSamples:
    """Windows of token ids, none in both lists. source: the file that they are from."""

    calibration: Windows
    verification: Windows
    source: str

    @property
    def digest(self) -> str:
        """A checksum of the windows for calibration."""
        return hashlib.sha256(json.dumps(self.calibration).encode()).hexdigest()


def read_samples(
    tokenizer: Tokenizer, path: Path | None, count: int, seq_len: int, *, only_chats: bool = False
) -> TextSamples:
    """At most `count` windows of `seq_len` tokens from a file, evenly over its whole length.

    path: a text file; or JSON lines or a list with "text" or "messages", perhaps in gzip; or
    parquet with such columns; None for the text that comes with Quire. only_chats: of JSON lines
    those with "messages", for models that know nothing else. One window in five is for
    verification. Raises ConfigError.
    """
    source = path or DEFAULT_TEXT
    text = _read(source)
    if only_chats:
        text = "\n".join(line for line in text.split("\n") if line.startswith('{"messages"'))
    windows = list(_windows(tokenizer, text, source, seq_len))
    verification = windows[_HELD_OUT - 1 :: _HELD_OUT]
    calibration = [w for index, w in enumerate(windows) if index % _HELD_OUT != _HELD_OUT - 1]
    if not verification:
        raise ConfigError(
            f"calibration: {source} has {len(windows)} windows of {seq_len} tokens, but {_HELD_OUT}"
            " are needed at least; use a longer text, or a smaller --seq-len"
        )
    held_out = _evenly(verification, max(1, count // (_HELD_OUT - 1)))
    name = f"chats of {source.name}" if only_chats else source.name
    return TextSamples(_evenly(calibration, count), held_out, name)


def _evenly(windows: Windows, count: int) -> Windows:
    """At most `count` windows, at even distances."""
    count = min(count, len(windows))
    return [windows[index * len(windows) // count] for index in range(count)]


def _windows(tokenizer: Tokenizer, text: str, source: Path, seq_len: int) -> Iterator[list[int]]:
    """All whole windows of a text, each with the tokens that begin a text."""
    first = tokenizer.bos_token_id
    begin = [first] if first is not None and tokenizer.encode("a")[0] == first else []
    waiting, size = list[int](), seq_len - len(begin)
    for ids in _documents(tokenizer, text, source):
        waiting += ids
        whole = len(waiting) // size * size
        yield from (begin + waiting[at : at + size] for at in range(0, whole, size))
        del waiting[:whole]  # once for a document, which may be the whole text


def _documents(tokenizer: Tokenizer, text: str, source: Path) -> Iterator[list[int]]:
    """Token ids of each document: of an object of JSON, or of the whole text."""
    entries = _entries(text, source)
    if entries is None:
        yield tokenizer.encode(text, add_special_tokens=False)
        return
    for where, value in entries:
        yield _entry_ids(tokenizer, value, f"{source}, {where}")


def _entries(text: str, source: Path) -> Iterator[tuple[str, Any]] | None:
    """The objects of JSON, in lines or a list, each with where it is; None for plain text.

    Also where the file's name does not say it: braces and quotes are not the text of a model's use.
    Raises ConfigError.
    """
    name, begin = source.name.lower().removesuffix(".gz"), text.lstrip(_SPACE)
    is_named = name.endswith((".jsonl", ".json", parquet_text.ENDING))
    if not (is_named or begin.startswith("[")):
        first = _parsed(begin.partition("\n")[0])
        if not isinstance(first, dict) or not first.keys() & {"text", "messages"}:
            return None
    try:
        return json_entries(text)
    except ValueError:
        if not is_named:
            return None
        raise ConfigError(
            f"calibration: {source} is not a JSON list, or is longer than "
            f"{_MOST_CHARACTERS >> 20} Mi characters; write its objects as JSON lines"
        ) from None


def json_entries(text: str) -> Iterator[tuple[str, Any]]:
    """The values of a JSON list or of JSON lines, each with where it is; None for what is none.

    Raises ValueError for a list that is none.
    """
    if text.lstrip(_SPACE).startswith("["):
        values = parse_json(text.encode())
        return ((f"object {number}", value) for number, value in enumerate(values, 1))
    lines = ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
    return ((f"line {number}", _parsed(line)) for number, line in lines)


def _parsed(text: str) -> Any:
    """The value of JSON; None for what is none."""
    try:
        return parse_json(text.encode())
    except ValueError:
        return None


def _entry_ids(tokenizer: Tokenizer, value: Any, where: str) -> list[int]:
    if isinstance(value, str):
        value = {"text": value}
    try:
        found = _object_ids(tokenizer, value) if isinstance(value, dict) else None
    except InvalidRequestError as error:
        raise ConfigError(f"calibration: {where}: {error}") from error
    if found is None:
        raise ConfigError(
            f'calibration: {where} must be a JSON object with a string "text" or a list '
            '"messages", or a string; correct it'
        )
    return found


def _object_ids(tokenizer: Tokenizer, values: dict[str, Any]) -> list[int] | None:
    """Token ids of its messages, else of its text; None where it has neither.

    Raises InvalidRequestError for those that no model can be given.
    """
    messages, text = values.get("messages"), values.get("text")
    if isinstance(messages, list) and messages:
        if tokenizer.has_chat_template:
            return tokenizer.encode_chat(messages, add_generation_prompt=False)
        prepared = prepare_messages(messages, str)
        text = "\n".join(message.get("content", "") for message in prepared)
    if not isinstance(text, str):
        return None
    return tokenizer.encode(text, add_special_tokens=False)


def _read(path: Path) -> str:
    """A file's text, or as many whole lines from its start as are allowed."""
    try:
        check_regular(path)  # a pipe or device might never end
    except (OSError, CheckpointError) as error:
        raise _unreadable(path, error) from error
    if path.name.endswith(parquet_text.ENDING):
        return parquet_text.parquet_lines(path, _MOST_CHARACTERS)
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            text = str(file.read(_MOST_CHARACTERS + 1))
    except UnicodeDecodeError:
        raise ConfigError(f"calibration: {path} is not UTF-8 text; convert it") from None
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error
    if len(text) <= _MOST_CHARACTERS:
        return text
    end = text.rfind("\n", 0, _MOST_CHARACTERS) + 1
    return text[: end or _MOST_CHARACTERS]


def _unreadable(path: Path, error: Exception) -> ConfigError:
    why = getattr(error, "strerror", None) or error
    return ConfigError(
        f"calibration: {path} cannot be read ({why}); name a text file, or a data set of the "
        "hub as owner/name"
    )
