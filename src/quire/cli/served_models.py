"""From the words of `quire serve` and its file to a server's settings and its models."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from quire.cli.models_file import OPTIONS, ConfigFile
from quire.cli.options import chosen, engine_config, engine_options
from quire.config import EngineConfig
from quire.engine.processes.fleet_model import ModelSpec
from quire.errors import ConfigError
from quire.options import options_of
from quire.server.http.api_keys import listed
from quire.server.settings import ServerSettings

_OF_ONE_MODEL = ("model", "served_model_name")


def read_config(args: argparse.Namespace) -> None:
    """Add the options of the file, if there is one; those of the command line win.

    The file takes the place of its name in `args.config`, and the word NAME=MODEL that of --model.
    Raises ConfigError.
    """
    given = vars(args)
    word = given.get("model", "")
    name, model = _named(word)
    if name != word and name.replace("-", "_") in OPTIONS:
        raise ConfigError(f"{word!r} is not a model; an option begins with --: --{name} {model}")
    if name != word and "models" not in given:
        given["models"] = [given.pop("model")]
    if "config" not in given:
        return
    file = ConfigFile(args.config)
    for notice in file.notices:
        print(f"note: {notice}", file=sys.stderr)
    if file.names_models and given.keys() & {"model", "models"}:
        raise ConfigError("MODEL, --model and the models of --config exclude each other; use one")
    if (name := "override_generation_config") in file.given and name in chosen(args, [name]):
        from quire.cli.request_defaults import joined_configs  # usually not needed

        given[name] = joined_configs(file.given[name].value, given[name])
    file.leave_out([*given, *(_OF_ONE_MODEL if "models" in given else ())])
    args.__dict__.update({name: option.value for name, option in file.given.items()})
    args.config = file


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """The server's settings; API keys not given come from the environment. Raises ConfigError."""
    given = chosen(args, [option.name for option in options_of(ServerSettings)])
    for name in ("api_key", "admin_api_key"):
        if name not in given and (variable := f"QUIRE_{name.upper()}") in os.environ:
            given[name] = ",".join(listed(os.environ[variable], f"${variable}"))
    return ServerSettings(**given)


def model_plans(args: argparse.Namespace, settings: ServerSettings) -> list[ModelSpec]:
    """The models to serve, by whichever way they were given. Raises ConfigError."""
    given = vars(args)
    file: ConfigFile | None = given.get("config")
    lists_models = file is not None and file.names_models
    if {"model", "models"} <= given.keys():
        raise ConfigError("MODEL and --model both name models; use one of them")
    if len(given.get("models", ())) == 1 and "=" not in args.models[0]:
        args.model = given.pop("models")[0]  # as other engines write one model
    if "models" not in given and not lists_models:
        return [_plan(engine_config(args), settings)]
    if "served_model_name" in given:
        text = "served_model_name is for one model; set names with --model NAME=MODEL"
        raise ConfigError(f"{text} or in the file")
    options = engine_options(args)
    if file is not None and lists_models:
        return file.models(options, settings.model_load)
    plans = []
    for text in given["models"]:
        name, model = _named(text)
        options |= {"model": model, "served_model_name": name}
        plans.append(_plan(EngineConfig.from_options(**options), settings))
        if name in (plan.name for plan in plans[:-1]):
            raise ConfigError(
                f"two models have the name {name!r}; set names with --model NAME=MODEL"
            )
    return plans


def _plan(config: EngineConfig, settings: ServerSettings) -> ModelSpec:
    name = config.model.public_name
    return ModelSpec(name=name, config=config, at_start=settings.model_load == "at_start")


def _named(text: str) -> tuple[str, str]:
    """`chat=./folder` → its name and its model; a folder may have the sign in its own name."""
    name, sign, model = text.partition("=")
    if not sign or Path(text).exists():
        return text, text
    if not name.strip() or not model.strip():
        raise ConfigError(f"model must be MODEL or NAME=MODEL, not {text!r}")
    return name, model
