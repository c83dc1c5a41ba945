"""`--config models.yaml`: the models of a server, each with its own engine options.

    models:
      - name: chat            # as requests name it; default: the model
        model: Qwen/Qwen3-0.6B
        load: at_start        # or on_demand
        kv_cache_memory_bytes: 2G
      - model: quire-tiny-draft

Owns the file format; every error names its line. Options and their ranges are in config.py.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli.options import human_int
from quire.config import EngineConfig, iter_options
from quire.engine.processes.fleet_model import ModelSpec
from quire.errors import ConfigError, FileError, UserError
from quire.options import Option

if TYPE_CHECKING:
    import yaml

_INSTEAD = {"served_model_name": ["name"]}
LOADS = ("at_start", "on_demand")
_OPTIONS: Mapping[str, Option] = {option.name: option for _, option in iter_options()}
_NAMED = re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(_OPTIONS, key=len, reverse=True))})(?![\w-])")
_FIELDS = ("name", "load", *(name for name in _OPTIONS if name != "served_model_name"))


def read_models(path: str, common: Mapping[str, Any], load: str) -> list[ModelSpec]:
    """The models of a file. common: engine options, load: the default, for those without own.

    Raises ConfigError that names the file, the line and the field.
    """
    import yaml  # only those who have such a file wait for it

    file = _File(path)
    try:
        root = yaml.compose(file.read(), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise file.wrong(mark, f"it must be YAML ({error.problem})") from None
    except yaml.YAMLError:
        raise file.wrong(None, "it must be YAML; see docs/several-models.md") from None
    if not isinstance(root, yaml.MappingNode):
        raise file.wrong(None, "it has no models; start it with the line `models:`")
    found = file.fields(root, ("models",), "")
    listed = found.get("models")
    if not isinstance(listed, yaml.SequenceNode) or not listed.value:
        raise file.wrong(root.start_mark, "models must be a list with an entry for each model")
    plans = [
        file.plan(node, f"models[{position}]", common, load)
        for position, node in enumerate(listed.value)
    ]
    file.check_names(plans, listed.value)
    return plans


class _File:
    """One file; its methods raise FileErrors with the line."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> str:
        try:
            return Path(self._path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"config {self._path!r} cannot be read ({why}); check it") from None

    def wrong(self, mark: yaml.Mark | None, problem: str) -> FileError:
        line = "" if mark is None else f", line {mark.line + 1}"
        return FileError(f"{self._path}{line}: {problem}")

    def fields(
        self, node: yaml.MappingNode, known: tuple[str, ...], where: str
    ) -> dict[str, yaml.Node]:
        """The values by their names, which must be known and stand once."""
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if name not in known:
                near = _INSTEAD.get(name) or difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise self.wrong(key.start_mark, f"unknown field {where}{name[:64]}; {hint}")
            if name in found:
                raise self.wrong(key.start_mark, f"{where}{name} is set twice; remove one")
            found[name] = value
        return found

    def plan(self, node: yaml.Node, where: str, common: Mapping[str, Any], load: str) -> ModelSpec:
        import yaml

        if not isinstance(node, yaml.MappingNode):
            raise self.wrong(node.start_mark, f"{where} must have fields, such as `model: NAME`")
        fields = self.fields(node, _FIELDS, f"{where}.")
        if "model" not in fields:
            raise self.wrong(node.start_mark, f"{where} has no model; set a folder or a hub name")
        values = {name: self.value(name, fields[name], where) for name in fields}
        load, name = values.pop("load", load), values.pop("name", values["model"])
        if load not in LOADS:
            text = f"{where}.load must be one of {', '.join(LOADS)}, not {load!r}"
            raise self.wrong(fields["load"].start_mark, text)

        def explain(error: UserError) -> UserError:
            named = _NAMED.findall(str(error))
            if named and named[0] in common and named[0] not in fields:
                return error  # an option of the command line
            mark = next((fields[n].start_mark for n in named if n in fields), node.start_mark)
            return self.wrong(mark, f"{where}: {error}")

        try:
            config = EngineConfig.from_options(**{**common, **values, "served_model_name": name})
        except ConfigError as error:
            raise explain(error) from None
        return ModelSpec(name=name, config=config, at_start=load == "at_start", explain=explain)

    def value(self, name: str, node: yaml.Node, where: str) -> Any:
        """A scalar; numbers of bytes may be written as on the command line."""
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            raise self.wrong(node.start_mark, f"{where}.{name} must be one value")
        option = _OPTIONS.get(name)
        if option is None or option.kind is str:
            return str(node.value)
        value = yaml.safe_load(node.value)
        if option.kind is int and isinstance(value, str):
            try:
                return human_int(value)
            except argparse.ArgumentTypeError as error:
                raise self.wrong(node.start_mark, f"{where}.{name}: {error}") from None
        return value

    def check_names(self, plans: list[ModelSpec], nodes: list[yaml.Node]) -> None:
        seen: set[str] = set()
        for plan, node in zip(plans, nodes, strict=True):
            if plan.name in seen:
                text = f"two models have the name {plan.name!r}; names must be unique"
                raise self.wrong(node.start_mark, text)
            seen.add(plan.name)
