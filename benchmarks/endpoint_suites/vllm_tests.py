"""vLLM's endpoint tests: which of them are run, and why some cannot pass."""

from __future__ import annotations

import shutil
from pathlib import Path

from reasons import Reason

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
_OWN_CLASSES = (
    r"'Reply' object has no attribute|type object 'Reply' has no|but got 'Reply'|Mock object has no"
    r"|'NoneType' and 'int'|'NoneType' object is not callable"
)
_LORA = r"model: 'zephyr-lora' is not served here"
_VOCABULARY = r"between 0 and 2047, not 5000, which is out of vocabulary"
_TOO_LONG = r"input(\[0\])?: too large: .* tokens already, but this model's maximum context"
_TYPE = r"'invalid_request_error' == 'BadRequestError'"
_NO_CALL = r"^assert 0 > 0|assert None is not None|Unterminated string|Expecting"
REASONS = (
    Reason("", _OWN_CLASSES, "internals", "a unit test of its classes"),
    Reason("test_null_top_logprobs", r"None = Reply\(", "internals", "a unit test of its classes"),
    Reason("test_shutdown.py", "AttributeError: '_Finder'", "internals", "starts its own module"),
    Reason("test_shutdown.py", "has no attribute '_get_process_term", "internals", "its processes"),
    Reason("test_metrics_exist_run_batch", "Batch process exited", "internals", "its module"),
    Reason("test_health_check_engine_dead", "object Reply can't", "internals", "a unit test"),
    Reason("rejects_unknown_reasoning_effort", "DID NOT RAISE", "internals", "a unit test"),
    Reason("[zephyr-lora]", _LORA, "choice", "no adapters"),
    Reason("test_check_models", "IndexError: list index", "choice", "no adapters"),
    Reason(
        "test_kv_transfer_", "kv_transfer_params: .* is not supported", "choice", "own KV cache"
    ),
    Reason("test_extra_fields_allowed", "extra_field: unknown field", "choice", "unknown fields"),
    Reason("test_translategemma", "source_lang_code: unknown field", "choice", "unknown fields"),
    Reason("test_custom_role", "role: must be one of", "choice", "roles are a fixed list"),
    Reason("test_batch_completions", "use_beam_search: is not sup", "choice", "beams: in Python"),
    Reason("test_empty_prompt", "prompt_embeds: \\[\\] is not sup", "choice", "prompts are text"),
    Reason("test_padding", "padding: 'max_length' is not", "choice", "prompts are never padded"),
    Reason("test_online_long_text.py", _TOO_LONG, "choice", "a text beyond the context is refused"),
    Reason("token_embed/", "--pooler-config .*token_embed", "choice", "a vector for each text"),
    Reason("test_v2_endpoint_accepts", "404 == <HTTPStatus.OK", "choice", "Cohere's /v2/embed"),
    Reason("test_per_request_metrics_", r"isinstance\(None, dict\)", "choice", "option left out"),
    Reason("test_bigger_truncation_size", _TYPE, "standard", "the error's type is OpenAI's"),
    Reason(
        "test_pooling_not_supported",
        r"[\"'](No IOProcessor plugin|Try switching)",
        "differs",
        "words of the error: no option would switch it",
    ),
    Reason(
        "test_long_seed", "'greater_than_equal' in", "standard", "the bound, as OpenAI's error says"
    ),
    Reason(
        "test_params_not_supported",
        "'literal_error' in",
        "standard",
        "the allowed values, as OpenAI's error says",
    ),
    Reason("test_negative_token_ids", "must be an integer >= 0", "differs", "words of the error"),
    Reason("test_detokenize", "content", "differs", "the text is named content, too"),
    Reason("logprob_token_ids", _VOCABULARY, "model", "token ids beyond the bundled vocabulary"),
    Reason("::test_single_c", r"assert \d+ == 5|CompletionUsa", "model", "tokens of its tokenizer"),
    Reason("test_echo_logprob_completion", r"<\|pad\|>", "model", "its padding token"),
    Reason(
        "test_chat_streaming", "assert None\\W+where None = ChoiceDelta", "model", "ends by itself"
    ),
    Reason(
        "test_structured_outputs_choice_chat", "!= 'TypeScript'", "model", "answers the same twice"
    ),
    Reason("test_response_format_json_", r"== {'result': 2}", "model", "it cannot add"),
    Reason("test_complex_message_content", "== '2'", "model", "it cannot add"),
    Reason("with_function_calling.py", _NO_CALL, "model", "it calls no tools"),
    Reason("test_named_tool_use", "assert 30 != 30", "model", "answers the same twice"),
    Reason("test_anthropic_tool_call", "'end_turn' == 'tool_use'", "model", "it calls no tools"),
    Reason("streaming_cache_usage", "2574 tokens and 1 for", "model", "tokens of its tokenizer"),
    Reason(
        "test_include_reasoning.py", r"assert None|assert ''|assert 0 > 0", "model", "no thoughts"
    ),
    Reason("responses/", r"assert '(312|30)' in ", "model", "it cannot multiply"),
    Reason("responses/", r"assert '(Mark|John)' in ", "model", "it recalls no name"),
    Reason(
        "test_stateful.py::test_background_cancel",
        "'completed' == 'cancelled'",
        "model",
        "it ends before the test asks",
    ),
    Reason("responses/", r"== 'reasoning'|reasoning_tokens > 0", "model", "no thoughts"),
    Reason(
        "responses/test_simple.py::test_max_tokens", "== 'incomplete'", "model", "a short answer"
    ),
    Reason("responses/test_structured_output", "Unterminated|EOF while", "model", "does not end"),
    Reason("test_structured_output_with_parse", "science fair", "model", "it misses the event"),
    Reason(
        "pooling/embed/test_online.py::test_basic", r"\[623, ", "model", "tokens of its tokenizer"
    ),
    Reason("pooling/", r"assert 256 == (384|768)", "model", "its vectors have another size"),
    Reason("test_online.py::test_chat_request", "Cosine similarity", "model", "another template"),
    Reason("test_return_token_ids.py", r"<\|im_start\|>", "model", "another chat template"),
)


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
