"""Text to token ids, in which names of control tokens may be plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from quire.background import CallerGoneError, TooLongError, is_hurried
from quire.errors import InvalidRequestError, QuireError, invalid_value, is_failure
from quire.tokenizer.conversation_input import BREAK
from quire.tokenizer.pattern_check import quick_chars

if TYPE_CHECKING:
    import tokenizers

    from quire.tokenizer.encoding_guard import EncodingGuard

MAX_REASON_CHARS = 200
_KIND = re.compile(rb'"type":"(\w+)"')
_OF_SPACES = frozenset({b"Sequence", b"Prepend", b"Replace", b"Strip"})  # normalizers' kinds


class Encoder:
    """Encodes with the library's tokenizer. control: its control tokens."""

    def __init__(
        self, backend: tokenizers.Tokenizer, control: Collection[tokenizers.AddedToken]
    ) -> None:
        self._backend = backend
        self._control = _beginnings_of(token.content for token in control)
        # other texts may become names when they are normalized, where names are looked for then
        self._hides_names = any(t.normalized for t in control) and _makes_names(backend.normalizer)
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
            backend = self._careful if is_broken else self._backend
            encode = backend.encode_batch_fast  # skips offsets, which makes it twice as fast
            if len(text) > self._quick_chars:
                return self._guarded_ids(encode, text, is_broken, add_special_tokens)
            (encoding,) = encode([text], add_special_tokens=add_special_tokens)
            ids: list[int] = encoding.ids
        except (QuireError, TooLongError, CallerGoneError):
            raise
        except BaseException as error:
            if not is_failure(error):
                raise
            raise _failure(error) from None
        return ids

    def _guarded_ids(
        self,
        encode: Callable[..., list[tokenizers.Encoding]],
        text: str,
        is_broken: bool,
        add_special_tokens: bool,
    ) -> list[int]:
        if is_hurried():
            raise TooLongError
        from quire.tokenizer.encoding_subprocess import Question

        def ids() -> list[int]:
            (encoding,) = encode([text], add_special_tokens=add_special_tokens)
            found: list[int] = encoding.ids
            return found

        return self._guard.ids(ids, Question(text, is_broken, add_special_tokens))

    def escape_control_tokens(self, text: str) -> str:
        """The text with each control token's name broken behind its first character."""
        if self._control.search(text) is None:  # which is quicker than to replace nothing
            return text
        return self._control.sub(rf"\g<0>{BREAK}", text)

    def inner_ids(self, text: str) -> list[int]:
        """Ids of a text that follows other text, without the space that some put in front."""
        before = self._line_end
        ids = self.ids(f"\n{text}")
        return ids[len(before) :] if ids[: len(before)] == before else self.ids(text)

    @cached_property
    def _line_end(self) -> list[int]:
        return self.ids("\n")

    @cached_property
    def _careful(self) -> tokenizers.Tokenizer:
        """Made when the first text with a control token's name comes: others take another path."""
        return drop_breaks(self._backend)

    @property
    def _guard(self) -> EncodingGuard:
        """Made when the first text that may take long comes."""
        with self._lock:
            if self._known_guard is None:
                from quire.tokenizer.encoding_guard import EncodingGuard

                self._known_guard = EncodingGuard(self._backend.to_str)
            return self._known_guard


def drop_breaks(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy that drops the breaks when it has found control tokens: as ids, texts are whole."""
    import tokenizers

    spec = json.loads(backend.to_str())
    drop = {"type": "Replace", "pattern": {"String": BREAK}, "content": ""}
    rest = [spec["normalizer"]] if spec["normalizer"] else []
    spec["normalizer"] = {"type": "Sequence", "normalizers": [drop, *rest]}
    for token in spec["added_tokens"]:
        token["normalized"] &= not token["special"]  # look for them before the break goes
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def _makes_names(normalizer: tokenizers.normalizers.Normalizer | None) -> bool:
    """Whether a normalizer changes letters, as NFKC and lower case do, not spaces alone."""
    state = b"" if normalizer is None else normalizer.__getstate__()
    return b'"Regex"' in state or not _OF_SPACES.issuperset(_KIND.findall(state))


def _failure(error: BaseException) -> InvalidRequestError:
    return invalid_value(
        "prompt",
        f"the model's tokenizer fails on this text ({str(error)[:MAX_REASON_CHARS]}); send another "
        "text, or serve the model with a tokenizer.json that is not damaged",
    )


def _beginnings_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches the first character of any of them, wherever one stands, also inside another.

    Texts of one character are left out: there is no place to break them.
    """
    texts = sorted(text for text in texts if len(text) > 1)
    return re.compile("|".join(f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in texts) or "(?!)")
