"""Text to token ids, in which names of control tokens may be plain text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING

from quire.background import CallerGoneError, TooLongError, is_hurried
from quire.errors import InvalidRequestError, QuireError, invalid_value, is_failure
from quire.tokenizer.control_names import (
    EncodeText,
    careful_encoder,
    hides_names,
    plain_encoder,
    stand_ins,
    tokenizer_json,
)
from quire.tokenizer.conversation_input import BREAK
from quire.tokenizer.pattern_check import quick_chars

if TYPE_CHECKING:
    import tokenizers

    from quire.tokenizer.encoding_guard import EncodingGuard

MAX_REASON_CHARS = 200


class Encoder:
    """Encodes with the library's tokenizer. control: its control tokens."""

    def __init__(
        self, backend: tokenizers.Tokenizer, control: Collection[tokenizers.AddedToken]
    ) -> None:
        self._backend = backend
        names = [token.content for token in control]
        self._stand_ins = stand_ins(backend, names)
        self._control = _beginnings_of(names, self._stand_ins)
        self._plain = plain_encoder(backend)
        self._hides_names = hides_names(backend, control)
        self._quick_chars = quick_chars(backend)
        self._lock = Lock()
        self._known_guard: EncodingGuard | None = None

    def ids(
        self, text: str, *, add_special_tokens: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text. Names of control tokens are these tokens, unless they are broken.

        parse_special: also what becomes such a name when it is normalized.
        Raises InvalidRequestError (param "prompt") where the library fails: a tokenizer.json can
        ask for what it cannot do, and it may find out with some texts only. What may take long
        runs in the guard, whose errors come besides; on an event loop TooLongError.
        """
        try:
            is_broken = BREAK in text or (self._hides_names and not parse_special)
            encode = self._careful if is_broken else self._plain
            if len(text) > self._quick_chars:
                return self._guarded_ids(encode, text, is_broken, add_special_tokens)
            return encode(text, add_special_tokens)
        except (QuireError, TooLongError, CallerGoneError):
            raise
        except BaseException as error:
            if not is_failure(error):
                raise
            raise _failure(error) from None

    def _guarded_ids(
        self, encode: EncodeText, text: str, is_broken: bool, add_special_tokens: bool
    ) -> list[int]:
        if is_hurried():
            raise TooLongError
        from quire.tokenizer.encoding_subprocess import Question

        question = Question(text, is_broken, add_special_tokens)
        return self._guard.ids(partial(encode, text, add_special_tokens), question)

    def escape_control_tokens(self, text: str) -> str:
        """The text with each control token's name broken behind its first character.

        Or written as its stand-in, if it has one.
        """
        if self._control.search(text) is None:  # which is quicker than to replace nothing
            return text
        return self._control.sub(lambda m: self._stand_ins.get(m[0], f"{m[0]}{BREAK}"), text)

    def inner_ids(self, text: str) -> list[int]:
        """Ids of a text that follows other text, without the space that some put in front."""
        before = self._line_end
        ids = self.ids(f"\n{text}")
        return ids[len(before) :] if ids[: len(before)] == before else self.ids(text)

    @cached_property
    def _line_end(self) -> list[int]:
        return self.ids("\n")

    @cached_property
    def _careful(self) -> EncodeText:
        """Made when the first text with a control token's name comes: others take another path."""
        return careful_encoder(self._backend)

    @property
    def _guard(self) -> EncodingGuard:
        """Made when the first text that may take long comes."""
        with self._lock:
            if self._known_guard is None:
                from quire.tokenizer.encoding_guard import EncodingGuard

                self._known_guard = EncodingGuard(partial(tokenizer_json, self._backend))
            return self._known_guard


def _failure(error: BaseException) -> InvalidRequestError:
    return invalid_value(
        "prompt",
        f"the model's tokenizer fails on this text ({str(error)[:MAX_REASON_CHARS]}); send another "
        "text, or serve the model with a tokenizer.json that is not damaged",
    )


def _beginnings_of(texts: Iterable[str], stand_ins: Collection[str]) -> re.Pattern[str]:
    """Matches the first character of any of them, wherever one stands, also inside another.

    Texts of one character without a stand-in are left out: there is no place to break them.
    """
    texts = sorted(text for text in texts if len(text) > 1 or text in stand_ins)
    return re.compile("|".join(f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in texts) or "(?!)")
