"""`--config FILE`: options of `quire serve` in YAML, and several models with their own.

    port: 9000                  # any option of the command line
    max-model-len: 8K
    models:                     # or `model: NAME` for one
      - name: chat              # as requests name it; default: the model
        model: Qwen/Qwen3-0.6B
        load: at_start          # or on_demand
        kv_cache_memory_bytes: 2G
      - model: quire-tiny-draft

Owns what may stand where; options and their ranges are in config.py and server/settings.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from quire.cli.yaml_file import Given, YamlFile
from quire.config import EngineConfig, iter_options
from quire.engine.processes.fleet_model import ModelSpec
from quire.errors import ConfigError, FileError, UserError
from quire.options import options_of
from quire.server.settings import ServerSettings

if TYPE_CHECKING:
    import yaml

LOADS = ("at_start", "on_demand")
_ENGINE = {option.name: option for _, option in iter_options()}
OPTIONS = _ENGINE | {option.name: option for option in options_of(ServerSettings)}
# Options that a message is about. One of a single word, such as model or device, is mostly a word
# of its sentence: it is the option only at the beginning, with its value or a verb, or beside =.
_ONE, _SEVERAL = (
    "|".join(n for n in OPTIONS if ("_" in n) == several) for several in (False, True)
)
_NAMED = re.compile(
    rf"\A(?:{_ONE})(?= (?:is|must|needs)\b| '| \w*\d)"
    rf"|(?<![\w-])(?:{_ONE})(?==)|(?<![\w-])(?:{_SEVERAL})(?![\w-])"
)


class ConfigFile:
    """The contents of a file. given: options of the server and the engine, by name.

    Raises ConfigError that names the file, the line and the option.
    """

    def __init__(self, path: str) -> None:
        import yaml

        self._file = YamlFile(path)
        root = self._file.root()
        found = self._file.options(root, OPTIONS, others=("models",))
        self._entries: list[yaml.Node] = []
        if listed := found.pop("models", None):
            if not isinstance(listed.node, yaml.SequenceNode) or not listed.node.value:
                text = "models must be a list with an entry for each model"
                raise self._file.wrong(listed.node.start_mark, text)
            self._entries = listed.node.value
        self.given = found
        if self._entries and "model" in found:
            text = "model and models both name models; use one of them"
            raise self._file.wrong(found["model"].node.start_mark, text)

    @property
    def names_models(self) -> bool:
        """Whether it has a list of models."""
        return bool(self._entries)

    @property
    def notices(self) -> list[str]:
        """Sentences on options of other engines that had no effect."""
        return self._file.notices

    def leave_out(self, names: Iterable[str]) -> None:
        """Forget options, as the command line has them."""
        for name in names:
            self.given.pop(name, None)

    def explained(self, error: UserError) -> UserError:
        """An error with its line, where it is about an option of the file."""
        named = _NAMED.search(str(error))
        if isinstance(error, FileError) or named is None or named[0] not in self.given:
            return error
        return self._file.wrong(self.given[named[0]].node.start_mark, str(error))

    def models(self, common: Mapping[str, Any], load: str) -> list[ModelSpec]:
        """The listed models. common: engine options, load: the default, for those without own."""
        plans = [
            self._plan(node, f"models[{position}]", common, load)
            for position, node in enumerate(self._entries)
        ]
        seen: set[str] = set()
        for plan, node in zip(plans, self._entries, strict=True):
            if plan.name in seen:
                text = f"two models have the name {plan.name!r}; names must be unique"
                raise self._file.wrong(node.start_mark, text)
            seen.add(plan.name)
        return plans

    def _plan(self, node: yaml.Node, where: str, common: Mapping[str, Any], load: str) -> ModelSpec:
        import yaml

        wrong = self._file.wrong
        if not isinstance(node, yaml.MappingNode):
            raise wrong(node.start_mark, f"{where} must have fields, such as `model: NAME`")
        fields = self._file.options(node, _ENGINE, others=("name", "load"), where=where)
        if "model" not in fields:
            raise wrong(node.start_mark, f"{where} has no model; set a folder or a hub name")
        values = {name: given.value for name, given in fields.items()}
        load = self._text(values.pop("load", None), where) or load
        own_name = self._text(values.pop("name", None), where)
        if own_name and "served_model_name" in values:
            text = f"{where}: name and served_model_name both set its name; use one of them"
            raise wrong(fields["name"].node.start_mark, text)
        name = own_name or values.pop("served_model_name", None) or values["model"]
        if load not in LOADS:
            text = f"{where}.load must be one of {', '.join(LOADS)}, not {load!r}"
            raise wrong(fields["load"].node.start_mark, text)
        explain = self._explainer(node, where, common, fields)
        try:
            config = EngineConfig.from_options(**{**common, **values, "served_model_name": name})
        except ConfigError as error:
            raise explain(error) from None
        name = config.model.public_name
        return ModelSpec(name=name, config=config, at_start=load == "at_start", explain=explain)

    def _text(self, node: yaml.Node | None, where: str) -> str | None:
        import yaml

        if node is not None and not isinstance(node, yaml.ScalarNode):
            raise self._file.wrong(node.start_mark, f"{where}: name and load must be one value")
        return None if node is None or node.tag.endswith(":null") else str(node.value)

    def _explainer(
        self,
        node: yaml.Node,
        where: str,
        common: Mapping[str, Any],
        fields: Mapping[str, Given],
    ) -> Any:
        """A function that adds the place in the file to an error about a model."""

        def explain(error: UserError) -> UserError:
            named = [name for name in _NAMED.findall(str(error)) if name in _ENGINE]
            if named and named[0] in common and named[0] not in fields:
                return error  # an option for all models
            mark = next((fields[n].node.start_mark for n in named if n in fields), node.start_mark)
            return self._file.wrong(mark, f"{where}: {error}")

        return explain
