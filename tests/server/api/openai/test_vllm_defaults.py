"""vLLM's fields with its own defaults, as clients that fill in all of them send them.

The names and values are those of its protocol (vLLM 0.33.0).
"""

from __future__ import annotations

from typing import Any

import pytest
from asgi_client import call
from starlette.applications import Starlette

NONE = {  # fields that are null by default, by path; "": on all
    "": """
        cache_salt ec_transfer_params frequency_penalty kv_transfer_params logit_bias min_p
        model presence_penalty repetition_penalty request_id return_mm_kwargs seed session_id
        skip_special_tokens structured_outputs temperature top_k top_p user vllm_xargs
        watermarking
    """,
    "/v1/chat/completions": """
        allowed_token_ids bad_words chat_template chat_template_kwargs documents
        logprob_token_ids max_completion_tokens max_tokens media_io_kwargs mm_processor_kwargs
        prompt_logprobs reasoning_effort repetition_detection response_format return_prompt_text
        return_token_ids return_tokens_as_token_ids stream_interval stream_options
        thinking_token_budget tools truncate_prompt_tokens truncation_side
    """,
    "/v1/completions": """
        allowed_token_ids bad_words logprob_token_ids logprobs prompt_embeds prompt_logprobs
        repetition_detection response_format return_token_ids return_tokens_as_token_ids
        stream_interval stream_options suffix thinking_token_budget truncate_prompt_tokens
        truncation_side
    """,
    "/v1/responses": """
        chat_template_kwargs include instructions max_output_tokens max_tool_calls
        media_io_kwargs metadata mm_processor_kwargs previous_input_messages
        previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention
        reasoning safety_identifier text tools
    """,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "": {
        "stop": [],
        "stream": False,
        "stop_token_ids": [],
        "include_stop_str_in_output": False,
        "ignore_eos": False,
        "spaces_between_special_tokens": True,
        "priority": 0,
        "mm_payload": "tensors",
    },
    "/v1/chat/completions": {
        "logprobs": False,
        "top_logprobs": 0,
        "n": 1,
        "tool_choice": "none",
        "include_reasoning": True,
        "parallel_tool_calls": True,
        "use_beam_search": False,
        "length_penalty": 1.0,
        "min_tokens": 0,
        "echo": False,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "add_special_tokens": False,
        "return_weight_versions": False,
        "routed_experts_prompt_start": 0,
        "return_token_offsets": False,
    },
    "/v1/completions": {
        "echo": False,
        "max_tokens": 16,
        "n": 1,
        "use_beam_search": False,
        "length_penalty": 1.0,
        "min_tokens": 0,
        "add_special_tokens": True,
        "return_weight_versions": False,
        "routed_experts_prompt_start": 0,
        "return_token_offsets": False,
    },
    "/v1/responses": {
        "background": False,
        "parallel_tool_calls": True,
        "include_reasoning": True,
        "service_tier": "auto",
        "store": True,
        "tool_choice": "auto",
        "top_logprobs": 0,
        "truncation": "disabled",
        "enable_response_messages": False,
    },
}

NEEDED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
}


@pytest.mark.parametrize("path", NEEDED)
def test_defaults_ask_for_nothing(app: Starlette, path: str) -> None:
    fields = dict.fromkeys([*NONE[""].split(), *NONE[path].split()]) | DEFAULTS[""] | DEFAULTS[path]
    assert len(fields) > 50, "these are not all"
    refused = {}
    for name, value in fields.items():
        reply = call(app, path, NEEDED[path] | {name: value})
        if reply.status != 200:
            refused[name] = reply.error["message"]
    assert refused == {}
    assert call(app, path, fields | NEEDED[path]).status == 200
