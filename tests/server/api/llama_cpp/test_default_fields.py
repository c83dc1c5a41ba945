"""llama.cpp's fields with its own defaults, as its page sends them, ask for nothing.

The names and values are those of its server's schema (llama-cpp-python 0.3.36).
"""

from __future__ import annotations

from typing import Any

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from starlette.applications import Starlette

STAGES = [
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
]
DEFAULTS: dict[str, Any] = {
    "verbose": False, "timings_per_token": False, "stream": False, "cache_prompt": True,
    "return_tokens": False, "return_progress": False, "sse_ping_interval": 30, "n_predict": -1,
    "n_indent": 0, "n_keep": 0, "n_discard": 0, "n_cmpl": 1, "n_cache_reuse": 0,
    "t_max_prompt_ms": -1, "t_max_predict_ms": -1, "response_fields": [], "top_k": 40,
    "top_p": 0.95, "min_p": 0.05, "top_n_sigma": -1.0, "xtc_probability": 0.0,
    "xtc_threshold": 0.1, "typical_p": 1.0, "typ_p": 1.0, "temperature": 0.8,
    "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "repeat_last_n": 64, "repeat_penalty": 1.0,
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "dry_multiplier": 0.0, "dry_base": 1.75,
    "dry_allowed_length": 2, "dry_penalty_last_n": -1, "mirostat": 0, "mirostat_tau": 5.0,
    "mirostat_eta": 0.1, "adaptive_target": -1.0, "adaptive_decay": 0.9, "seed": -1, "min_keep": 0,
    "n_probs": 0, "backend_sampling": False, "post_sampling_probs": False, "lora": [],
    "speculative.n_max": 16, "speculative.n_min": 0, "speculative.p_min": 0.75,
    "speculative.type": "none", "speculative.ngram_size_n": 12, "speculative.ngram_size_m": 48,
    "speculative.ngram_min_hits": 1, "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "grammar": "", "grammar_lazy": False, "chat_format": 0, "reasoning_format": "auto",
    "generation_prompt": "", "parse_tool_calls": True, "continue_final_message": False,
    "echo": False, "preserved_tokens": [], "grammar_triggers": [], "reasoning_control": False,
    "reasoning_budget_tokens": -1, "reasoning_budget_message": "", "ignore_eos": False,
    "stop": [], "samplers": STAGES, "id_slot": -1, "penalize_nl": False, "api_key": "",
}  # fmt: skip
BODIES = {
    "/completion": {"prompt": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest.mark.parametrize("path", BODIES)
def test_defaults_ask_for_nothing(app: Starlette, engine: FakeEngine, path: str) -> None:
    refused = {}
    for name, value in DEFAULTS.items():
        reply = call(app, path, BODIES[path] | {name: value})
        if reply.status != 200:
            refused[name] = reply.error["message"]
    assert refused == {}
    assert call(app, path, BODIES[path] | DEFAULTS).status == 200
    sampling = engine.calls[-1]["sampling"]
    assert sampling.structured_outputs is None
    assert sampling.thinking_token_budget in (None, -1)


@pytest.mark.parametrize("value", [";".join(STAGES), "edskypmxt", "edkypmxt"])
def test_the_usual_order_of_samplers_has_other_spellings(app: Starlette, value: str) -> None:
    assert call(app, "/completion", {"prompt": "hi", "samplers": value}).status == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samplers", ["top_p", "top_k"]),
        ("t_max_predict_ms", 100),
        ("response_fields", ["content"]),
        ("n_indent", 4),
        ("grammar_triggers", [{"type": 0}]),
        ("typ_p", 0.5),
        ("grammar", "x" * (1 << 17)),
    ],
)
def test_what_would_change_an_answer_is_refused(app: Starlette, name: str, value: Any) -> None:
    refused = call(app, "/completion", {"prompt": "hi", name: value})
    assert (refused.status, refused.error["param"]) == (400, name)
