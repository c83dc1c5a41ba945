"""Spares Triton's interpreter what it does in vain: two thirds of its time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any


def install(interpreter: Any) -> None:
    """Change the module `triton.runtime.interpreter`; results are the same.

    Each call of a device function replaces the functions of `triton.language` by interpreted ones,
    which takes milliseconds; they are replaced once in a launch for each module with functions.
    Whether integers overflow is worked out, at each addition, to be asserted with TRITON_DEBUG.
    """
    replace, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    replaced: set[str] = set()

    def replace_once(fn: Callable[..., Any]) -> Any:
        if fn.__module__ in replaced:
            return None  # what restores is used by launches alone
        replaced.add(fn.__module__)
        return replace(fn)

    def launch_anew(self: Any, *args: Any, **kwargs: Any) -> None:
        replaced.clear()
        launch(self, *args, **kwargs)

    interpreter._patch_lang = replace_once
    interpreter.GridExecutor.__call__ = launch_anew
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(
        options, sanitize_overflow=options.debug
    )
    interpreter._get_np_dtype = _remember_scalars(interpreter._get_np_dtype)


def _remember_scalars(np_dtype: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, that makes no table for each scalar; types of pointers have no hash."""
    of_scalar = functools.cache(np_dtype)

    def find(kind: Any) -> Any:
        scalar = kind.element_ty if kind.is_block() else kind
        return np_dtype(kind) if scalar.is_ptr() else of_scalar(scalar)

    return find
