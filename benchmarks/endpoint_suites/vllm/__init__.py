"""Stand-in for the package vllm: the names that its endpoint tests import, and no more.

Modules that are not here have every name, as a class that takes any JSON object.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar

from quire.version import __version__ as __version__


class Reply(types.SimpleNamespace):
    """A JSON object with its fields as attributes, in place of vLLM's classes of replies."""

    def __init__(self, *_values: Any, **fields: Any) -> None:
        super().__init__(**fields)

    @classmethod
    def model_validate_json(cls, text: str) -> Any:
        """The object of a JSON text."""
        return cls.model_validate(json.loads(text))

    @classmethod
    def model_validate(cls, value: Any) -> Any:
        """The object of a dict, its inner objects too."""
        if isinstance(value, dict):
            return cls(**{name: cls.model_validate(inner) for name, inner in value.items()})
        if isinstance(value, list):
            return [cls.model_validate(inner) for inner in value]
        return value


class _Module(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Reply


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name.startswith("vllm.") else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


sys.meta_path.append(_Finder())
