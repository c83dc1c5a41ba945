"""CPU seconds and memory that the costliest grammars within the bounds take to compile.

    python benchmarks/grammar_bounds.py [--save] [--only masks]

Each is as large as its bound allows, and is compiled in a process of its own, which is given
up after a minute. The first tokens of its answer are computed, too, as a check of the grammar does.

Then, for usual and for hostile grammars and a vocabulary of 100,000 tokens: how long the other
requests of a step wait for an answer's masks, as a multiple of a usual schema's mean.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import record

from quire.core.structured_outputs import MAX_GRAMMAR_BYTES, MAX_REGEX_BYTES, StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.vocabulary import GreedyVocabulary, Vocabulary
from quire.hub import resolve_model
from quire.sampling.caller_budgets import CallerBudgets, StepMasks
from quire.sampling.mask_thread import MaskThread
from quire.sampling.structured_mask import GrammarConstraint, compute_masks
from quire.tokenizer.tokenizer import Tokenizer

GIVE_UP_SECONDS = 60.0
Fields = dict[str, Any]


def fill(piece: str, size: int, joint: str = "") -> str:
    """As many copies as fit."""
    return joint.join([piece] * max(1, size // (len(piece) + len(joint))))


def regexes() -> Iterator[tuple[str, Fields]]:
    """Repetitions in one another, unions, classes of Unicode, and counters."""
    size = MAX_REGEX_BYTES
    nested = "a"
    for _ in range(40):
        nested = f"(?:{nested}){{1,100}}"
    yield "repeats in one another", {"regex": nested}
    yield "exponential backtracking", {"regex": fill("(a+)+", size - 8) + "b"}
    yield "exponential automaton", {"regex": "(a|b)*a(a|b){1000}"}
    yield "many counters", {"regex": fill("(.*a.{99})", size, "|")}
    yield "counters in a row", {"regex": fill("(a{1,999}b?){1,999}", size)}
    yield "a repeat of 100,000", {"regex": "(ab?c?){1,100000}"}
    yield "repeats of 10,000 classes", {"regex": fill(r"(\p{L}{1,999}\w{1,999}){1,99}", size)}
    yield "optionals", {"regex": fill("a?", size // 2) + fill("a", size // 2)}
    yield "unions of classes", {"regex": fill(r"[\p{L}--[a-z]]+\w*\d*", size - 8, "|")}
    yield "complements", {"regex": fill(r"[^\W\d_]*\W*", size)}
    yield "dots", {"regex": fill(".*x", size)}


def schemas() -> Iterator[tuple[str, Fields]]:
    """Enums, references, unions, patterns and numbers, up to the bounds on schemas."""
    yield "an enum of 9,900", {"json": {"enum": [f"{i:05d}" for i in range(6000)]}}
    yield "an enum of prefixes", {"json": {"enum": ["a" * i for i in range(340)]}}
    chain = {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 2} for i in range(900)}
    yield "doubling references", {"json": {"$defs": chain | {"n900": {}}, "$ref": "#/$defs/n0"}}
    wide = {f"n{i}": {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 2} for i in range(30)}
    yield (
        "doubling conjunctions",
        {"json": {"$defs": wide | {"n30": {"type": "object"}}, "$ref": "#/$defs/n0"}},
    )
    each = {f"n{i}": {"$ref": f"#/$defs/n{(i * 7 + 1) % 500}"} for i in range(500)}
    every = [{"properties": {k: {"$ref": f"#/$defs/{k}"}}} for k in each]
    yield "references to all", {"json": {"$defs": each | {"n3": {"anyOf": every}}, "anyOf": every}}
    many = {f"p{i}": {"type": "string", "maxLength": 9999} for i in range(1200)}
    yield "1,200 optional members", {"json": {"type": "object", "properties": many}}
    yield "1,200 needed members", {"json": {"properties": many, "required": list(many)}}
    patterns = [{"type": "string", "pattern": f"(.*{i}.{{99}})+"} for i in range(900)]
    yield "a union of patterns", {"json": {"anyOf": patterns}}
    yield "a conjunction of patterns", {"json": {"allOf": patterns[:60]}}
    named = {f"^(a|b)*a(a|b){{{i}}}$": {"type": "string"} for i in range(500)}
    yield "patterns of names", {"json": {"type": "object", "patternProperties": named}}
    yield "a range of numbers", {"json": {"type": "number", "minimum": 1e-300, "maximum": 1e300}}
    spans = [{"type": "integer", "minimum": i, "maximum": 10**i} for i in range(1, 300)]
    yield "ranges of integers", {"json": {"anyOf": spans}}
    yield "multiples", {"json": {"allOf": [{"type": "integer", "multipleOf": 9973}] * 2}}
    primes = [{"type": "integer", "multipleOf": p} for p in (101, 103, 107, 109, 113, 127)]
    yield "multiples of many", {"json": {"allOf": primes}}
    yield "long lists", {"json": {"items": {"items": {"minItems": 9999}, "minItems": 9999}}}
    one = {"oneOf": [{"properties": {f"k{i}": {"const": i}}} for i in range(900)]}
    yield "one of many objects", {"json": one}
    formats = ["date-time", "email", "uri", "ipv6", "hostname", "uuid"]
    strings = [{"type": "string", "format": f, "maxLength": 999} for f in formats]
    yield "formats of a length", {"json": {"allOf": strings[:2], "anyOf": strings * 100}}


def grammars() -> Iterator[tuple[str, Fields]]:
    """Ambiguity, rules in one another, and terminals made of terminals."""
    size = MAX_GRAMMAR_BYTES
    yield "ambiguous", {"grammar": 'start: a+\na: a a | "x" | a "x" a | '}
    rules = "\n".join(f"r{i}: r{i + 1} r{i + 1} | r{i + 1}" for i in range(2500))
    yield "doubling rules", {"grammar": f'start: r0\n{rules}\nr2500: "x"'}
    empties = "\n".join(f"e{i}: e{i + 1}? e{i + 1}?" for i in range(2500))
    yield "empty rules", {"grammar": f'start: e0\n{empties}\ne2500: "x"?'}
    terms = "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(60))
    yield "doubling terminals", {"grammar": f'start: T0\n{terms}\nT60: "x"'}
    yield "a long union", {"grammar": "start: " + fill('"a" | /b.*/', size - 60, " | ")}
    repeat = "a"
    for _ in range(12):
        repeat = f"({repeat}){{1,99}}"
    yield "repeats of rules", {"grammar": f'start: {repeat}\na: "x" | "y"'}
    lexemes = "\n".join(f"r{i}: /(.*{i}.{{50}})+/" for i in range(1500))
    names = " | ".join(f"r{i}" for i in range(1500))
    yield "many large terminals", {"grammar": f"start: {names}\n{lexemes}"}
    both = " & ".join(f"/(.*{i}.{{30}})+/" for i in range(60))
    yield "a conjunction of terminals", {"grammar": f"start: T\nT: {both}"}
    yield "complements of terminals", {"grammar": "start: T\nT: ~(" + both + ")"}
    gbnf = "\n".join(f"r{i} ::= r{i + 1} r{i + 1} | (r{i + 1} | r{i + 1})*" for i in range(150))
    yield "GBNF", {"grammar": f'root ::= r0\n{gbnf}\nr150 ::= "x"'}


class Words(GreedyVocabulary):
    """All bytes, and words of one to three syllables with and without a space before them."""

    def __init__(self, size: int = 100_000) -> None:
        syllables = ["".join(each) for each in itertools.product("bdfklmnprst", "aeiou", "nrst")]
        rng, words = random.Random(0), dict.fromkeys(bytes([value]) for value in range(256))
        while len(words) < size - 1:
            word = "".join(rng.choices(syllables, k=rng.choice([1, 2, 2, 3])))
            words[(rng.choice(["", " "]) + word).encode()] = None
        self.tokens = [*words, b""]
        self.special_token_ids = self.eos_token_ids = [size - 1]


def answers() -> Iterator[tuple[str, Fields]]:
    """Usual grammars; ambiguous ones; and one whose masks are costly after its first token."""
    name = {"type": "string", "maxLength": 50}
    fields = {f"field{index}": {"anyOf": [name, {"type": "null"}]} for index in range(40)}
    person = {"type": "object", "properties": fields, "required": [*fields]}
    yield "a schema", {"json": person}
    yield "lines", {"grammar": 'root ::= ("- " line | line)+\nline ::= [^\\n]+ "\\n"'}
    calls = """root ::= (name " = " expr "\\n")+
