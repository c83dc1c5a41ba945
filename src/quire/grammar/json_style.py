"""White space and escapes in JSON that is constrained by a schema, as options for llguidance.

By default at most one space is allowed after a comma or a colon: a model that may write any white
space may write a lot of it. Escapes such as \u0061 are not allowed: with them a name that the
schema lists could be written as another one, whose value it does not constrain.
"""

from __future__ import annotations

from typing import Any

from quire.core.structured_outputs import StructuredOutputs

_COMMON = {"whitespace_flexible": False, "json_allowed_escapes": 'nrbtf\\"'}
USUAL_STYLE = {**_COMMON, "item_separator": ", ?", "key_separator": ": ?"}
_NONE = {**_COMMON, "item_separator": ",", "key_separator": ":"}


def json_style(structured_outputs: StructuredOutputs) -> dict[str, Any]:
    """llguidance's JSON options for structured outputs of the kind json or json_object."""
    if structured_outputs.disable_any_whitespace:
        return _NONE
    if structured_outputs.whitespace_pattern is not None:
        return {
            **_NONE,
            "whitespace_flexible": True,
            "whitespace_pattern": structured_outputs.whitespace_pattern,
        }
    return USUAL_STYLE
