"""Paths that nearly exist, and methods that a path does not have."""

from __future__ import annotations

import pytest
from asgi_client import call
from starlette.applications import Starlette
from starlette.routing import Route

from quire.compat.http_paths import FOREIGN_PATHS
from quire.server.http.application import UNVERSIONED


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/chat/completion", "/v1/chat/completions"),
        ("/api/v1/Chat/Completions", "/v1/chat/completions"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/v1/completion", "/v1/completions"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/model", "/v1/models"),
        ("/model", "/v1/models"),
        ("/messages", "/v1/messages"),
        ("/v1/messages/", "/v1/messages"),
        ("/v1/message/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/response", "/v1/responses"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/chat/completions/bach", "/v1/chat/completions/batch"),
        ("/v1/health", "/health"),
        ("/metric", "/metrics"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_that_nearly_exists_names_the_right_one(
    app: Starlette, path: str, near: str, method: str
) -> None:
    reply = call(app, path, {} if method == "POST" else None, method=method)
    assert reply.status == 404
    assert reply.json()["error"]["message"] == f"no such path; did you mean {near}?"
    assert call(app, near, method="GET").status != 404


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/health_generate"])
def test_a_probe_is_not_sent_to_the_live_view(app: Starlette, path: str) -> None:
    """/live is the state of an engine, and 200 whatever it is."""
    assert call(app, path).json()["error"]["message"].endswith("use /health")


@pytest.mark.parametrize("path", sorted(UNVERSIONED))
def test_a_path_without_its_version_is_the_same(app: Starlette, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"input": "a"}
    asked = None if path == "/models" else body
    assert call(app, path, asked).json().keys() == call(app, f"/v1{path}", asked).json().keys()


@pytest.mark.parametrize("path", FOREIGN_PATHS)
def test_a_path_of_another_api_says_what_to_use(app: Starlette, path: str) -> None:
    engines, text = FOREIGN_PATHS[path]
    for below in ("", "/", "/inner"):
        reply = call(app, path + below, {})
        error = reply.json()["error"]  # Ollama's is the sentence itself
        assert reply.status == 404
        said = error if isinstance(error, str) else error["message"]
        owners = " and ".join(f"{engine}'s" for engine in engines.split(", "))
        assert said == f"{path} is {owners}, which is not here: {text}"


# of vLLM 0.33's servers and of llama-server
ROUTES_THERE = """
    /abort_requests /classify /collective_rpc /docs /fault_tolerance/status /finish_weight_update
    /get_world_size /health /init_weight_transfer_engine /invocations /is_paused
    /is_scaling_elastic_ep /is_sleeping /kv_event_sources /load /pause /ping /pooling /ready /readyz
    /release_kv_cache_memory /rerank /reset_encoder_cache /reset_mm_cache /reset_prefix_cache
    /resume /score /server_info /shutdown_weight_transfer_engine /sleep /start_draft_weight_update
    /start_profile /start_weight_update /stop_profile /tokenizer_info /update_weight_version
    /update_weights /v1/audio/transcriptions /v1/audio/translations /v1/chat/completions
    /v1/chat/completions/render /v1/completions /v1/completions/render /v1/embeddings
    /v1/load_lora_adapter /v1/messages /v1/messages/count_tokens /v1/models /v1/realtime /v1/rerank
    /v1/responses /v1/score /v1/unload_lora_adapter /v2/embed /v2/rerank /version /wake_up
    /weight_checker /weight_info /tokenize /detokenize
    /apply-template /chat/completions /chat/completions/input_tokens /completion /completions
    /cors-proxy /embedding /embeddings /infill /lora-adapters /metrics /models /models/load
    /models/sse /models/unload /props /reranking /responses /slots
    /slots/0 /tools /v1/chat/completions/control /v1/chat/completions/input_tokens /v1/reranking
    /v1/stream/x /v1/streams/lookup
"""


@pytest.mark.parametrize("path", ROUTES_THERE.split())
def test_a_route_of_another_server_is_there_or_says_what_to_use(app: Starlette, path: str) -> None:
    reply = call(app, path, method="GET")
    assert reply.status != 404 or "which is not here: " in reply.error["message"]


def test_an_answer_without_a_path_says_where_answers_are_stored(app: Starlette) -> None:
    for method in ("GET", "POST", "DELETE"):
        reply = call(app, "/v1/chat/completions/chatcmpl-1/messages", {}, method=method)
        assert (reply.status, reply.error["code"]) == (404, "not_found")
        assert reply.error["message"].startswith("chat completions are not stored; use /v1/resp")


@pytest.mark.parametrize("path", ["/v1/models/", "/models/"])
def test_a_list_with_a_slash_is_no_name(app: Starlette, path: str) -> None:
    reply = call(app, path, method="GET")
    assert reply.error["message"] == "no such path; did you mean /v1/models?"


@pytest.mark.parametrize("path", ["/v1", "/api", "/x", "//", "/v1/" + "a" * 60_000])
def test_other_paths_name_the_api(app: Starlette, path: str) -> None:
    reply = call(app, path)
    assert (reply.status, reply.error["code"]) == (404, "not_found")
    assert "/v1/chat/completions" in reply.error["message"]
    assert len(reply.body) < 500


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("PUT", "/tokenize", {"POST"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("DELETE", "/ping", {"GET", "HEAD", "POST"}),
    ],
)
def test_a_wrong_method_gets_the_allowed_ones(
    app: Starlette, method: str, path: str, allowed: set[str]
) -> None:
    reply = call(app, path, method=method)
    assert reply.status == 405
    assert set(reply.headers["allow"].split(", ")) == allowed
    assert all(name in reply.error["message"] for name in allowed)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_names_of_variables_are_values_like_all_others(app: Starlette, method: str) -> None:
    """As a path that is copied from the docs, where nobody filled it in."""
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    templates = {path for path in paths if "{" in path}
    assert templates
    for path in templates:
        body = {} if method == "POST" else None
        assert call(app, path, body, method=method).status in (404, 405), path
