"""YAML as nodes and plain values, in bounded time and memory whatever a file holds.

PyYAML's own constructors expand aliases and merge keys without a bound (a billion laughs), read
numbers of any length, and end in many kinds of errors: here they get single short values only.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_NODES = 2000  # names and values of a file; also of one value with its aliases expanded
MAX_DEPTH = 20
MAX_NUMBER = 64  # characters
_VALUES = tuple(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))
_TEXTS = tuple(f"tag:yaml.org,2002:{name}" for name in ("str", "timestamp", "value", "merge"))
_COLLECTIONS = tuple(f"tag:yaml.org,2002:{name}" for name in ("seq", "map"))


class UnusualYamlError(Exception):
    """Raised for a value that is not plain YAML. The text begins with a verb."""


class _Loader(yaml.SafeLoader):
    """Composes at most MAX_NODES nodes, MAX_DEPTH deep."""

    num_nodes = depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            raise UnusualYamlError(f"has more than {MAX_NODES} names and values")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnusualYamlError(f"is nested more than {MAX_DEPTH} deep")
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def compose(text: str) -> yaml.Node | None:
    """The root of a document; None if it is empty. Raises UnusualYamlError or yaml.YAMLError."""
    return yaml.compose(text, Loader=_Loader)


def plain(node: yaml.Node) -> Any:
    """A node's value: None, a bool, number or text, or lists and dicts of them.

    Raises UnusualYamlError.
    """
    return _Reader().value(node, 0)


class _Reader:
    """Reads one value, whose aliases count each time."""

    def __init__(self) -> None:
        self._num_left = MAX_NODES

    def value(self, node: yaml.Node, depth: int) -> Any:
        self._num_left -= 1
        if self._num_left < 0 or depth > MAX_DEPTH:
            raise UnusualYamlError("has too many values in its aliases")
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if node.tag not in _COLLECTIONS:
            raise UnusualYamlError(f"has the tag {node.tag[:MAX_NUMBER]!r}")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        found = {key_text(key): self.value(item, depth + 1) for key, item in node.value}
        if len(found) < len(node.value):
            raise UnusualYamlError("has a name twice")
        return found


def key_text(node: yaml.Node) -> str:
    """A key as it is written. Raises UnusualYamlError."""
    if not isinstance(node, yaml.ScalarNode):
        raise UnusualYamlError("has a list or map as a name")
    return str(node.value)


def text_of(node: yaml.Node) -> str | None:
    """A single value as it is written; None for null. Raises UnusualYamlError for a tag."""
    if node.tag not in (*_TEXTS, *_VALUES):
        raise UnusualYamlError(f"has the tag {node.tag[:MAX_NUMBER]!r}")
    return None if node.tag.endswith(":null") else str(node.value)


def _scalar(node: yaml.ScalarNode) -> Any:
    text = text_of(node)
    if node.tag in _TEXTS:
        return text
    if len(node.value) > MAX_NUMBER:
        raise UnusualYamlError(f"has a number of {len(node.value)} characters")
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (yaml.YAMLError, ValueError, LookupError, ArithmeticError):
        raise UnusualYamlError(f"has {node.value!r} where its tag needs another value") from None
