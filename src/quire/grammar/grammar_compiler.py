"""Compiles structured outputs to grammar matchers, within limits of size, depth and work.

Owns the translation of each kind of structured output to llguidance, the limits, and the error
messages. Compiled grammars are cached: another request with the same one copies the matcher.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.byte_bounded_cache import ByteBoundedCache
from quire.grammar.gbnf import to_lark
from quire.grammar.grammar_matcher import DEAD_END, AnyMatcher, Matcher, ThoughtMatcher
from quire.grammar.json_style import json_style
from quire.grammar.schema_bounds import OverBoundsError, check_grammar, check_regex, check_schema

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer
    from llguidance._lib import JsonCompileOptions

DEFAULT_CACHE_BYTES = 64 << 20
# Memory of a compiled grammar, measured: a constant, and a multiple of its text.
GRAMMAR_BYTES = 256 << 10
GRAMMAR_BYTES_PER_BYTE = 64

# Keywords of JSON Schema that llguidance cannot enforce are errors; words that are no keywords are
# ignored, as JSON Schema says; and a schema cannot change what JSON is.
_JSON_OPTIONS: JsonCompileOptions = {"coerce_one_of": False, "lenient": False}


class VocabularyProtocol(Protocol):
    """A vocabulary that llguidance's tokenizer object can be built from."""

    def build(self) -> LLTokenizer:
        """llguidance's tokenizer object, for as long as this one is there."""


class Compiler(Protocol):
    """Compiles structured outputs to matchers."""

    def matcher(self, structured_outputs: StructuredOutputs) -> AnyMatcher:
        """A matcher at the beginning of an answer. Raises InvalidRequestError."""


def compile_problem(structured_outputs: StructuredOutputs, compiler: Compiler) -> str:
    """The error of compiling structured outputs, without the field's name; empty if none."""
    try:
        compiler.matcher(structured_outputs)
    except InvalidRequestError as error:
        return str(error).removeprefix(f"{structured_outputs.name}: ")
    return ""


class GrammarCompiler:
    """Compiles grammars for one vocabulary. Thread-safe.

    vocabulary: called once, when the first grammar is compiled.
    """

    def __init__(
        self,
        vocabulary: Callable[[], VocabularyProtocol],
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._load = vocabulary
        self._loaded: tuple[VocabularyProtocol, LLTokenizer] | None = None
        self._loading = threading.Lock()
        self._matchers: ByteBoundedCache[tuple[str, str, str | None], AnyMatcher] = (
            ByteBoundedCache(cache_bytes)
        )

    def matcher(self, structured_outputs: StructuredOutputs) -> AnyMatcher:
        """A matcher at the beginning of an answer.

        Raises InvalidRequestError, which names the field and what is wrong with it.
        """
        key = structured_outputs.key
        matcher = self._matchers.get(key)
        if matcher is None:
            matcher = _compile(structured_outputs, self._tokenizer())
            size = GRAMMAR_BYTES + GRAMMAR_BYTES_PER_BYTE * len(structured_outputs.text)
            size *= 1 if structured_outputs.thought_mark is None else 2
            self._matchers.put(key, matcher, size)
        elif matcher.problem is not None:  # found out by an answer
            raise structured_outputs.invalid(f"{matcher.problem}; make it simpler")
        return matcher.copy()

    def _tokenizer(self) -> LLTokenizer:
        with self._loading:
            if self._loaded is None:
                vocabulary = self._load()
                self._loaded = vocabulary, vocabulary.build()
            return self._loaded[1]


def _compile(structured_outputs: StructuredOutputs, tokenizer: LLTokenizer) -> AnyMatcher:
    def compiled(make: Callable[[], str]) -> Matcher:
        return _compiled(structured_outputs, make, tokenizer)

    answer = compiled(lambda: _to_llguidance(structured_outputs))
    if (mark := structured_outputs.thought_mark) is None:
        return answer
    # here, so that a start does not import what few requests need
    from quire.grammar.lark_text import mark_prefix_lark, marked_lark, with_thought

    thought = compiled(lambda: _checked_lark(to_lark(with_thought(structured_outputs.text))))
    marked, prefix = marked_lark(mark), mark_prefix_lark(mark)
    return ThoughtMatcher(
        answer,
        thought,
        marked=compiled(lambda: _checked_lark(marked)),
        prefix=compiled(lambda: _checked_lark(prefix)),
    )


def _compiled(
    structured_outputs: StructuredOutputs, make: Callable[[], str], tokenizer: LLTokenizer
) -> Matcher:
    """A matcher of the grammar that `make` returns in llguidance's form."""
    from llguidance import LLMatcher

    try:
        state = LLMatcher(tokenizer, make(), log_level=0, limits=_limits())
    except (OverBoundsError, ValueError) as error:
        raise structured_outputs.invalid(str(error)) from None
    matcher = Matcher(state)
    mask = matcher.token_bitmask()  # the first work for a token, which may find a problem
    if matcher.problem is not None:
        raise _refusal(structured_outputs, matcher.problem)
    if not any(mask):
        raise _refusal(structured_outputs, DEAD_END)
    return matcher


def _refusal(structured_outputs: StructuredOutputs, reason: str) -> InvalidRequestError:
    """An InvalidRequestError with llguidance's reason."""
    from quire.grammar.refusals import explained  # a start does without

    schema = json.loads(structured_outputs.text) if structured_outputs.kind == "json" else None
    return structured_outputs.invalid(explained(reason, schema))


def _limits() -> LLParserLimits:
    """llguidance's own limits: on the work for one token and on the size of the automaton.

    Items of parses count, not what it takes to find them, which ambiguity can make a thousand times
    as much. So a mask's time is bounded as well, where answers are drawn (structured_mask.py).
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=100_000,
        max_items_in_row=10_000,
        max_lexer_states=250_000,
        max_grammar_size=500_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


def _to_llguidance(structured_outputs: StructuredOutputs) -> str:
    """The grammar in llguidance's form. Raises OverBoundsError or ValueError."""
    from llguidance import LLMatcher

    match structured_outputs.kind:
        case "json":
            from quire.grammar.schema_translation import translated  # a start does without

            check_schema(structured_outputs.text)
            return _json_grammar(structured_outputs, translated(structured_outputs.text))
        case "json_object":
            return _json_grammar(structured_outputs, '{"type":"object"}')
        case "regex":
            check_regex(structured_outputs.text)
            return LLMatcher.grammar_from_regex(structured_outputs.text)
        case "choice":
            return LLMatcher.grammar_from_regex(
                "|".join(map(_literally, structured_outputs.choice or ()))
            )
    return _checked_lark(_lark(structured_outputs))


def _checked_lark(grammar: str) -> str:
    """A grammar in Lark in llguidance's form. Raises OverBoundsError."""
    from llguidance import LLMatcher

    check_grammar(grammar)
    return LLMatcher.grammar_from_lark(grammar)


def _lark(structured_outputs: StructuredOutputs) -> str:
    if structured_outputs.kind == "structural_tag":
        # here, so that a start does not import what few requests need
        from quire.grammar.structural_tag import structural_tag_lark

        return structural_tag_lark(structured_outputs.text)
    return to_lark(structured_outputs.text)


def _json_grammar(structured_outputs: StructuredOutputs, schema: str) -> str:
    from llguidance import LLMatcher

    options: JsonCompileOptions = {**_JSON_OPTIONS, **json_style(structured_outputs)}  # type: ignore[typeddict-item]
    return LLMatcher.grammar_from_json_schema(schema, overrides=options)


def _literally(text: str) -> str:
    """A regular expression that matches exactly this text."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):X}}}" for c in text)
