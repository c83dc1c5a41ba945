"""What may be copied and sent to other processes comes out as it was; what may not, says so."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import quire
from quire import AsyncEngine, AsyncLLM, LLMEngine, errors
from quire.hub import resolve_model
from quire.server.http.http_errors import HttpError
from quire.tokenizer.tokenizer import Tokenizer
from quire.tokenizer.tokenless import Tokenless
from quire.tokenizer.transformers_api import TransformersTokenizer

COPIES: list[Callable[[Any], Any]] = [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy]
HELLO = [{"role": "user", "content": "hello"}]
ERRORS: dict[type[errors.QuireError], dict[str, Any]] = {
    errors.InvalidRequestError: {"param": "n", "code": "invalid_value"},
    errors.ContextLengthError: {"num_prompt_tokens": 9, "limit": 5},
    errors.OwnDeadlineError: {"param": "timeout"},
    errors.OverloadedError: {"retry_after": 3.0},
}


CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.QuireError)
]


def made(kind: type[errors.QuireError]) -> errors.QuireError:
    """An error of a class, with what its class needs."""
    if kind is errors.ModelNotLoadedError:
        return errors.ModelNotLoadedError("m", "not loaded; wait")
    if kind is HttpError:
        return HttpError(404, "no such path; look", code="not_found")
    fields = next((ERRORS[base] for base in kind.__mro__ if base in ERRORS), {})
    if kind is errors.ModelNotFoundError:
        fields = {}
    return kind("it is wrong; correct it", **fields)


@pytest.mark.parametrize("copied", COPIES)
def test_errors(copied: Callable[[Any], Any]) -> None:
    """A pool whose worker raises one waits for ever if it cannot be read."""
    for kind in [*CLASSES, HttpError]:
        error = made(kind)
        found = copied(error)
        assert type(found) is kind
        assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("copied", COPIES)
def test_tokenizers(copied: Callable[[Any], Any]) -> None:
    tokenizer = Tokenizer.from_folder(resolve_model("quire-tiny"))
    found = copied(tokenizer)
    assert found.encode("red shoes") == tokenizer.encode("red shoes")
    assert found.render_chat(HELLO) == tokenizer.render_chat(HELLO)
    assert found.model_max_length == tokenizer.model_max_length == 4096
    wrapped = TransformersTokenizer(tokenizer)
    text = copied(wrapped).apply_chat_template(HELLO, tokenize=False)
    assert text == wrapped.apply_chat_template(HELLO, tokenize=False)
    assert not copied(Tokenless()).has_text


@pytest.mark.parametrize("kind", [quire.LLM, LLMEngine, AsyncLLM, AsyncEngine])
@pytest.mark.parametrize("copied", [*COPIES, copy.copy])
def test_models(copied: Callable[[Any], Any], kind: type[Any]) -> None:
    model = object.__new__(kind)  # without loading one
    with pytest.raises(TypeError, match=f"^{kind.__name__} cannot be copied or sent to another"):
        copied(model)
