"""llama.cpp's server tests: which of them are run, and why some cannot pass."""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDER = Path("tools/server/tests")
FILES = (
    "basic chat_completion compat_anthropic compat_oai_responses completion ctx_shift embedding "
    "ignore_eos metrics rerank security template tokenize tool_call"
)
# a part of a test's name or error → its kind (endpoint_suites.py) and why it cannot pass
REASONS: dict[str, tuple[str, str]] = {
    "refused by choice": ("choice", "an option that is refused by its name"),
    "test_server_multiple_addresses": ("choice", "a server listens at one address"),
    "test_server_props": ("choice", "/props names the model, not its file"),
    "test_server_slots": ("choice", "there are no slots"),
    "test_cancel_request": ("choice", "there are no slots"),
    "test_metrics_slots": ("choice", "there are no slots"),
    "aliases_and_tags": ("choice", "models have no tags"),
    "stream_vs_non_stream": ("choice", "requests without a seed draw other tokens"),
    "test_completion_response_fields": ("choice", "replies have all of their fields"),
    "post_sampling": ("choice", "log-probabilities are those before sampling"),
    "test_logit_bias[": ("choice", "logit_bias is a map of token ids to numbers"),
    "test_embedding_mixed_input": ("choice", "inputs are texts or token ids, not both mixed"),
    "test_embedding_content_text": ("choice", "the field is input"),
    "test_embedding_pooling_none": ("choice", "an embedding is one vector"),
    "assert 'too large' in": ("choice", "the words of the error differ"),
    "tei_": ("choice", "/rerank has Jina's format, not that of TEI"),
    "populates_logit_bias": ("choice", "ignore_eos masks the end tokens itself"),
    "assert 251 == 248": ("model", "its tokenizer needs another number of tokens"),
    "long_prompt": ("model", "its tokenizer needs fewer tokens, so the prompt fits"),
    "test_completion[": ("model", "its tokenizer needs another number of tokens"),
    "test_completion_stream[": ("model", "its tokenizer needs another number of tokens"),
    "_usage": ("model", "its tokenizer needs another number of tokens"),
    "'startswith'": ("choice", "system_fingerprint is null, as vLLM's"),
    "(None is not None)": ("choice", "system_fingerprint is null, as vLLM's"),
    "'' is None": ("choice", "a stream's first chunk has empty content, as vLLM's"),
    "'exceed_context_size_error'": ("choice", "the error's type is OpenAI's"),
    "test_return_progress": ("choice", "a stream begins with the first token"),
    "codellama70b": ("choice", "a template is a file, and a model has its own name"),
    "test_apply_chat_template": ("choice", "a template is a file"),
    "__verbose": ("vllm", "it reads what the server logs of itself"),
    "test_verbose_debug": ("vllm", "it reads what the server logs of itself"),
    "req[messages7]": ("choice", "two answers of the assistant may follow one another"),
    "test_chat_completions_token_count": ("choice", "/tokenize counts the tokens of messages"),
    "400 == 500": ("choice", "an image is the client's mistake, not the server's"),
    "huggingface.co": ("model", "it needs images"),
    "test_anthropic_empty_messages": ("choice", "a conversation has a message"),
    "thinking_with_reasoning_model": ("model", "the bundled model does not reason"),
    "== 222)": ("model", "its tokenizer needs another number of tokens"),
    "assert 18 == 77": ("model", "its tokenizer needs another number of tokens"),
    "llama_telemetry": ("choice", "the telemetry of its page"),
    "test_server_models": ("model", "the suite serves one model under several names"),
    "are 258, but the limit": ("choice", "max_tokens beyond the context is refused, as in vLLM"),
    "unit/test_metrics.py": ("choice", "series have vLLM's names, and are always there"),
    "test_access_static_assets": ("choice", "the files of its page"),
    "test_correct_api_key": ("choice", "/completions is refused: it has two formats elsewhere"),
    "test_cors_options": ("choice", "a page of another origin needs --allowed-origins"),
    "test_cors_origins_localhost": ("choice", "--allowed-origins has whole origins"),
    "test_cors_proxy": ("choice", "the server opens no connections"),
    "test_openai_library_correct_api_key": ("choice", "clients name /v1 in their base URL"),
    "match_regex": ("model", "words of another model"),
    "with_openai_library": ("model", "words of another model"),
    "test_load_split_model": ("model", "words of another model"),
    "test_tokenize_with_bos": ("model", "its tokenizer has no BOS"),
}


def copy(source: Path, folder: Path) -> list[str]:
    """Copy the tests, their templates and the stand-ins; returns the files to run."""
    tests = folder / FOLDER
    shutil.copytree(source / FOLDER, tests)
    (tests / "utils.py").rename(tests / "upstream_utils.py")
    shutil.copytree(Path(__file__).parent / "llama_cpp", tests, dirs_exist_ok=True)
    shutil.copytree(source / "models" / "templates", folder / "models" / "templates")
    return [f"unit/test_{word}.py" for word in FILES.split()]
