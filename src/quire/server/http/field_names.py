"""FieldNames, Origins: translate the names of fields, in errors, to those that clients sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from quire.core.sampling_params import SamplingParams
from quire.errors import InvalidRequestError


class FieldNames:
    """A client's own names of the fields of a request, such as a ChatRequest, for error messages.

    names: field of the request → the client's own, longer names first. messages: the name of that
    field. A name that starts with a dot may stand anywhere in a field, any other only at its start.
    As a context manager it renames the fields of the InvalidRequestErrors that pass, and fields
    with an underscore, which are not words, also where the text mentions them.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        mentioned = [re.escape(name) for name in names if "_" in name and "." not in name]
        self._mentions = (
            re.compile(rf"(?<![\w.])({'|'.join(mentioned)})(?!\w)") if mentioned else None
        )
        self.messages = self.own("messages")

    def joined(self, sent_as: FieldNames) -> FieldNames:
        """These names, and over them those under which a body has its fields."""
        return FieldNames({**self._names, **sent_as._names}) if sent_as._names else self

    def own(self, field: str) -> str:
        """The API's own name of a field, such as of "messages[0].content"."""
        for name, own in self._names.items():
            if name.startswith("."):
                field = field.replace(name, own)
            elif field == name or field.startswith((f"{name}.", f"{name}[")):
                return own + field[len(name) :]
        return field

    def rename_fields(self, sampling: SamplingParams) -> SamplingParams:
        """Sampling params with the API's own field names for grammar errors."""
        outputs = sampling.structured_outputs
        if outputs is None or outputs.field is None or not self._names:
            return sampling
        if (lines := outputs.fields_of_lines) is not None:
            lines = {line: self.own(field) for line, field in lines.items()}
        renamed = msgspec.structs.replace(
            outputs, field=self.own(outputs.field), fields_of_lines=lines
        )
        return msgspec.structs.replace(sampling, structured_outputs=renamed)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, InvalidRequestError) and error.param is not None:
            own = self.own(error.param)
            before, field, after = str(error).partition(error.param)
            if self._mentions is not None:
                after = self._mentions.sub(lambda found: self._names[found[1]], after)
            error.args = (before + own + after if field else before,)
            error.param = own


SAME = FieldNames({})

_OF_A_CHAT = re.compile(r"(messages\[\d+\])(?:\.tool_calls(?:\[\d+\]\.function)?)?")


class Origins(dict[str, str]):
    """The places of a chat's messages in the body that it was made of, for errors.

    From "messages[1]", and "messages[1].tool_calls[0].function" where a call stands elsewhere, to a
    path such as "input[0]". As a context manager it changes the InvalidRequestErrors that pass.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self and isinstance(error, InvalidRequestError):
            text = str(error)
            found = _OF_A_CHAT.match(text)
            if found and (own := self.get(found[0]) or self.get(found[1])):
                error.args, error.param = (own + text[found.end() :],), own.partition("[")[0]
