"""Incremental decoding: from an answer's tokens, as they come, to text that is safe to send.

It owns the bytes of a character that is not complete yet and the text that may become a stop
string. What the bytes of a token are is the tokenizer's knowledge.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from quire.tokenizer.stop_strings import StopMatcher

if TYPE_CHECKING:
    from quire.tokenizer.tokenizer import Tokenizer

_LONGEST_CHARACTER = 4  # bytes in UTF-8
_NewDecoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes the tokens of one answer as they arrive.

    All parts that `push` and `finish` return, joined, are exactly what the answer adds to the
    prompt: `decode(prompt + answer)` without `decode(prompt)`, and `decode(answer)` where the
    prompt has no text. A character that the prompt begins and the answer completes belongs to the
    answer. U+FFFD stands only for bytes that can no longer become a character. Time is linear in
    the bytes, for any tokens.

    stop: strings that end the text before them, or after them with include_stop_str_in_output.
    The match that ends first counts, the longest of those that end together; none counts that
    ends before token number min_tokens. kept_token_ids: special tokens that are not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        kept_token_ids: Collection[int] = (),
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._pieces = tokenizer.pieces(skip_special_tokens, frozenset(kept_token_ids))
        self._skip_special_tokens = skip_special_tokens
        self._kept_token_ids = kept_token_ids
        self._min_tokens = min_tokens
        self._stops = StopMatcher(stop, include_stop=include_stop_str_in_output) if stop else None
        self._utf8: codecs.IncrementalDecoder | None = None  # from the first half character on
        self._is_first, self._prompt_tail = self._read_prompt(prompt_token_ids)
        self.num_tokens = 0
        """Tokens taken; after a stop string, up to the token that completed it."""

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return None if self._stops is None else self._stops.found

    def push(self, token_ids: Sequence[int]) -> str:
        """Take further tokens; returns the new text that can be sent. Empty after a stop."""
        if self._stops is None:  # then pieces need not be looked at one by one
            self.num_tokens += len(token_ids)
            return self._read(b"".join(self._spell(token_ids)))
        parts = []
        for piece in self._spell(token_ids):
            if self._stops.found is not None:
                break
            self.num_tokens += 1
            if text := self._read(piece):
                parts.append(self._feed(self._stops, text))
        return "".join(parts)

    def breaks_character(self, token_id: int) -> bool:
        """Whether the next token leaves a character incomplete, whose U+FFFD stands before it."""
        tail = self._utf8.getstate()[0] if self._utf8 else b""
        data = self._pieces[token_id]
        return bool(tail and data) and not _continues(tail, data)

    def finish(self) -> str:
        """Return the text that was held back, after the last token. A stop string may end in it."""
        text = "" if self._utf8 is None else self._utf8.decode(b"", final=True)
        if self._stops is None:
            return text
        return self._feed(self._stops, text) + self._stops.flush()

    def _read(self, data: bytes) -> str:
        """The characters that are complete with these bytes; mostly they are so by themselves."""
        if self._utf8 is None:
            try:
                return data.decode()
            except UnicodeDecodeError:
                self._utf8 = _NewDecoder("replace")
        return self._utf8.decode(data)

    def _feed(self, stops: StopMatcher, text: str) -> str:
        return stops.feed(text, may_match=self.num_tokens >= self._min_tokens)

    def _spell(self, token_ids: Sequence[int]) -> list[bytes]:
        """Each token's bytes. Once the text has begun this is one look into a map for each."""
        if self._is_first or self._prompt_tail:
            return [self._first_bytes(token_id) for token_id in token_ids]
        return list(map(self._pieces.__getitem__, token_ids))

    def _first_bytes(self, token_id: int) -> bytes:
        """A token's bytes while they depend on what stands before the answer."""
        if not self._shows(token_id):
            return b""
        data = self._tokenizer.token_bytes(token_id, first=self._is_first)
        self._is_first = False
        if self._prompt_tail and data:
            data, self._prompt_tail = _continued(self._prompt_tail, data), b""
        return data

    def _shows(self, token_id: int) -> bool:
        skip = self._skip_special_tokens and token_id not in self._kept_token_ids
        return self._tokenizer.shows(token_id, skip_special_tokens=skip)

    def _read_prompt(self, token_ids: Sequence[int]) -> tuple[bool, bytes]:
        """(whether the answer begins the text, the prompt's last, incomplete character)."""
        tail = b"".join(map(self._pieces.__getitem__, token_ids[-_LONGEST_CHARACTER:]))
        if len(tail) >= _LONGEST_CHARACTER and tail.isascii():  # as mostly
            return False, b""
        tail, is_first = b"", True
        for token_id in reversed(token_ids):
            piece = self._pieces[token_id]
            is_first = is_first and not piece and not self._shows(token_id)
            tail = piece + tail
            if len(tail) >= _LONGEST_CHARACTER:
                break
        if tail.isascii():
            return is_first, b""
        decoder = _NewDecoder("replace")
        decoder.decode(tail)
        return is_first, decoder.getstate()[0]


def _continued(tail: bytes, data: bytes) -> bytes:
    """The prompt's incomplete character before the answer's bytes, if they go on with it.

    If they do not, its U+FFFD is the prompt's text, not the answer's.
    """
    return tail + data if _continues(tail, data) else data


def _continues(tail: bytes, data: bytes) -> bool:
    """Whether the incomplete character in front of the bytes goes on with them."""
    try:
        _NewDecoder("strict").decode(tail + data[:1])
    except UnicodeDecodeError:
        return False
    return True
