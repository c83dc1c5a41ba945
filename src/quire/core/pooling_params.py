"""Pooling params of an embedding request, validated on construction. No torch."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from quire.compat.missing_names import refuse
from quire.core.param_names import ParamNames
from quire.errors import invalid_value
from quire.plain_values import plain_number

Pooling = Literal["mean", "last"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


class PoolingParams(
    msgspec.Struct,
    metaclass=ParamNames,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """Parameters by which the hidden states of a prompt are pooled to one vector.

    pooling: the "mean" of the hidden states of all tokens, or that of the "last" one. normalize:
    scale the vector to length 1. dimensions: keep only its first numbers, before scaling, for
    models trained so (Matryoshka representations, https://arxiv.org/abs/2205.13147); None: all.

    Raises InvalidRequestError, which names the field and the fix.
    """

    NAMES_SCOPE = "pooling"  # no field, as it has no type: see ParamNames

    pooling: Pooling = "last"
    normalize: bool = True
    dimensions: int | None = None

    if not TYPE_CHECKING:
        __getattr__ = refuse

    def changed(self, **changes: Any) -> PoolingParams:
        """A copy with these changes; None: no change. Raises InvalidRequestError."""
        given = {name: value for name, value in changes.items() if value is not None}
        return PoolingParams(**(msgspec.structs.asdict(self) | given))

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise invalid_value(
                "pooling", f"must be 'mean' or 'last', not {reprlib.repr(self.pooling)}"
            )
        if not isinstance(self.normalize, bool):
            raise invalid_value(
                "normalize", f"must be true or false, not {reprlib.repr(self.normalize)}"
            )
        count = plain_number(self.dimensions)
        if count is not None and (type(count) is not int or count < 1):
            raise invalid_value("dimensions", f"must be an integer >= 1, not {reprlib.repr(count)}")
        msgspec.structs.force_setattr(self, "dimensions", count)