expr ::= expr " " [-+*/] " " expr | name | name "(" (expr (", " expr)*)? ")" | "(" expr ")"
name ::= [a-z_] [a-z0-9_]*"""
    yield "calls", {"grammar": calls}
    yield "sums of letters", {"grammar": "root ::= a\na ::= a a | [a-z ]"}
    yield "long sums", {"grammar": 'root ::= a\na ::= a a a | a a | [a-z ] a [a-z ] | [a-z ] | ""'}
    any_of = range(300)
    gated = [
        f'start: "!" ({"|".join(f"c{i}" for i in any_of)})+',
        f"a: {'|'.join(f'b{i}' for i in any_of)}",
        *(f'c{i}: a "{chr(97 + i % 26)}"?\nb{i}: X' for i in any_of),
        "X: /[a-z ]/",
    ]
    yield "300 in 300 rules", {"grammar": "\n".join(gated)}
    each = [{"type": "array", "items": {"$ref": f"#/$defs/n{i}"}} for i in range(20)]
    nested = {f"n{i}": {"anyOf": [*each, {"type": "null"}]} for i in range(20)}
    yield "lists of 20 kinds", {"json": {"$defs": nested, "$ref": "#/$defs/n0"}}


def waits(compiler: GrammarCompiler, fields: Fields) -> tuple[list[float], str]:
    """Seconds that a step waits for each of an answer's tokens, at most 100; and how it ended."""
    matcher = compiler.matcher(StructuredOutputs(**fields))
    none, thread, seconds = np.zeros(0, np.int64), MaskThread(), list[float]()
    grammar = GrammarConstraint(matcher, stop_token_ids=none, banned_ids=none)
    output, rng = list[int](), random.Random(0)
    for _ in range(100):
        begin = time.monotonic()
        step = StepMasks(CallerBudgets(), math.inf)
        compute_masks(thread, [grammar], [np.array(output, np.int32)], step)
        allowed = np.flatnonzero(~grammar.banned(100_000))
        if not len(allowed):
            return [*seconds, time.monotonic() - begin], matcher.problem or "no token"
        output.append(rng.choice(allowed[:-1].tolist() or allowed.tolist()))
        is_whole = grammar.accept_token(output[-1])
        seconds.append(time.monotonic() - begin)
        if is_whole:
            break
    return seconds, f"{len(output)} tokens"


