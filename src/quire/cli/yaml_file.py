"""YamlFile: options in a YAML file. Every mistake is a FileError that names its line.

Names may have dashes or underscores, and may be those of other engines (quire.compat); numbers of
bytes may be written as on the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.compat.foreign_name import same_setting
from quire.compat.name_homes import DEFAULTS
from quire.compat.own_options import OPTION_SCOPES, own_options
from quire.errors import ConfigError, FileError
from quire.input_file import read_file
from quire.options import Option, check_range, flag_of, nearest_name

if TYPE_CHECKING:
    import yaml

_LARGEST_FILE = 1 << 16  # bytes
_KEYS = ("api_key", "admin_api_key", "api_key_file")  # without which a server is open to all
_GENERATION_CONFIG = "override_generation_config"
_ONLY_TYPED = ("config", "dry_run", "gpu_memory_gib", "json")  # of a run, not of a server
# names of options in messages, not in what messages quote; of one word as a message's first
_NAME = re.compile(
    r"(?<![\w'\"$/-])(?<!\w\.)[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w/-])(?!\.\w)"
    r"|(?:\A|(?<=\]: ))[a-z]+(?=:? )"
)
# a setting with its value, as messages write it for Python
_ASSIGNED = re.compile(r"(?<![\w'\"$/.-])([a-z_]+)='([\w.-]+)'")
_PLAIN = "write plain values, each once, without aliases and tags"


class Given(NamedTuple):
    """An option's value, and where it stands in the file."""

    value: Any
    node: yaml.Node


class YamlFile:
    """One file. notices: sentences on options of other engines that had no effect."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.notices: list[str] = []
        self._written: dict[str, dict[int, str]] = {}  # name → by lines, as it stands in the file
        self._known: set[str] = set()

    def root(self) -> yaml.MappingNode:
        """The outermost map.

        A file without any is refused: what should have written it has mostly failed, and a server
        without its keys would be open to all.
        """
        import yaml  # only those who have such a file wait for it

        from quire.cli.bounded_yaml import UnusualYamlError, compose

        try:
            root = compose(self._read())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self.wrong(mark, f"it must be YAML ({error.problem})") from None
        except UnusualYamlError as error:
            raise self.wrong(None, f"it {error}; leave some out") from None
        except yaml.reader.ReaderError as error:
            text = f"it has the character U+{error.character:04X}, which YAML lacks; remove it"
            raise self.wrong(None, text) from None
        if not isinstance(root, yaml.MappingNode):
            text = "it has no options; write one a line, such as `port: 8000`"
            raise self.wrong(None, text if root else f"{text}, or leave --config out")
        return root

    def wrong(self, mark: yaml.Mark | None, problem: str) -> FileError:
        """The FileError for a place in the file; options are spelled as they are there."""
        where = "" if mark is None else f", line {mark.line + 1}"
        text = self._in_its_names(_ASSIGNED.sub(r"\1: \2", problem), mark)
        return FileError(f"{self._path}{where}: {text}")

    def _in_its_names(self, text: str, mark: yaml.Mark | None) -> str:
        line = -1 if mark is None else mark.line
        return _NAME.sub(lambda found: self._as_written(found[0], line), text)

    def _as_written(self, name: str, line: int) -> str:
        """A name as the file has it, best on this line; with dashes, if another has dashes."""
        if by_line := self._written.get(name):
            return by_line.get(line, [*by_line.values()][-1])
        names = (each for by_line in self._written.values() for each in by_line.values())
        has_dashes = name in self._known and any("-" in each for each in names)
        return name.replace("_", "-") if has_dashes else name

    def options(
        self,
        node: yaml.MappingNode,
        known: Mapping[str, Option],
        *,
        others: Sequence[str] = (),
        where: str = "",
    ) -> dict[str, Given]:
        """The options of a map, checked one by one; `others` are names with any value.

        where: the map's own name in the file; empty for the outermost.
        """
        from quire.cli.bounded_yaml import UnusualYamlError, key_text

        found: dict[str, Given] = {}
        self._known.update(known)
        for key, value_node in node.value:
            name = ""
            try:
                written = key_text(key)
                name = written.lstrip("-").replace("-", "_")
                self._written.setdefault(name, {})[key.start_mark.line] = written
                own = self._own(name, key, value_node, known, others)
            except UnusualYamlError as error:
                text = f"{where or 'it'}.{name[:64]}" if where and name else name[:64] or where
                raise self.wrong(key.start_mark, f"{text or 'it'} {error}; {_PLAIN}") from None
            except ConfigError as error:
                text = f"{where}: {error}" if where else str(error)
                raise self.wrong(key.start_mark, text) from None
            for own_name, value in own.items():
                if own_name in found:
                    text = f"{where}.{own_name}" if where else own_name
                    raise self.wrong(key.start_mark, f"{text} is set twice; remove one")
                found[own_name] = Given(value, value_node)
        _join_defaults(found)
        return found

    def _own(
        self,
        name: str,
        key: yaml.Node,
        node: yaml.Node,
        known: Mapping[str, Option],
        others: Sequence[str],
    ) -> dict[str, Any]:
        """Quire's option for a name in the file; none where it has no effect."""
        if name in others:
            return {name: node}
        spellings = self._written[name]
        written = spellings[key.start_mark.line]
        name, value = _of_flag(name, _value(known.get(name), node), known)
        if name not in known:  # but of another engine
            self._written.setdefault(name, {}).update(spellings)
        if value is None and name in _KEYS:  # as a template without its value leaves it
            raise ConfigError(f"{name} has an empty key; set a key, or leave it out")
        defaults = DEFAULTS if _GENERATION_CONFIG in known else ()
        own, notices = own_options({name: value}, {*known, *defaults}, (*OPTION_SCOPES, "sampling"))
        self.notices += [self._in_its_names(text, key.start_mark) for text in notices]
        for own_name, item in own.items():
            if own_name in defaults and own_name not in known:
                from quire.cli.request_defaults import default_value  # usually not needed

                own[own_name] = default_value(written, own_name, item)
                continue
            if own_name not in known:
                if isinstance(value, dict):
                    text = f"{written[:64]} is not an option; write what it holds beside it"
                    raise ConfigError(text)
                home = _home(own_name, written, item, known)
                raise ConfigError(home or _unknown(own_name, written, [*others, *known]))
            option = known[own_name]
            is_switched = option.kind is bool and isinstance(item, bool)  # perhaps the other way
            if same_setting(item, value) and not is_switched:  # named as in the file
                self._written.setdefault(own_name, {}).update(spellings)
            as_written = item is value and option.kind is str and isinstance(item, int | float)
            own[own_name] = _checked(option, _value(option, node) if as_written else item)
        return own

    def _read(self) -> str:
        try:
            data = read_file(self._path, _LARGEST_FILE)
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            why = "it is not UTF-8"
        except OSError as error:
            why = error.strerror or str(error)
        raise ConfigError(f"config {self._path!r} cannot be read ({why}); check it")


