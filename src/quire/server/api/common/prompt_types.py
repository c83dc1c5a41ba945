"""EncodingFields: the fields of requests that say how their texts become token ids; PromptTypes.

PromptTypes are the types of a field's prompts where llama.cpp's types are taken. A prompt is a
text, token ids, both mixed, or an object with a text; a field has one or a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.prompt_encoding import Encoding, Prompt, ids_of_parts
from quire.errors import invalid_value
from quire.server.api.common.micro_batch import Stages
from quire.server.http import field_bounds, strict_json
from quire.server.http.field_bounds import Int32, TokenId
from quire.server.http.request_body import RequestBody
from quire.server.http.strict_json import Strict

EncodeParts = Callable[[Sequence[int | str]], list[int]]  # texts between token ids
_ONE_OR_MORE = msgspec.Meta(min_length=1)


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


class ContentText(Strict):
    """A part of a prompt's content: models read only text."""

    type: Literal["text"]
    text: str


_KINDS = {"text": "string", "prompt_string": "string", "content": "array"}  # one of these


class PromptObject(Strict):
    """A prompt as an object: its text, or its content as parts of a message have it.

    text: as Jina's clients send it, prompt_string: as llama.cpp's do. multimodal_data: nothing, as
    models read only text.
    """

    variants = tuple(
        {
            "required": [name],
            "properties": {
                other: {"type": kind if other == name else "null"} for other, kind in _KINDS.items()
            },
        }
        for name in _KINDS
    )
    text: str | None = None
    prompt_string: str | None = None
    content: Annotated[list[ContentText], _ONE_OR_MORE] | None = None
    multimodal_data: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None


def parts_encoder(engine: AsyncEngine, special: bool | None) -> EncodeParts:
    """The function that encodes prompts of texts and token ids. special: see `ids_of_parts`."""
    tokenizer, limits = engine.tokenizer, engine.info.limits
    return partial(ids_of_parts, tokenizer=tokenizer, limits=limits, special=special)


class PromptTypes:
    """The prompts of a field. text: the type of a text; most: how many prompts there may be.

    mixes: whether one list of texts and token ids is a prompt, as llama.cpp has it, and not a
    mistake in a list of prompts. types: those that the field may have, for the documents.
    """

    def __init__(self, field: str, text: Any, most: int, *, mixes: bool = True) -> None:
        self._field, self._most, self._mixes = field, most, mixes
        # ids below 0 are found later, with those that are beyond the model's vocabulary
        part: Any = Int32 | text
        one: Any = part | Annotated[list[part], _ONE_OR_MORE] | PromptObject
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            text | PromptObject | Annotated[list[one], _ONE_OR_MORE]
        )
        shown = Annotated[list[TokenId | text], _ONE_OR_MORE]
        count = msgspec.Meta(min_length=1, max_length=most)
        several: Any = Annotated[list[text | shown | PromptObject], count]
        alone = shown if mixes else Annotated[list[TokenId], _ONE_OR_MORE]
        self.types = (text, PromptObject, alone, several)

    def read(self, data: bytes, encode: EncodeParts) -> Stages[list[Prompt]]:
        """The prompts of the field's JSON; each is a stage.

        encode: for those of texts between token ids. Raises InvalidRequestError.
        """
        given = strict_json.decode(data, self._decoder, path=self._field)
        if not isinstance(given, list):
            return [self._prompt(given, encode)]
        kinds = set(map(type, given))  # in C, as there may be very many ids
        if int in kinds and not kinds <= {int, str}:
            problem = "token ids stand beside texts alone; put them into a list"
            raise invalid_value(self._field, problem)
        if kinds == {int, str} and not self._mixes:
            problem = "texts and token ids are mixed; put each input into a list of its own"
            raise invalid_value(self._field, problem)
        if int in kinds:
            return [self._prompt(given, encode)]
        if len(given) > self._most:
            problem = f"{len(given)} of them; send at most {self._most} in one request"
            raise invalid_value(self._field, problem)
        found = []
        for one in given:
            found.append(self._prompt(one, encode))
            yield
        return found

    def _prompt(self, one: Any, encode: EncodeParts) -> Prompt:
        """One prompt: a text, or the token ids of its parts."""
        if isinstance(one, PromptObject):
            return self._text(one)
        if isinstance(one, str) or set(map(type, one)) == {int}:
            return one  # type: ignore[no-any-return]  # as decoded
        return encode(one)

    def _text(self, given: PromptObject) -> str:
        found = [each for each in (given.text, given.prompt_string) if each is not None]
        if given.content is not None:
            found.append("".join(part.text for part in given.content))
        if len(found) != 1:
            problem = "an object must have text, prompt_string or content"
            raise invalid_value(self._field, problem)
        return found[0]