def mask_rows() -> Iterator[dict[str, Any]]:
    """The figures of answers: mean and longest wait as multiples of the first one's mean."""
    words = Words()
    compiler, unit = GrammarCompiler(lambda: words), 0.0
    for name, fields in answers():
        seconds, found = waits(compiler, fields)
        mean = sum(seconds) / len(seconds)
        unit = unit or mean
        figures = {"mean": round(mean / unit, 1), "longest": round(max(seconds) / unit, 1)}
        yield {"kind": "masks", "form": name} | figures | {"found": found[:120]}


def measure(fields: Fields, results: Connection) -> None:
    """Compile in a separate process; record CPU seconds, MiB and the result."""
    folder = resolve_model("quire-tiny")
    tokenizer = Tokenizer.from_folder(folder)
    compiler = GrammarCompiler(lambda: Vocabulary(tokenizer, tokenizer.vocab_size, [0]))
    compiler.matcher(StructuredOutputs(regex="a"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, found = time.process_time(), "taken"
    try:
        compiler.matcher(StructuredOutputs(**fields))
    except InvalidRequestError as error:
        found = str(error)
    seconds = time.process_time() - begin
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    results.send((seconds, grown / 1024, found))


def row(kind: str, name: str, fields: Fields) -> dict[str, Any]:
    """The figures of one grammar."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.Process(target=measure, args=(fields, theirs))
    child.start()
    theirs.close()
    seconds, grown, found = GIVE_UP_SECONDS, 0.0, "not within a minute"
    try:
        if ours.poll(GIVE_UP_SECONDS):
            seconds, grown, found = ours.recv()
    except EOFError:
        found = f"the process died ({child.exitcode})"
    child.kill()
    child.join()
    figures = {"cpu_seconds": round(seconds, 3), "mib": round(grown, 1), "found": found[:120]}
    return {"kind": kind, "form": name} | figures


def main() -> None:
    parser = record.parser(__doc__, "grammar_bounds")
    parser.add_argument("--only", choices=["masks"], help="measure only these; not saved")
    args = parser.parse_args()
    kinds = {"regex": regexes, "json": schemas, "grammar": grammars}
    rows = []
    cases = [(kind, *case) for kind, found in kinds.items() for case in found()]
    compiled = (row(*case) for case in ([] if args.only else cases))
    for measured in itertools.chain(compiled, mask_rows()):
        rows.append(measured)
        print(json.dumps(measured), flush=True)
    if not args.only:
        record.save(args.name, {"rows": rows}, args.out)


if __name__ == "__main__":
    main()
