"""llama.cpp's server tests: which of them are run, and why some cannot pass."""

from __future__ import annotations

import shutil
from pathlib import Path

from reasons import Reason, each

FOLDER = Path("tools/server/tests")
FILES = (
    "basic chat_completion compat_anthropic compat_oai_responses completion ctx_shift embedding "
    "ignore_eos metrics rerank security template tokenize tool_call"
)
_NO_SLOTS = "/slots is llama.cpp's, which is not here"
_TOO_LONG = "'invalid_request_error' == 'exceed_context_size_error'"
_TEMPLATE = "refused by choice: a template is a file, not a name"
_CONTENT = "what adds no content has no such field; null breaks who joins it"
_SIZE = "its tokenizer needs another number of tokens"
_WORDS = "words of another model"
REASONS = (
    *each("test_chat_completion[ test_chat_template test_apply_chat_template", _TEMPLATE, "choice",
          "a template is a file"),
    Reason("", "Failed: refused by choice: ", "choice", "an option that is refused by its name"),
    *each("test_server_slots test_cancel_request slots_idle_after", _NO_SLOTS, "choice",
          "there are no slots"),
    Reason("codellama70b", "model: 'codellama70b' is not served here", "choice", "a model's name"),
    Reason("test_verbose_debug", "verbose: is not supported", "choice",
           "replies are as their API has them"),
    *each("test_chat_template_assistant_prefill test_chat_template_continue_final",
          "'__verbose' in", "choice", "replies do not show the prompt; /apply-template does"),
    Reason("test_completion_response_fields", "response_fields: .* is not supp", "choice",
           "all fields"),
    Reason(
        "test_n_probs_post_sampling", "post_sampling_probs: is not supp", "choice",
        "before sampling",
    ),
    Reason("test_embedding_mixed_input[-", "must be a string of length >= 1", "choice",
           "no text is empty"),
    Reason(
        "test_embedding_pooling_none", "--pooling: must be one of .* not 'none'", "choice",
        "a vector for each text"
    ),
    Reason(
        "test_anthropic_empty_messages", "messages: must be a list of len", "choice", "no message"
    ),
    Reason("test_cors_proxy", "/cors-proxy is llama.cpp's", "choice", "opens no connections"),
    Reason("[origin-Access-Control-Allow-Credentials-true]", "-Allow-Credentials' in", "choice",
           "cookies are never allowed"),
    Reason("test_cors_origins_localhost_rejects", "400 == 200", "choice",
           "a preflight that is refused has vLLM's status and says so"),
    Reason("test_metrics_disabled", "200 == 501", "choice", "/metrics is always there, as vLLM's"),
    Reason("test_reasoning[deepseek", "tools: this model's chat template does", "choice",
           "a template without tools shows none"),
    *each("test_chat_completion_stream[ test_chat_completion_with_timings_per_token",
          "KeyError: 'content'", "standard", _CONTENT),
    Reason("test_context_size_exceeded", _TOO_LONG, "standard", "the error's type is OpenAI's"),
    Reason("messages7", r"200 == 400 or", "standard", "OpenAI takes answers after one another"),
    *each("test_anthropic_tool_result_with_image test_anthropic_vision_format",
          "400 == 500 .*not 'image'", "standard", "a caller's mistake is a 400, as Anthropic's"),
    Reason("aliases_and_tags", r"assert 9 == 1", "standard",
           "each name that can be used is listed, as OpenAI's and vLLM's"),
    Reason("test_cors_options[", r"assert '\*' == '(localhost|web.mydomain.fr)'", "standard",
           "* is any origin, says the Fetch standard"),
    Reason("Access-Control-Allow-Headers-*]", "'Authorization' == '\\*'", "standard",
           "* does not cover Authorization, says the Fetch standard"),
    Reason("test_date_inside_prompt[meta-llama", "Expected today's date", "standard",
           "the template's own date, as transformers renders it"),
    Reason("test_responses_stream_with_llama_telemetry", "^assert None is not None", "standard",
           "an answer cut at max_output_tokens is incomplete, as OpenAI's"),
    Reason("test_server_props", "'.gguf' in", "model", "its model is a folder, no GGUF file"),
    Reason("test_access_static_assets", "Expected 200 for /sw.js", "internals", "its page's files"),
    Reason("test_server_models", r"assert 7 == 1", "internals", "the suite's own aliases"),
    Reason("vision_base64_with_multimodal", "host='huggingface.co'", "internals",
           "it downloads its images"),
    Reason("test_chat_completion[", r"^assert \d+ == (69|77|79|23)\b", "model", _SIZE),
    Reason("test_chat_completion_cached_tokens", r"^assert 18 == 77\b", "model", _SIZE),
    *each("test_completion[ test_completion_stream[", r"^assert \d+ == (18|46)\b", "model", _SIZE),
    Reason("test_ctx_shift_disabled_short_prompt", r"^assert \d+ == 248\b", "model", _SIZE),
    Reason("test_embedding_usage_single", r"^assert (14 == 9|5 == 6)\b", "model", _SIZE),
    Reason("test_embedding_usage_multiple", r"28 == \(2 \* 9\)", "model", _SIZE),
    Reason("test_rerank_usage", r"^assert \d+ == (19|26)\b", "model", _SIZE),
    Reason("test_return_progress[64-4", "^assert 2 == 4", "model", _SIZE),
    Reason("test_completion_prompt_cache", "'prompt_n' in", "model", _SIZE),
    Reason("test_ctx_shift_disabled_long", "200 != 200", "model", _SIZE),
    Reason("test_date_inside_prompt[fireworks", "'bos_token' is undefined", "model",
           "its tokenizer has no BOS"),
    Reason("test_tokenize_with_bos", "assert 870 == 1", "model", "its tokenizer has no BOS"),
    *each("test_chat_completion_with_openai_library test_responses_with_openai_library",
          r"match_regex\('\(Suddenly", "model", _WORDS),
    *each("test_completion_with_openai_library test_completion_stream_with_openai_library",
          r"match_regex\('\(going", "model", _WORDS),
    Reason("test_load_split_model", r"match_regex\('\(little", "model", _WORDS),
    Reason("response_format1", r"match_regex\('\[ -3000", "model", _WORDS),
    *each("multiple_choices test_chat_completion_with_openai_library", "'stop' == 'length'",
          "model", "its answer ends by itself"),
    Reason("test_completion_stream_vs_non_stream", "assert ' ", "model", "draws without a seed"),
)  # fmt: skip


def copy(source: Path, folder: Path) -> list[str]:
    """Copy the tests, their templates and the stand-ins; returns the files to run."""
    tests = folder / FOLDER
    shutil.copytree(source / FOLDER, tests)
    (tests / "utils.py").rename(tests / "upstream_utils.py")
    shutil.copytree(Path(__file__).parent / "llama_cpp", tests, dirs_exist_ok=True)
    shutil.copytree(source / "models" / "templates", folder / "models" / "templates")
    return [f"unit/test_{word}.py" for word in FILES.split()]
