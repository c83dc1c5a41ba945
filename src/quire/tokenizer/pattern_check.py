"""Finds tokenizers whose regular expressions take very long.

Those that do on short texts are refused. `quick_chars` tells which texts none of the others takes
long for; longer ones are encoded in an EncodingGuard.

The library's regular expressions backtrack: `(a+)+$` tries n letters in 2^n attempts. One match
is given up after ten million steps (a third of a second), but a text of 4,096 characters has places
for a hundred such matches. Texts that repeat a unit find out, before anybody is served: each
literal of the expressions, each run of literals, one of each kind of character, and pairs of them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any

from quire.errors import is_failure

if TYPE_CHECKING:
    import tokenizers

# Limits are processor time of this thread: a busy machine does not use them up.
MAX_SECONDS = 0.05  # for one text; usual expressions take less than a thousandth
MAX_TOTAL = 0.5  # for all texts of one unit
MAX_PAIRS = 0.2  # for the texts of two units, which are as many as fit
QUICK_CHARS = 8192  # of usual tokenizers: some milliseconds
MAX_ATTEMPTS = 64 * QUICK_CHARS  # in a text, 20 ms; usual tokenizers have up to half of it
MIN_DECODED_CHARS = 256  # that a decoder's patterns must be quick for: no guard is there
_SHORTEST = 32  # characters
_GIVEN_UP = "retry-limit"  # in the library's error after ten million steps
_USUAL_SECONDS = 0.001  # for one text: pairs that take longer are slow, not many
_REPEATS = (12, 16, 20, 24, 30, 64)  # from one to the next an expression may take 250 times as long
_KINDS = "aA1 \n.é中"
_END = "!\0=:;,-_#/@x"  # so that a match of the repeated unit alone fails at last
_EXPRESSION = re.compile(rb'"Regex":("(?:[^"\\]|\\.)*")')
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]|\\g")
# an escape, and a class, which in a comment is perhaps not closed: then all that follows stays
_ESCAPE_OR_CLASS = re.compile(r"\\[^g]|\[(?:\\.|[^\]\\])*+(?:\]|(?P<rest>))", re.DOTALL)


def slow_pattern(backend: tokenizers.Tokenizer) -> str | None:
    """The part of a tokenizer that is too slow, with its patterns; None if there is none."""
    for name, part, run in _parts(backend):
        expressions = _expressions(part)
        if not expressions:
            continue
        if _is_slow(run, expressions) or (
            name == "decoder" and _quick_chars(expressions) < MIN_DECODED_CHARS
        ):
            shown = " ".join(json.dumps(text, ensure_ascii=False)[1:-1] for text in expressions)
            return f"{name} {shown[:200]}"
    return None


def quick_chars(backend: tokenizers.Tokenizer) -> int:
    """The number of characters up to which any text is encoded quickly."""
    parts = (part for name, part, _ in _parts(backend) if name != "decoder")
    return _quick_chars([text for part in parts for text in _expressions(part)])


def _quick_chars(expressions: list[str]) -> int:
    num_chars = QUICK_CHARS
    if expressions:  # many tokenizers have none
        from quire.tokenizer.pattern_cost import num_attempts

        while num_chars * num_attempts(expressions, num_chars) > MAX_ATTEMPTS:
            num_chars //= 2
            if num_chars < _SHORTEST:
                return 0
    return num_chars


def _expressions(part: Any) -> list[str]:
    state: bytes = part.__getstate__()  # which is JSON
    return [json.loads(text) for text in _EXPRESSION.findall(state)]


def _parts(backend: tokenizers.Tokenizer) -> Iterator[tuple[str, Any, Callable[[str], object]]]:
    """Name, part and a function that runs the part on a text."""
    if (normalizer := backend.normalizer) is not None:
        yield "normalizer", normalizer, normalizer.normalize_str
    if (splitter := backend.pre_tokenizer) is not None:
        yield "pre_tokenizer", splitter, splitter.pre_tokenize_str
    if (decoder := backend.decoder) is not None:
        yield "decoder", decoder, lambda text: decoder.decode([text])


def _is_slow(run: Callable[[str], object], expressions: list[str]) -> bool:
    from quire.tokenizer.pattern_literals import literal_characters, literal_runs  # as above

    chars = list(dict.fromkeys([*_KINDS, *literal_characters(expressions)]))
    units = dict.fromkeys([*chars, *literal_runs(expressions)])
    end = _END + "".join(chars[len(_KINDS) :])
    has_group = any(map(has_repeated_group, expressions))
    repeats = _REPEATS if has_group else _REPEATS[-2:]
    if _takes_long(run, _texts(units, repeats, end), MAX_TOTAL, 0.0):
        return True
    pairs = _texts(_pairs(chars), repeats, end) if has_group else ()
    return _takes_long(run, pairs, MAX_PAIRS, _USUAL_SECONDS)


def has_repeated_group(expression: str) -> bool:
    """Whether a group is repeated, or called by its name, outside escapes and classes."""
    plain = _ESCAPE_OR_CLASS.sub(lambda f: "" if f["rest"] is None else f[0], expression)
    return _REPEATED_GROUP.search(plain) is not None


def _pairs(chars: list[str]) -> Iterator[str]:
    """All ordered pairs, those of the first characters first."""
    for count, last in enumerate(chars):
        for other in chars[:count]:
            yield from (other + last, last + other)


def _texts(units: Iterable[str], repeats: tuple[int, ...], end: str) -> Iterator[str]:
    return (unit * count + end for unit in units for count in repeats)


def _takes_long(
    run: Callable[[str], object], texts: Iterable[str], limit: float, usual: float
) -> bool:
    """Whether a text takes longer than MAX_SECONDS, or all together longer than limit.

    usual: seconds for one text; where the mean is below it, the rest after the limit is left out.
    """
    total = 0.0
    for count, text in enumerate(texts, 1):
        seconds = _seconds(run, text)
        total += seconds
        if seconds > MAX_SECONDS:
            return True
        if total > limit:
            return total > count * usual
    return False


def _seconds(run: Callable[[str], object], text: str) -> float:
    """Processor time of a text, failed runs included; of 3 runs the fastest if it is too long.

    inf for a text whose match the library gives up, however fast the machine is.
    """
    seconds = _run_seconds(run, text)
    for _ in range(2):
        if seconds <= MAX_SECONDS:
            break
        seconds = min(seconds, _run_seconds(run, text))
    return seconds


def _run_seconds(run: Callable[[str], object], text: str) -> float:
    begin = time.thread_time()
    try:
        run(text)
    except BaseException as error:
        if not is_failure(error):
            raise
        if _GIVEN_UP in str(error):
            return inf
    return time.thread_time() - begin
