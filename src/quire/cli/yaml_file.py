"""YamlFile: options in a YAML file. Every mistake is a FileError that names its line.

Names may have dashes or underscores, and may be those of other engines (quire.compat); numbers of
bytes may be written as on the command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.cli.options import human_int
from quire.compat.own_options import own_options
from quire.errors import ConfigError, FileError
from quire.options import Option, check_range, nearest_name

if TYPE_CHECKING:
    import yaml

    from quire.compat.names_table import Scope

_LARGEST_FILE = 1 << 20  # characters


class Given(NamedTuple):
    """An option's value, and where it stands in the file."""

    value: Any
    node: yaml.Node


class YamlFile:
    """One file. notices: sentences on options of other engines that had no effect."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.notices: list[str] = []

    def root(self) -> yaml.MappingNode:
        """The outermost map."""
        import yaml  # only those who have such a file wait for it

        try:
            root = yaml.compose(self._read(), Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self.wrong(mark, f"it must be YAML ({error.problem})") from None
        except (yaml.YAMLError, RecursionError):
            raise self.wrong(None, "it must be YAML; see docs/command-line.md") from None
        if not isinstance(root, yaml.MappingNode):
            raise self.wrong(None, "it has no options; write one a line, such as `port: 8000`")
        return root

    def wrong(self, mark: yaml.Mark | None, problem: str) -> FileError:
        """The FileError for a place in the file."""
        line = "" if mark is None else f", line {mark.line + 1}"
        return FileError(f"{self._path}{line}: {problem}")

    def options(
        self,
        node: yaml.MappingNode,
        known: Mapping[str, Option],
        scopes: Sequence[Scope],
        *,
        others: Sequence[str] = (),
        where: str = "",
    ) -> dict[str, Given]:
        """The options of a map, checked one by one; `others` are names with any value.

        where: the map's own name in the file; empty for the outermost.
        """
        found: dict[str, Given] = {}
        for key, value_node in node.value:
            name = str(key.value).replace("-", "_")
            try:
                own = self._own(name, value_node, known, scopes, others)
            except (ConfigError, argparse.ArgumentTypeError) as error:
                text = f"{where}: {error}" if where else str(error)
                raise self.wrong(key.start_mark, text) from None
            for own_name, value in own.items():
                if own_name in found:
                    text = f"{where}.{own_name}" if where else own_name
                    raise self.wrong(key.start_mark, f"{text} is set twice; remove one")
                found[own_name] = Given(value, value_node)
        return found

    def _own(
        self,
        name: str,
        node: yaml.Node,
        known: Mapping[str, Option],
        scopes: Sequence[Scope],
        others: Sequence[str],
    ) -> dict[str, Any]:
        """Quire's option for a name in the file; none where it has no effect."""
        if name in others:
            return {name: node}
        value = _value(known.get(name), node)
        own, notices = own_options({name: value}, known, scopes)
        self.notices += notices
        for own_name, item in own.items():
            if own_name not in known:
                names = [*others, *known]
                near = nearest_name(own_name, names)
                hint = f"did you mean {near}?" if near else f"known: {', '.join(names)}"
                raise ConfigError(f"unknown option {own_name[:64]}; {hint}")
            own[own_name] = _checked(known[own_name], item)
        return own

    def _read(self) -> str:
        try:
            with Path(self._path).open(encoding="utf-8") as file:
                text = file.read(_LARGEST_FILE + 1)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"config {self._path!r} cannot be read ({why}); check it") from None
        if len(text) > _LARGEST_FILE:
            raise ConfigError(f"config {self._path!r} is larger than 1 MiB; check that it is YAML")
        return text


def _value(option: Option | None, node: yaml.Node) -> Any:
    """The value of a node; that of an option of text is the text as it is written."""
    import yaml

    if isinstance(node, yaml.ScalarNode) and option is not None and option.kind is str:
        return None if node.tag.endswith(":null") else str(node.value)
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError("the value must be plain YAML; check it") from None


def _checked(option: Option, value: Any) -> Any:
    if option.is_list and isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, list | dict):
        raise ConfigError(f"{option.name} must be one value")
    if option.kind is int and isinstance(value, str):
        try:
            value = human_int(value)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{option.name}: {error}") from None
    value = option.checked(value)
    check_range(option.name, option.within, value)
    return value
