"""PoolingFields: the fields of all requests that embed texts, and the types of their texts."""

from __future__ import annotations

from typing import Annotated

import msgspec

from quire.server.api.common.encoding_fields import EncodingFields
from quire.server.http import field_bounds
from quire.server.http.field_bounds import Int32, ShortText

MAX_INPUTS = 2048  # in one request, as OpenAI has it

Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Annotated[list[Text], msgspec.Meta(min_length=1, max_length=MAX_INPUTS)]
Dimensions = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]  # numbers of a vector


class PoolingFields(EncodingFields, kw_only=True, dict=True):
    """The fields of all requests that embed texts; as for completions. user: without any effect."""

    model: str | None = None
    user: ShortText | None = None
    priority: Int32 | None = None
    cache_salt: ShortText | None = None
    timeout: field_bounds.Seconds | None = None