def _of_flag(name: str, value: Any, known: Mapping[str, Option]) -> tuple[str, Any]:
    """An option under its long name, as its flag on a command line may have another: `ngl`.

    `no-x: true` is `x: false`.
    """
    if name in known:
        return name, value
    from quire.cli.foreign_options import OWN_FLAGS, row_of  # usually not needed

    own = name.removeprefix("no_")
    if own != name and own in known and known[own].kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, not {value!r:.64}")
        return own, not value
    short = "-" + name.replace("_", "-")
    if short in OWN_FLAGS:
        return OWN_FLAGS[short].strip("-").replace("-", "_"), value
    row, is_negative = row_of(flag_of(name)) or row_of(short) or (None, False)
    if row is None or (is_negative and not isinstance(value, bool)):
        return name, value
    return row.name, not value if is_negative else value


def _unknown(name: str, written: str, names: Sequence[str]) -> str:
    near = nearest_name(name, names)
    hint = f"did you mean {near}?" if near else "leave it out; `quire serve --help` lists all"
    return f"unknown option {written[:64]}; {hint}"


def _join_defaults(found: dict[str, Given]) -> None:
    """Make the defaults of requests members of the one option that has them."""
    given = {name: found.pop(name) for name in DEFAULTS if name in found}
    if not given:
        return
    from quire.cli.request_defaults import joined_configs

    members = json.dumps({DEFAULTS[name]: each.value for name, each in given.items()})
    config = found.get(_GENERATION_CONFIG, Given("{}", next(iter(given.values())).node))
    found[_GENERATION_CONFIG] = config._replace(value=joined_configs(config.value, members))


def _home(name: str, written: str, value: Any, known: Iterable[str]) -> str | None:
    """Advice on an option that is of another place than a server's file, as a file spells it."""
    from quire.compat.name_homes import SERVER_SETTINGS, command_home, own_name  # rarely needed

    if name in _ONLY_TYPED:
        return f"{name} is for the command line alone; leave it out, and give {flag_of(name)} there"
    own = own_name(name)
    if own in SERVER_SETTINGS:  # known at the top
        return f"{own} is for the whole server; write it outside of models"
    flags = [flag_of(each) for each in known]
    home = command_home(flag_of(written), own, flags, value)
    return home and home.replace(flag_of(written), written).replace("--", "")


def _value(option: Option | None, node: yaml.Node) -> Any:
    """The value of a node; that of an option of text is the text as it is written."""
    import yaml

    from quire.cli.bounded_yaml import UnusualYamlError, plain, text_of

    is_one = isinstance(node, yaml.ScalarNode)
    if is_one and option is not None and option.kind is str:
        return text_of(node)
    try:
        return plain(node)
    except UnusualYamlError:
        is_object = option is not None and option.kind is str and isinstance(node, yaml.MappingNode)
        if is_one or option is None or option.is_list or is_object:
            raise
        raise ConfigError(f"{option.name} must be one value") from None


def _checked(option: Option, value: Any) -> Any:
    if isinstance(value, list | dict) and not option.is_list:
        raise ConfigError(f"{option.name} must be one value")
    value = option.checked(value)
    check_range(option.name, option.within, value)
    return value
