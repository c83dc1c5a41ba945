"""From a wish for a form to a matcher, within bounds of size, depth and work.

Owns how each kind of wish becomes the library's grammar, what may be spent on it, and the words
for what is wrong. Compiled forms are kept, so that the next request with the same one only copies.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.byte_bounded_cache import ByteBoundedCache
from quire.grammar.grammar_matcher import Matcher
from quire.grammar.json_style import json_style
from quire.grammar.schema_bounds import OverBoundsError, check_embedded_schemas, check_schema

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer
    from llguidance._lib import JsonCompileOptions

DEFAULT_CACHE_BYTES = 64 << 20
# What a compiled form takes, measured: a sum that does not depend on it, and a share that does.
FORM_BYTES = 256 << 10
FORM_BYTES_PER_BYTE = 64

MAX_REASON_CHARS = 300
MAX_GBNF_CHARS = 8 << 10
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)

_ONE_OF = "two of its schemas may hold at once; use anyOf, or tell them apart by a required const"

# A schema cannot change what is JSON, nor have keywords passed over that are not understood.
_JSON_OPTIONS: JsonCompileOptions = {"coerce_one_of": False, "lenient": False}


class Spelling(Protocol):
    """What the library's own object for a vocabulary is made of."""

    def build(self) -> LLTokenizer:
        """The library's own object."""


class Compiler(Protocol):
    """What makes matchers."""

    def matcher(self, wish: StructuredOutputs) -> Matcher:
        """A matcher at the beginning of an answer. Raises InvalidRequestError."""


def problem_with(wish: StructuredOutputs, compiler: Compiler) -> str:
    """Why a form is not taken, without its field's name; empty if it is."""
    try:
        compiler.matcher(wish)
    except InvalidRequestError as error:
        return str(error).removeprefix(f"{wish.name}: ")
    return ""


class GrammarCompiler:
    """Makes matchers for one vocabulary; safe to use from several threads.

    vocabulary: called once, when the first form is compiled.
    """

    def __init__(
        self, vocabulary: Callable[[], Spelling], *, cache_bytes: int = DEFAULT_CACHE_BYTES
    ) -> None:
        self._load = vocabulary
        self._loaded: LLTokenizer | None = None
        self._loading = threading.Lock()
        self._forms: ByteBoundedCache[tuple[str, str, str | None], Matcher] = ByteBoundedCache(
            cache_bytes
        )

    def matcher(self, wish: StructuredOutputs) -> Matcher:
        """A matcher at the beginning of an answer.

        Raises InvalidRequestError, which names the wish's field and what is wrong with it.
        """
        key = wish.key
        form = self._forms.get(key)
        if form is None:
            form = _compile(wish, self._tokenizer())
            size = FORM_BYTES + FORM_BYTES_PER_BYTE * len(wish.text)
            self._forms.put(key, form, size)
        return form.copy()

    @property
    def num_cached_bytes(self) -> int:
        """What the kept forms take, as far as can be told."""
        return self._forms.num_bytes

    def _tokenizer(self) -> LLTokenizer:
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load().build()
            return self._loaded


def _compile(wish: StructuredOutputs, tokenizer: LLTokenizer) -> Matcher:
    from llguidance import LLMatcher

    try:
        state = LLMatcher(tokenizer, _grammar(wish), log_level=0, limits=_limits())
    except (OverBoundsError, ValueError) as error:
        raise wish.wrong(str(error)) from None
    form = Matcher(state)
    if form.problem is None and not any(form.allowed()):
        raise wish.wrong("no text has this form; loosen it")
    if form.problem is not None:
        raise _refusal(wish, form.problem)
    return form


def _limits() -> LLParserLimits:
    """The library's own bounds: on the work for one token, and on what a form may grow to."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=250_000,
        max_grammar_size=500_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


def _grammar(wish: StructuredOutputs) -> str:
    """The wish in the library's terms. Raises OverBoundsError or ValueError."""
    from llguidance import LLMatcher

    match wish.kind:
        case "json":
            check_schema(wish.text)
            return _json_grammar(wish, wish.text)
        case "json_object":
            return _json_grammar(wish, '{"type":"object"}')
        case "regex":
            return LLMatcher.grammar_from_regex(wish.text)
        case "choice":
            return LLMatcher.grammar_from_regex("|".join(map(_literally, wish.choice or ())))
    lark = _from_gbnf(wish.text) if _GBNF_RULE.search(wish.text) else wish.text
    check_embedded_schemas(lark)
    return LLMatcher.grammar_from_lark(lark)


def _json_grammar(wish: StructuredOutputs, schema: str) -> str:
    from llguidance import LLMatcher

    options: JsonCompileOptions = {**_JSON_OPTIONS, **json_style(wish)}  # type: ignore[typeddict-item]
    return LLMatcher.grammar_from_json_schema(schema, overrides=options)


def _from_gbnf(text: str) -> str:
    """The same grammar in Lark. The library's translator is in Python, and slow for long texts."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(text) > MAX_GBNF_CHARS:
        problem = f"a GBNF grammar of {len(text)} characters; give at most {MAX_GBNF_CHARS}"
        raise OverBoundsError(f"{problem}, or write it in Lark")
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise OverBoundsError("nested too deeply; flatten it") from None
    except Exception as error:  # the library raises the bare class
        reason = str(error)[:MAX_REASON_CHARS]
        raise OverBoundsError(f"not a GBNF grammar ({reason}); mend it") from None


def _literally(text: str) -> str:
    """A regular expression that matches this text alone."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):X}}}" for c in text)


def _refusal(wish: StructuredOutputs, problem: str) -> InvalidRequestError:
    """The library's words, without the drawing of where it is."""
    lines = [line.strip() for line in problem.splitlines()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = (causes or [lines[0]])[0].removesuffix(" <non-verbose/>")
    if "coerce_one_of" in reason:  # an option of the library, which callers do not have
        where = reason[: reason.index(": ") + 2] if reason.startswith("at ") else ""
        return wish.wrong(f"{where}oneOf: {_ONE_OF}")
    if len(reason) > MAX_REASON_CHARS:
        reason = reason[: MAX_REASON_CHARS - 1] + "…"
    return wish.wrong(f"{reason}; mend it")
