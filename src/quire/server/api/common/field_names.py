"""A conversation's fields in the names of the API that it came by, where errors tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import msgspec

from quire.core.sampling_params import SamplingParams
from quire.errors import InvalidRequestError


class FieldNames:
    """names: a conversation's name → the API's own, longer ones first.

    A name that begins with a dot may stand anywhere in a field, any other only at its beginning.
    As a context it renames the fields of errors that pass.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def own(self, field: str) -> str:
        """What the API calls a field, such as "messages[0].content"."""
        for name, own in self._names.items():
            if name.startswith("."):
                field = field.replace(name, own)
            elif field == name or field.startswith((f"{name}.", f"{name}[")):
                return own + field[len(name) :]
        return field

    def in_form(self, sampling: SamplingParams) -> SamplingParams:
        """The same wishes; what the engine will find wrong with their form is told by its name."""
        form = sampling.structured_outputs
        if form is None or form.field is None or not self._names:
            return sampling
        lines = {line: self.own(field) for line, field in (form.fields_of_lines or {}).items()}
        renamed = msgspec.structs.replace(
            form, field=self.own(form.field), fields_of_lines=lines or None
        )
        return msgspec.structs.replace(sampling, structured_outputs=renamed)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, InvalidRequestError) and error.param is not None:
            own = self.own(error.param)
            error.args = (str(error).replace(error.param, own, 1),)
            error.param = own


SAME = FieldNames({})
