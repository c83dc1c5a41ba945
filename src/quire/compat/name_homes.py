"""The homes of misplaced names: sampling params, the server's options, or a call.

The names are listed, as their classes are above this room; a test compares them.
"""

from __future__ import annotations

from collections.abc import Container

from quire.options import flag_of

_SAMPLING_PARAMS = """
    allowed_token_ids bad_words detokenize frequency_penalty ignore_eos
    include_stop_str_in_output kept_token_ids logit_bias logprob_token_ids logprobs max_tokens
    min_p min_tokens n output_kind presence_penalty prompt_logprobs reasoning_marks
    repetition_penalty seed skip_special_tokens stop stop_token_ids structured_outputs temperature
    thinking_token_budget top_k top_p
"""
SAMPLING_PARAMS = frozenset(_SAMPLING_PARAMS.split())

_SERVER_SETTINGS = """
    access_log admin_api_key admin_port admin_uds allowed_hosts allowed_origins api_key api_key_file
    api_server_count default_chat_template_kwargs enable_force_include_usage
    enable_request_id_headers engine_hang_timeout engine_load_timeout gpu_hour_cost host
    idle_unload_seconds log_format log_level max_body_bytes max_held_body_bytes
    max_queued_requests max_queued_tokens model_load model_load_timeout model_memory_bytes
    otlp_traces_endpoint port queue_timeout reasoning_parser request_timeout response_store_bytes
    return_tokens_as_token_ids root_path share_prefix_cache shutdown_timeout
    slow_reader_timeout tool_call_parser uds
"""
SERVER_SETTINGS = frozenset(_SERVER_SETTINGS.split())

# arguments of LLM.generate beside the prompts and their sampling params
CALL_OPTIONS = frozenset(
    ("add_special_tokens", "tokenization_kwargs", "truncate_prompt_tokens", "truncation_side")
)

# sampling params that have a default of the model, by their key in generation_config.json
DEFAULTS = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
DEFAULTS |= {"max_tokens": "max_new_tokens"}


GENERATION_CONFIG = "--override-generation-config"


def own_name(name: str) -> str:
    """Quire's name of another engine's sampling param or server setting; else the name itself."""
    from quire.compat.names_table import row_of  # usually not needed

    row = row_of(name, ("sampling", "server"))
    return name if row is None or row.same_as is None else row.same_as


# fields of StructuredOutputs, by the names under which other APIs have them beside others
CONSTRAINTS = {
    **{name: name for name in ("json", "regex", "choice", "grammar", "json_object")},
    **{f"guided_{name}": name for name in ("json", "regex", "choice", "grammar")},
    "json_schema": "json",
    "ebnf": "grammar",
    "response_format": "json",
    "structural_tag": "structural_tag",
}
_OF_REQUESTS = {
    "stream": "answers come whole; use on_output of LLM.generate, or AsyncEngine",
    "echo": "answers come without their prompts; put them in front",
    "tools": "it is an option of LLM.chat",
    "messages": "use LLM.chat",
    "prompt": "use LLM.generate",
    "priority": "the prompts of a call run in their order; see LLMEngine",
}


def home_of_param(name: str, settings: Container[str]) -> str | None:
    """Advice on a name that no sampling param has; None for an unknown name.

    settings: the names of the engine's.
    """
    if name in CALL_OPTIONS:
        return f"{name} is an option of the call: generate(..., {name}=...)"
    if name in CONSTRAINTS:
        fix = f"use structured_outputs=StructuredOutputs({CONSTRAINTS[name]}=...)"
        return f"{name} is a structured output; {fix}"
    if name in _OF_REQUESTS:
        return f"{name} is not a sampling param: {_OF_REQUESTS[name]}"
    from quire.compat.names_table import row_of  # usually not needed

    row = row_of(name, ("engine",))
    own = name if row is None else row.same_as
    if own in settings:
        return f"{name} is a setting of the engine; use LLM({own}=...)"
    return None


def python_home(name: str) -> str | None:
    """Advice on a name that a method in Python does not take; None for an unknown name."""
    own = own_name(name)
    if own in SAMPLING_PARAMS:
        return f"{name} is a sampling param; use SamplingParams({own}=...)"
    if own in SERVER_SETTINGS:
        return f"{name} is a setting of the server; use `quire serve`, or leave it out"
    return None


def command_home(flag: str, name: str, flags: Container[str], value: object = None) -> str | None:
    """Advice on an option of another command; None for an unknown option.

    name: Quire's. flags: those of this command; one that takes a generation config has requests.
    """
    own = flag_of(name)
    shown = flag if flag == own else f"{flag} ({own})"
    if name in SAMPLING_PARAMS and GENERATION_CONFIG not in flags:
        return f"{shown} is a sampling param, which this command does not take; leave it out"
    if name in DEFAULTS:
        example = "..." if value is None or value is True else value
        key = DEFAULTS[name]
        return (
            f"{shown} is set by each request; for those that leave it out use "
            f"{GENERATION_CONFIG} '{{\"{key}\": {example}}}'"
        )
    if name in SAMPLING_PARAMS and "--temperature" in flags:  # as of generate and chat
        return f"{shown} is not an option here; use SamplingParams({name}=...) of LLM in Python"
    if name in SAMPLING_PARAMS:
        return f"{shown} is set by each request; send {name!r} there"
    if name in SERVER_SETTINGS:
        return f"{shown} is an option of quire serve; leave it out"
    return None
