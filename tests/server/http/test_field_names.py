"""Fields of a conversation in another API's names."""

from __future__ import annotations

import pytest

from quire.errors import InvalidRequestError
from quire.server.http.field_names import FieldNames

NAMES = FieldNames({".function": "", "messages": "input", "stop": "ends"})


@pytest.mark.parametrize(
    ("field", "own"),
    [
        ("messages", "input"),
        ("messages[0].content", "input[0].content"),
        ("tools[1].function.name", "tools[1].name"),
        ("stop", "ends"),
        ("stop_token_ids", "stop_token_ids"),
        ("seed", "seed"),
    ],
)
def test_names(field: str, own: str) -> None:
    assert NAMES.own(field) == own
    error = InvalidRequestError(f"{field}: wrong; messages are fine", param=field)
    with pytest.raises(InvalidRequestError) as caught, NAMES:
        raise error
    assert caught.value.param == own
    assert str(caught.value) == f"{own}: wrong; messages are fine"


def test_other_errors_pass() -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages$"), NAMES:
        raise InvalidRequestError("messages")
    with pytest.raises(KeyError), NAMES:
        raise KeyError("messages")
