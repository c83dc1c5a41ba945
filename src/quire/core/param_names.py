"""ParamNames: lets the constructor of params take names that other engines use. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from quire.compat.missing_names import no_such
from quire.errors import InvalidRequestError, invalid_value, warn_no_effect
from quire.options import nearest_name

if TYPE_CHECKING:
    from quire.compat.names_table import Scope


class ParamNames(msgspec.StructMeta):
    """Metaclass of a struct whose constructor knows the table of foreign names.

    Only names that the struct does not have are looked up, so usual calls cost nothing more; those
    without effect are a NoEffectWarning. The struct's NAMES_SCOPE, if it has one, is the table's
    scope. Raises InvalidRequestError for names that are refused, and TypeError for unknown ones.
    Decoding and copying know the struct's names alone. A missing attribute says what to use.
    """

    if not TYPE_CHECKING:  # which finds misspelt names

        def __getattr__(cls, name: str) -> Any:  # noqa: N805
            raise no_such(cls, name, cls)

    def __call__(cls, *values: Any, **params: Any) -> Any:  # noqa: N805 - a class of classes
        """A new struct."""
        if values:
            example = f"{cls.__name__}({cls.__struct_fields__[0]}=...)"
            raise TypeError(f"{cls.__name__} takes its parameters by name: {example}")
        try:
            return super().__call__(**params)
        except TypeError:
            scope: Scope = getattr(cls, "NAMES_SCOPE", "sampling")
            own = own_params(_without_empty(params), cls.__struct_fields__, scope)
            _refuse_unknown(own, cls)
            if own == params:
                raise
            from quire.compat.own_options import names_as_given  # usually not needed

            with names_as_given(params, (scope,)):
                return super().__call__(**own)


def _without_empty(params: dict[str, Any]) -> dict[str, Any]:
    """The params without options of a call that are None: vLLM's params had them."""
    from quire.compat.name_homes import CALL_OPTIONS  # usually not needed

    return {n: value for n, value in params.items() if value is not None or n not in CALL_OPTIONS}


def _refuse_unknown(params: Mapping[str, Any], cls: msgspec.StructMeta) -> None:
    """Raises TypeError as Python does, with the nearest name that there is."""
    known = cls.__struct_fields__
    for name in params:
        if name not in known:
            near = nearest_name(name, known)
            hint = f"; did you mean {near!r}?" if near else f"; known: {', '.join(known)}"
            raise TypeError(_home(name) or f"{cls.__name__} has no parameter {name!r}{hint}")


def _home(name: str) -> str | None:
    from quire.compat.name_homes import home_of_param  # usually not needed
    from quire.config import iter_options

    return home_of_param(name, {option.name for _, option in iter_options()})


def own_params(
    params: dict[str, Any], known: tuple[str, ...], scope: Scope = "sampling"
) -> dict[str, Any]:
    """The params under Quire's names. known: those. Raises InvalidRequestError."""
    from quire.compat.foreign_name import same_setting  # these are usually not needed
    from quire.compat.names_table import NoEffect, Own, Refused, meaning_of
    from quire.compat.sampler_stages import params_set_by

    found: dict[str, Any] = {}
    over: dict[str, Any] = {}
    for name, value in params.items():
        match None if name in known else meaning_of(name, value, (scope,), params):
            case None:
                found[name] = value
            case Own(name=own, value=changed):
                other = params if own in params else found
                if own in other and not same_setting(other[own], changed):
                    raise invalid_value(
                        name, f"it is {own} here, which is set too; set one of them"
                    )
                found[own] = changed
            case NoEffect() if scope == "sampling" and (own_set := params_set_by(name, value)):
                over.update(own_set)
            case NoEffect(text=text, is_neutral=is_neutral):
                warn_no_effect([] if is_neutral else [text])
            case Refused(text=text):
                raise InvalidRequestError(text, param=name, code="unsupported_parameter")
    return found | over
