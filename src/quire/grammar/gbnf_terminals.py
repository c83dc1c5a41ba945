"""Decides which rules of a GBNF grammar may be terminals of a Lark grammar.

llguidance reads a terminal up to the longest text that one of those which may stand there matches.
That is hundreds of times faster than rules of single characters, but it derives other texts where
the longest is not the right one: none of `[a-z]+ "x"`. So a rule without recursion, or a literal,
is a terminal unless it may go on where another, which has begun with the same characters, may have
ended, or it itself. Parts of rules that refer to none are rules of their own for that.

Sets of positions in the grammar, and of characters, are bits of an integer. What may follow a
position is what follows any use of its rule: at most a rule is slower than it would have to be.
Where all this would take long, there are no terminals but single characters.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping

from quire.grammar.gbnf_parser import (
    LAST_CODE_POINT,
    Chars,
    Either,
    Literal,
    Node,
    Ref,
    Repeat,
    Sequence,
)
from quire.grammar.regex_bounds import MAX_REPEATED

MAX_STEPS = 200_000  # 0.2 s; usual grammars take a few thousand
_Ends = tuple[bool, int, int]  # whether it derives the empty text, its first and last positions


class _TooManyStepsError(Exception):
    """It would take too long to find out which rules may be terminals."""


class Terminals:
    """The terminals of a grammar.

    rules: the names of rules that are terminals. split: ids of literals that are characters.
    """

    def __init__(self, grammar: Mapping[str, Node]) -> None:
        self._grammar = grammar
        self._index: dict[int, int] = {}  # the first position of a class or literal, by its id
        leaves: list[Node] = []  # the class or literal of each position
        self._refs: dict[str, set[str]] = {name: set() for name in grammar}
        self._users: dict[str, set[str]] = {name: set() for name in grammar}
        for name, body in grammar.items():
            for leaf in _leaves(body):
                if isinstance(leaf, Ref):
                    self._refs[name].add(leaf.name)
                    self._users[leaf.name].add(name)
                else:
                    self._index[id(leaf)] = len(leaves)
                    leaves += [leaf] * _length(leaf)
        self._chars = _character_sets(leaves, self._index)
        holders = [0] * max((chars.bit_length() for chars in self._chars), default=0)
        for position, chars in enumerate(self._chars):
            for char in _bits(chars):
                holders[char] |= 1 << position
        # for each position, those with a character in common
        self._alike = [_union(holders, chars) for chars in self._chars]
        self.rules: set[str] = set()
        self.split: set[int] = set()
        self._ends: dict[str, _Ends] = dict.fromkeys(grammar, (False, 0, 0))
        # What follows each position: outside of terminals, and in which of them. Empty at first.
        self._outer: list[int] = []
        self._inner: list[list[tuple[int, str | int]]] = []
        self._num_left = MAX_STEPS
        try:
            self._find_ends()
            self._choose()
        except _TooManyStepsError:
            self.rules, self.split = set(), set(self._index)

    def _find_ends(self) -> None:
        """Find out what each rule begins and ends with, from what those that it refers to do."""
        rest = dict.fromkeys(self._grammar)  # a set in order
        while rest:
            name, _ = rest.popitem()
            ends = self._link(self._grammar[name], None)
            if ends != self._ends[name]:
                self._ends[name] = ends
                rest |= dict.fromkeys(self._users[name])

    def _choose(self) -> None:
        barred = {"root"}
        while True:
            self.rules = self._without_recursion(barred)
            found = self._conflicts()
            if not found:
                return
            barred |= {each for each in found if isinstance(each, str)}
            self.split |= {each for each in found if isinstance(each, int)}

    def _without_recursion(self, barred: Collection[str]) -> set[str]:
        """The rules that are not barred, refer to rules of this kind alone, and are not too long.

        llguidance writes out terminals where others refer to them, which is bounded.
        """
        missing = {name: len(refs) for name, refs in self._refs.items()}
        sizes: dict[str, int] = {}
        num_left = MAX_REPEATED // 2  # the rest is for counts in other rules
        rest = [name for name, count in missing.items() if not count]
        while rest:
            name = rest.pop()
            size = _size(self._grammar[name], sizes)
            if name not in barred and size <= num_left:
                num_left -= size
                sizes[name] = size
                for user in self._users[name]:
                    missing[user] -= 1
                    rest += [] if missing[user] else [user]
        return set(sizes)

    def _conflicts(self) -> set[str | int]:
        """The terminals, rules or ids of literals, that go on where another may have ended."""
        self._outer = [0] * len(self._chars)
        self._inner = [[] for _ in self._chars]
        begins = 0
        for name, body in self._grammar.items():
            self._link(body, name if name in self.rules else None)
            for leaf in _leaves(body) if name not in self.rules else ():
                begins |= self._beginnings(leaf)
        outer_chars = [_union(self._chars, each) for each in self._outer]
        inner = [
            [(after, _union(self._chars, after), terminal) for after, terminal in each]
            for each in self._inner
        ]
        found: set[str | int] = set()
        reached = [0] * len(inner)  # for each position, those of other terminals meanwhile
        rest = [(position, begins) for position in _bits(begins)]
        while rest:
            position, others = rest.pop()
            following = 0
            for other in _bits(others & self._alike[position] & ~reached[position]):
                reached[position] |= 1 << other
                self._take_step()
                for after, chars, terminal in inner[other]:
                    self._take_step()
                    following |= after
                    if outer_chars[position] & chars:
                        found.add(terminal)
            for after, _, _ in inner[position] if following else ():
                rest += [(later, following) for later in _bits(after)]
        return found

    def _beginnings(self, leaf: Node) -> int:
        """The positions at which terminals begin in a part of a rule that is none."""
        if isinstance(leaf, Ref):
            return self._ends[leaf.name][1] if leaf.name in self.rules else 0
        count = _length(leaf) if id(leaf) in self.split else min(1, _length(leaf))
        return ((1 << count) - 1) << self._index[id(leaf)]

    def _add(self, before: int, after: int, terminal: str | int | None) -> None:
        for position in _bits(before) if self._outer else ():
            self._take_step()
            if terminal is None:
                self._outer[position] |= after
            else:
                self._inner[position].append((after, terminal))

    def _take_step(self) -> None:
        self._num_left -= 1
        if self._num_left < 0:
            raise _TooManyStepsError

    def _link(self, node: Node, terminal: str | None) -> _Ends:
        """Add what follows each position of a node, and return its ends. terminal: its rule."""
        self._take_step()
        match node:
            case Ref(name):
                return self._ends[name]
            case Literal("") | Sequence([]) | Repeat(most=0):
                return True, 0, 0
            case Chars() | Literal():
                begin = self._index[id(node)]
                last = begin + _length(node) - 1
                is_own = terminal is None and id(node) not in self.split
                for position in range(begin, last):
                    self._add(1 << position, 2 << position, id(node) if is_own else terminal)
                return False, 1 << begin, 1 << last
            case Either(options):
                ends = [self._link(each, terminal) for each in options]
                first = last = 0
                for _, begins, stops in ends:
                    first, last = first | begins, last | stops
                return any(is_empty for is_empty, _, _ in ends), first, last
            case Repeat(part, least, most):
                is_empty, first, last = self._link(part, terminal)
                if most != 1:
                    self._add(last, first, terminal)
                return is_empty or least == 0, first, last
            case Sequence(parts):
                is_all_empty, first, last = True, 0, 0
                for part in parts:
                    is_empty, begins, stops = self._link(part, terminal)
                    self._add(last, begins, terminal)
                    first |= begins if is_all_empty else 0
                    last = stops | (last if is_empty else 0)
                    is_all_empty = is_all_empty and is_empty
                return is_all_empty, first, last
        raise AssertionError(node)


def with_groups(grammar: Mapping[str, Node]) -> dict[str, Node]:
    """The rules, and as further ones what in them stands together and refers to no rule."""
    found: dict[str, Node] = {}

    def group(node: Node) -> Node:
        if isinstance(node, Chars | Literal):
            return node
        name = f"group {len(found)}"  # which is no name in GBNF
        found[name] = node
        return Ref(name)

    def grouped(node: Node) -> Node:
        if not _has_refs(node):
            return group(node)
        match node:
            case Either(options):
                return Either([grouped(option) for option in options])
            case Repeat(part, least, most):
                return Repeat(grouped(part), least, most)
            case Sequence(parts):
                shown: list[Node] = []
                for has_refs, run in itertools.groupby(parts, _has_refs):
                    members = list(run)
                    if has_refs:
                        shown += map(grouped, members)
                    else:
                        shown.append(group(members[0] if len(members) == 1 else Sequence(members)))
                return Sequence(shown)
        return node

    for name, body in grammar.items():
        found[name] = grouped(body) if name == "root" or _has_refs(body) else body
    return found


def _has_refs(node: Node) -> bool:
    return any(isinstance(leaf, Ref) for leaf in _leaves(node))


def _leaves(node: Node) -> Iterator[Chars | Literal | Ref]:
    match node:
        case Chars() | Literal() | Ref():
            yield node
        case Sequence(parts) | Either(parts):
            for part in parts:
                yield from _leaves(part)
        case Repeat(part):
            yield from _leaves(part)


def _size(node: Node, sizes: Mapping[str, int]) -> int:
    """The characters and classes of a part that is written out, references and counts too."""
    match node:
        case Ref(name):
            return sizes[name]
        case Sequence(parts) | Either(parts):
            return sum(_size(part, sizes) for part in parts)
        case Repeat(part, least):
            return max(1, least) * _size(part, sizes)
    return _length(node)


def _length(leaf: Node) -> int:
    return len(leaf.text) if isinstance(leaf, Literal) else 1


def _character_sets(leaves: list[Node], index: Mapping[int, int]) -> list[int]:
    """The characters of each position: a bit for each range that all classes hold or leave out."""
    ranges = [_ranges(leaf, position - index[id(leaf)]) for position, leaf in enumerate(leaves)]
    bounds = {0, LAST_CODE_POINT + 1}
    bounds |= {bound for each in ranges for low, high in each for bound in (low, high + 1)}
    ordered = sorted(bounds)

    def bits(low: int, high: int) -> int:
        return (1 << bisect_left(ordered, high + 1)) - (1 << bisect_left(ordered, low))

    found = []
    for leaf, each in zip(leaves, ranges, strict=True):
        chars = 0
        for low, high in each:
            chars |= bits(low, high)
        is_negated = isinstance(leaf, Chars) and leaf.is_negated
        found.append(bits(0, LAST_CODE_POINT) ^ chars if is_negated else chars)
    return found


def _ranges(leaf: Node, offset: int) -> list[tuple[int, int]]:
    if isinstance(leaf, Chars):
        return leaf.ranges
    assert isinstance(leaf, Literal)
    point = ord(leaf.text[offset])
    return [(point, point)]


def _union(sets: list[int], members: int) -> int:
    """The union of those sets whose indices are members."""
    found = 0
    for index in _bits(members):
        found |= sets[index]
    return found


def _bits(value: int) -> Iterator[int]:
    while value:
        lowest = value & -value
        yield lowest.bit_length() - 1
        value ^= lowest
