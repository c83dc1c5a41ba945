"""llama.cpp's server tests: which of them are run, and why some cannot pass."""

from __future__ import annotations

import shutil
from pathlib import Path

from reasons import Reason

FOLDER = Path("tools/server/tests")
FILES = (
    "basic chat_completion compat_anthropic compat_oai_responses completion ctx_shift embedding "
    "ignore_eos metrics rerank security template tokenize tool_call"
)
_TOKENS = r"assert \d+ == (69|77|79|23|18|46|248|9|6|19|26|21\d)\b|28 == \(2 \* 9\)"
_NO_SLOTS = "/slots is llama.cpp's, which is not here"
_TOO_LONG = "'invalid_request_error' == 'exceed_context_size_error'"
_FIRST = r"assert '' is None|Expected non empty content delta"
_ORIGIN = "--allowed-origins has 'localhost', which is no origin"
_TEMPLATE = "refused by choice: a template is a file, not a name"
_START = "'Process-Start-Time-Unix' in"
REASONS = (
    Reason("", _TEMPLATE, "choice", "a template is a file"),
    Reason("", "refused by choice: ", "choice", "an option that is refused by its name"),
    Reason("", _NO_SLOTS, "choice", "there are no slots"),
    Reason("codellama70b", "model: 'codellama70b' is not served here", "choice", "a model's name"),
    Reason("test_verbose_debug", "verbose: unknown field", "choice", "unknown fields are refused"),
    Reason("test_completion_response_fields", "response_fields: not supp", "choice", "all fields"),
    Reason(
        "test_n_probs_post_sampling", "post_sampling_probs: not supp", "choice", "before sampling"
    ),
    Reason("test_logit_bias[", r"logit_bias(\[0\]\[0\]|\[' i '\]): must be", "choice", "ids alone"),
    Reason("test_logit_bias[", "logit_bias: must be between -100", "choice", "OpenAI's bounds"),
    Reason("test_embedding_mixed_input", "400: .*input", "choice", "texts or token ids, not both"),
    Reason("test_embedding_content_text", r"input\[1\]: must be", "choice", "the field is input"),
    Reason("test_rerank_tei", "documents: it is missing", "choice", "Jina's format, not TEI's"),
    Reason(
        "test_anthropic_empty_messages", "messages: must be a list of len", "choice", "no message"
    ),
    Reason("test_cors_origins_localhost", _ORIGIN, "choice", "--allowed-origins has origins"),
    Reason("test_cors_proxy", "/cors-proxy is llama.cpp's", "choice", "opens no connections"),
    Reason(
        "test_template.py", "tools: this model's chat template does", "choice", "no tools there"
    ),
    Reason("test_template.py", "tools: how this model writes calls", "choice", "no such parser"),
    Reason(
        "test_reasoning[", "Expected prompt to end with", "differs", "enable_thinking is not set"
    ),
    Reason("test_date_inside", "Expected today's date", "differs", "date_string is not set"),
    Reason("test_date_inside", "'functions' is undefined", "differs", "functions is not set"),
    Reason("test_cors_options", "401 == 200", "differs", "another origin needs --allowed-origins"),
    Reason("test_server_multiple_addresses", r"all\(\[True, None\]\)", "differs", "one address"),
    Reason("test_server_props", "'.gguf' in", "differs", "/props names the model, not its file"),
    Reason("test_chat_completions_token_count", "no such path", "differs", "/tokenize counts"),
    Reason("", _FIRST, "differs", "a stream's first chunk has empty content, as OpenAI's"),
    Reason("test_context_size_exceeded", _TOO_LONG, "differs", "the error's type is OpenAI's"),
    Reason("test_embedding_error_prompt", "'too large' in", "differs", "words of the error"),
    Reason(
        "test_embedding_pooling_none", "no such path; did you mean /v1/emb", "differs", "a vector"
    ),
    Reason("test_embedding_pooling_none_oai", "200 == 400", "differs", "one vector for each text"),
    Reason("test_return_progress", "None is not None", "differs", "streams begin with a token"),
    Reason("prompt_progress", r"assert 0 > 1", "differs", "streams begin with a token"),
    Reason("messages7", r"200 == 400 or", "differs", "answers may follow one another"),
    Reason("test_ignore_eos_populates", r"assert 0 > 0", "differs", "end tokens are masked anyway"),
    Reason("test_metrics.py", _START, "differs", "series have vLLM's names"),
    Reason("test_metrics.py", r"200 == 501|assert 0 > 0", "differs", "series have vLLM's names"),
    Reason(
        "test_anthropic_", "400 == 500 .*not 'image'", "differs", "the client's mistake, not ours"
    ),
    Reason(
        "test_correct_api_key", "did you mean /v1/completions", "differs", "the path is /v1/..."
    ),
    Reason("test_access_static_assets", "Expected 200 for /sw.js", "differs", "files of its page"),
    Reason("llama_telemetry", "assert False", "differs", "the telemetry of its page"),
    Reason("aliases_and_tags", r"assert 9 == 1", "differs", "a model has a card for each alias"),
    Reason("test_server_models", r"assert 7 == 1", "internals", "the suite's own aliases"),
    Reason("", "'__verbose' in", "internals", "it reads what its server logs of itself"),
    Reason("", "host='huggingface.co'", "internals", "it downloads its images"),
    Reason("", _TOKENS, "model", "its tokenizer needs another number of tokens"),
    Reason("test_completion_prompt_cache", "'prompt_n' in", "model", "tokens of its tokenizer"),
    Reason("test_ctx_shift_disabled_long", "200 != 200", "model", "tokens of its tokenizer"),
    Reason("", r"match_regex\('(\(Suddenly|\(going|\(little)", "model", "words of another model"),
    Reason("response_format1", r"match_regex\('\[ -3000", "model", "words of another model"),
    Reason("multiple_choices", "'stop' == 'length'", "model", "its answer ends by itself"),
    Reason("test_completion_stream_vs_non_stream", "assert ' ", "model", "draws without a seed"),
    Reason("test_tokenize_with_bos", "assert 870 == 1", "model", "its tokenizer has no BOS"),
)


def copy(source: Path, folder: Path) -> list[str]:
    """Copy the tests, their templates and the stand-ins; returns the files to run."""
    tests = folder / FOLDER
    shutil.copytree(source / FOLDER, tests)
    (tests / "utils.py").rename(tests / "upstream_utils.py")
    shutil.copytree(Path(__file__).parent / "llama_cpp", tests, dirs_exist_ok=True)
    shutil.copytree(source / "models" / "templates", folder / "models" / "templates")
    return [f"unit/test_{word}.py" for word in FILES.split()]
