"""Paths of other engines' and services' HTTP APIs that are not there, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

from quire.compat import phrases as say

_ADMIN = "use the admin endpoints, on a port of their own (--admin-port)"
_NO_PAUSE = "answers are not paused; /sleep and /wake_up are on a port of their own (--admin-port)"
_SHOWN = "running requests are in /metrics and on the page at /"
_WEIGHTS = "weights are not changed while they are served; load another model"
_GOES_ON = "an answer that its client has left is not kept; use /v1/responses with background"
_STORED_CHAT = "/v1/chat/completions/chatcmpl-"  # the id of an answer follows
_STORES = "use /v1/responses, which stores its answers"
_CHAT = "use /v1/chat/completions, or /v1/responses"

# a path, which stands for those below it, too: whose it is, and why and what to use
FOREIGN_PATHS: Mapping[str, tuple[str, str]] = {
    "/classify": ("vLLM", "no family of models here has a classification head; use "
                  "/v1/chat/completions with structured_outputs.choice"),
    "/generate": ("SGLang, TGI", "use /v1/completions"),
    "/generate_stream": ("TGI", "use /v1/completions with stream"),
    "/embed": ("TEI", "use /v1/embeddings"),
    "/encode": ("SGLang", "use /v1/embeddings"),
    "/get_model_info": ("SGLang", "use /v1/models"),
    "/model_info": ("SGLang", "use /v1/models"),
    "/server_info": ("vLLM, SGLang", "use /v1/models, and /metrics"),
    "/get_server_info": ("SGLang", "use /v1/models, and /metrics"),
    "/get_load": ("SGLang", "use /load"),
    "/health_generate": ("SGLang", "use /health"),
    "/healthz": ("Kubernetes", "use /health"),
    "/livez": ("Kubernetes", "use /health"),
    "/info": ("TGI", "use /v1/models"),
    "/api/v0": ("LM Studio", "use /v1/models, and /v1/chat/completions"),
    "/api/v1/generate": ("KoboldCpp", "use /v1/completions"),
    "/api/v1/model": ("KoboldCpp", "use /v1/models"),
    "/api/extra": ("KoboldCpp", "use /v1/completions"),
    "/v1/internal": ("text-generation-webui", "use /v1/models"),
    "/v1/engines": ("OpenAI", "use /v1/completions with a model"),
    "/openai/deployments": ("Azure", "use /v1, where the deployment is the model"),
    "/inference/v1/generate": ("vLLM", "use /v1/completions, whose prompt may be token ids"),
    "/v2/embed": ("Cohere", "use /v1/embeddings"),
    "/v2/chat": ("Cohere", _CHAT),
    "/v1/complete": ("Anthropic", "use /v1/messages"),
    "/sleep": ("vLLM", _ADMIN),
    "/wake_up": ("vLLM", _ADMIN),
    "/is_sleeping": ("vLLM", _ADMIN),
    "/reset_prefix_cache": ("vLLM", _ADMIN),
    "/flush_cache": ("SGLang", _ADMIN),
    "/models/load": ("llama.cpp", _ADMIN),
    "/models/unload": ("llama.cpp", _ADMIN),
    "/pause": ("vLLM", _NO_PAUSE),
    "/resume": ("vLLM", _NO_PAUSE),
    "/is_paused": ("vLLM", _NO_PAUSE),
    "/release_kv_cache_memory": ("vLLM", "use /sleep, on a port of its own (--admin-port)"),
    **{f"/{name}": ("vLLM", _WEIGHTS) for name in (
        "init_weight_transfer_engine", "shutdown_weight_transfer_engine", "start_weight_update",
        "start_draft_weight_update", "update_weights", "update_weight_version",
        "finish_weight_update", "weight_checker", "weight_info")},
    "/reset_mm_cache": ("vLLM", say.TEXT_ALONE),
    "/reset_encoder_cache": ("vLLM", say.TEXT_ALONE),
    "/get_world_size": ("vLLM", say.ONE_DEVICE),
    "/is_scaling_elastic_ep": ("vLLM", say.ONE_DEVICE),
    "/fault_tolerance/status": ("vLLM", "use /health"),
    "/kv_event_sources": ("vLLM", "each server has its own KV cache"),
    "/abort_requests": ("vLLM", "an answer ends where its client leaves"),
    "/v1/chat/completions/render": ("vLLM", "use /apply-template, or /tokenize"),
    "/v1/completions/render": ("vLLM", "use /tokenize"),
    "/readyz": ("vLLM", "use /ready"),
    "/start_profile": ("vLLM", "run `quire profile MODEL`"),
    "/stop_profile": ("vLLM", "run `quire profile MODEL`"),
    "/collective_rpc": ("vLLM", "there are no workers to call"),
    "/v1/load_lora_adapter": ("vLLM", "the weights are those of the model's folder; serve a merged "
                              "model"),
    "/v1/unload_lora_adapter": ("vLLM", say.NO_ADAPTER),
    "/lora-adapters": ("llama.cpp", "the weights are those of the model's folder; serve a merged "
                       "model"),
    "/slots": ("llama.cpp", f"there are no slots; {_SHOWN}"),
    "/infill": ("llama.cpp", "write the model's own infill tokens into a prompt of "
                "/v1/completions"),
    "/embedding": ("llama.cpp", "use /v1/embeddings"),
    "/embeddings": ("llama.cpp", "use /v1/embeddings"),
    "/v1/stream": ("llama.cpp", _GOES_ON),
    "/v1/streams": ("llama.cpp", _GOES_ON),
    "/v1/chat/completions/control": ("llama.cpp", "an answer ends where its client leaves"),
    "/models/sse": ("llama.cpp", "use /v1/models"),
    "/tools": ("llama.cpp", say.CLIENTS_RUN),
    "/cors-proxy": ("llama.cpp", "the server opens no connections"),
    **{f"/api/{name}": ("Ollama", "model files are managed by hf cache and hf download")
       for name in ("push", "copy", "create", "delete", "blobs")},
    "/v1/audio": ("OpenAI", say.TEXT_ALONE),
    "/v1/images": ("OpenAI", say.TEXT_ALONE),
    "/v1/videos": ("OpenAI", say.TEXT_ALONE),
    "/v1/realtime": ("OpenAI", f"there are no sessions; {_CHAT}"),
    "/v1/files": ("OpenAI", "files are read by `quire run-batch`"),
    "/v1/batches": ("OpenAI", "use `quire run-batch`"),
    "/v1/messages/batches": ("Anthropic", "use `quire run-batch`"),
    "/v1/assistants": ("OpenAI", "use /v1/responses with previous_response_id"),
    "/v1/threads": ("OpenAI", "use /v1/responses with previous_response_id"),
    "/v1/responses/compact": ("OpenAI", "conversations are not shortened; leave out old items"),
    "/v1/conversations": ("OpenAI", "use /v1/responses with previous_response_id"),
    "/v1/vector_stores": ("OpenAI", "there is no retrieval; use /v1/embeddings"),
    "/v1/fine_tuning": ("OpenAI", "models are served as they are"),
    "/v1/moderations": ("OpenAI", "answers are not moderated"),
    "/v1/edits": ("OpenAI", _CHAT),
}  # fmt: skip


def foreign_path(path: str) -> str | None:
    """The replacement for a path of another API; None for a path that is in no table."""
    whole = path.rstrip("/")
    if whole.startswith(_STORED_CHAT):
        return f"chat completions are not stored; {_STORES}"
    while whole:
        if whole in FOREIGN_PATHS:
            engines, text = FOREIGN_PATHS[whole]
            owners = engines.replace(", ", "'s and ")
            return f"{whole} is {owners}'s, which is not here: {text}"
        whole = whole.rpartition("/")[0]
    return None
