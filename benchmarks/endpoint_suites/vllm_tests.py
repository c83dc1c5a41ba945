"""vLLM's endpoint tests: which of them are run, and why some cannot pass."""

from __future__ import annotations

import shutil
from pathlib import Path

# folder → its files; each folder is one run of pytest
FILES = {
    "anthropic": "messages",
    "launchers": "shutdown",
    "openai": "chunked_prompt return_token_ids return_tokens_as_ids",
    "openai/chat_completion": "batched_chat_completions chat chat_completion chat_echo "
    "chat_logit_bias_validation completion_with_function_calling enable_force_include_usage "
    "extra_content_fields include_reasoning logprob_token_ids root_path thinking_token_budget",
    "openai/completion": "completion prompt_validation token_in_token_out",
    "openai/models": "models",
    "openai/responses": "basic simple stateful structured_output errors",
    "pooling/basic": "truncation",
    "pooling/embed": "online online_dimensions online_long_text",
    "pooling/scoring": "bi_encoder_online",
    "pooling/token_embed": "online",
    "serve/instrumentator": "basic metrics orca_metrics uds",
    "serve/middleware": "optional_middleware",
    "serve/tokenize": "tokenization",
}
HELPERS = (
    "entrypoints/conftest.py",
    "entrypoints/openai/chat_completion/test_serving_chat.py",
    "entrypoints/openai/responses/conftest.py",
    "entrypoints/openai/utils.py",
    "entrypoints/pooling/scoring/util.py",
    "models/language/pooling/embed_utils.py",
    "models/utils.py",
    "ci_envs.py",
)
# modules of vLLM that its tests read replies with
MODULES = ("utils/serial_utils.py", "utils/mem_constants.py", "entrypoints/pooling/utils.py")
# a part of a test's name or error → its kind and why it cannot pass. Kinds: "choice" (refused by
# name, docs/http-api.md), "model" (it needs another model), "vllm" (it tests vLLM's own insides)
REASONS: dict[str, tuple[str, str]] = {
    "zephyr-lora": ("choice", "no adapters"),
    "test_check_models": ("choice", "no adapters"),
    "test_kv_transfer_": ("choice", "no transfer of KV blocks between engines"),
    "test_extra_fields_allowed": ("choice", "unknown fields of a message are refused by name"),
    "test_extra_content_fields": ("choice", "unknown fields of a part are refused by name"),
    "test_custom_role": ("choice", "roles are a fixed list"),
    "test_per_request_metrics_": ("choice", "times are in /metrics and traces, not in answers"),
    "test_no_request_id_header": ("choice", "each response has its x-request-id"),
    "test_v2_endpoint_accepts": ("choice", "Cohere's /v2/embed"),
    "test_orca_metrics": ("choice", "no load reports in headers; /load and /metrics have them"),
    "test_padding": ("choice", "prompts are never padded"),
    "test_online_long_text": ("choice", "a text beyond the context is not embedded in chunks"),
    "'BadRequestError'": ("choice", "the error's type is OpenAI's, invalid_request_error"),
    "out of vocabulary": ("choice", "the words of the error differ"),
    "logit_bias['bad1']": ("choice", "an error names the first wrong field"),
    "enable-force-include-usage": ("choice", "usage is sent where a request asks for it"),
    "logit_bias_invalid": ("choice", "the words of the error differ"),
    "must be provided and non-empty": ("choice", "the words of the error differ"),
    "use_beam_search": ("choice", "tokens are drawn, without beams"),
    "test_invocations_chat_request": ("choice", "/invocations answers messages as a chat"),
    "compute_maxsim": ("model", "another model's scores"),
    "not 5000": ("model", "token ids beyond the bundled vocabulary"),
    "test_echo_logprob_completion": ("model", "ids of the prompt are its padding"),
    "test_long_seed": ("vllm", "the words of pydantic's messages"),
    "'Reply'": ("vllm", "a unit test of its classes"),
    "Reply(": ("vllm", "a unit test of its classes"),
    "Mock": ("vllm", "a unit test of its classes"),
    "rejects_unknown_reasoning_effort": ("vllm", "a unit test of its classes"),
    "n_parameter_exceeds": ("vllm", "a unit test of its classes"),
    "request_decouples_top_k": ("vllm", "a unit test of its classes"),
    "test_responses_api_logprobs_with_return": ("vllm", "a unit test of its classes"),
    "test_errors.py": ("vllm", "a unit test of its classes"),
    "test_health_check_engine_dead": ("vllm", "a unit test of its classes"),
    "took more than": ("model", "a model that does not end a constrained answer"),
    "test_function_tool_use": ("model", "the bundled model calls no tools"),
    "test_no_args_tool_call": ("model", "the bundled model calls no tools"),
    "test_anthropic_tool_call": ("model", "the bundled model calls no tools"),
    "test_anthropic_streaming_cache_usage": ("model", "its tokenizer needs more tokens"),
    "test_complex_message_content": ("model", "the bundled model cannot add"),
    "test_detokenize": ("choice", "the text is named content, too, as in llama.cpp"),
    "assert '312' in": ("model", "the bundled model cannot multiply"),
    "assert '30' in": ("model", "the bundled model cannot multiply"),
    "assert 'Mark' in": ("model", "the bundled model recalls no name"),
    "assert 'John' in": ("model", "the bundled model recalls no name"),
    "'completed' == 'incomplete'": ("model", "its answer ends before max_tokens"),
    "test_chat_streaming": ("model", "its answer ends by itself, so the last chunk has no text"),
    "== 'science fair'": ("model", "the bundled model copies no facts"),
    "assert 256 == 768": ("model", "its vectors have another size"),
    "reduce the length of the input prompt": ("choice", "the words of the error differ"),
    "test_metrics_exist_run_batch": ("vllm", "it starts a module of vLLM's own"),
    "== {'result': 2}": ("model", "the bundled model cannot add"),
    "'TypeScript' != 'TypeScript'": ("model", "the bundled model gives the same answer twice"),
    "test_include_reasoning": ("model", "the bundled model does not reason"),
    "reasoning_tokens": ("model", "the bundled model does not reason"),
    "test_reasoning_item": ("model", "the bundled model does not reason"),
    "CompletionUsa": ("model", "its tokenizer needs another number of tokens"),
    "iteration_tokens_total_sum": ("model", "its tokens fill a block, so a prompt is cached"),
    "<|im_start|>": ("model", "another chat template"),
}


def copy(source: Path, folder: Path) -> dict[str, list[str]]:
    """Copy what the tests need; returns the files of each folder of tests."""
    for name in HELPERS:
        copy_file(source / "tests", folder / "tests", name)
    for name in MODULES:
        copy_file(source / "vllm", folder / "vllm", name)
    return {
        group: [f"{group}/test_{word}.py" for word in words.split()]
        for group, words in FILES.items()
    }


def copy_file(source: Path, package: Path, name: str) -> None:
    """Copy one file into a package, with the packages above it."""
    target = package / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / name, target)
    while target != package:
        target = target.parent
        (target / "__init__.py").touch()
