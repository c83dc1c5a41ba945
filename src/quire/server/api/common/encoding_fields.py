"""EncodingFields: the fields of requests that say how their texts become token ids."""

from __future__ import annotations

from typing import Literal

from quire.engine.frontend.prompt_encoding import Encoding
from quire.errors import invalid_value
from quire.server.http import field_bounds
from quire.server.http.request_body import RequestBody


class EncodingFields(RequestBody, kw_only=True, dict=True):
    """Fields of a body that say how its prompts are encoded.

    truncate_prompt_tokens: keep this many of the prompt's tokens; -1: as many as fit.
    truncation_side: which tokens are cut: left (the default), those at the begin; right, those at
    the end. add_special_tokens: those of tokenizer.json.
    """

    truncate_prompt_tokens: field_bounds.PromptLength | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None

    @property
    def encoding(self) -> Encoding:
        """The options for encoding the prompt. Raises InvalidRequestError."""
        if self.truncate_prompt_tokens == 0:
            raise invalid_value("truncate_prompt_tokens", "must be an integer >= 1, or -1, not 0")
        is_right = self.truncation_side == "right"
        return Encoding(self.truncate_prompt_tokens, self.add_special_tokens, is_right)
