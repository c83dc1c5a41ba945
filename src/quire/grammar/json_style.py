"""How JSON is laid out where it has a form: the white space between its parts.

A model that may write any white space may write a lot of it, so one space after a comma or a colon
is all there is unless a caller wishes otherwise. The terms are the grammar library's.
"""

from __future__ import annotations

from typing import Any

from quire.core.structured_outputs import StructuredOutputs

_USUAL = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_NONE = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


def json_style(wish: StructuredOutputs) -> dict[str, Any]:
    """The options for a wish of the kind json or json_object."""
    if wish.disable_any_whitespace:
        return _NONE
    if wish.whitespace_pattern is not None:
        return {**_NONE, "whitespace_flexible": True, "whitespace_pattern": wish.whitespace_pattern}
    return _USUAL
