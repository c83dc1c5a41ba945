"""/load and /tokenizer_info, in vLLM's formats."""

from __future__ import annotations

from asgi_client import call
from starlette.applications import Starlette


def test_load_counts_answers(app: Starlette) -> None:
    def load() -> int:
        count: int = call(app, "/load").json()["server_load"]
        return count

    assert load() == 0
    app.state.models.find(None).admission.in_flight.add(3, 100)
    assert load() == 3
    app.state.models.find(None).admission.in_flight.add(-3, -100)
    assert load() == 0


def test_tokenizer_info(app: Starlette) -> None:
    info = call(app, "/tokenizer_info", query="model=fake").json()
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (info["model_max_length"], info["eos_token"]) == (1024, "</s>")
    assert (info["bos_token"], info["chat_template"]) == (None, None)
    assert call(app, "/tokenizer_info", query="model=ghost").status == 404
