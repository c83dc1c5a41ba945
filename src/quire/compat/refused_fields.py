"""Fields that one API has and a route does not honour: why, and what to do instead.

Imported where one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

_TEMPLATE = "templates are the server's; start it with --chat-template"
_TEXT_ONLY = "models read and write only text; leave it out"
_CONTENT = "a template shows the content alone; leave it out"
_WHOLE = "conversations are sent whole; leave it out"
_SERVICE = "it is of the service; leave it out"
_COMPLETIONS = "use /v1/completions, which has it"

WHY_REFUSED: Mapping[str, str] = {
    "access_programs": _SERVICE,
    "annotations": _CONTENT,
    "audio": _TEXT_ONLY,
    "background_options": _SERVICE,
    "billing_policy": _SERVICE,
    "index": "it counts the calls of a message from 0; leave it out",
    "cache_control": "equal prefixes of one key are always cached; leave it out",
    "chat_template": _TEMPLATE,
    "compaction": _WHOLE,
    "context": "conversations are sent whole; use /api/chat",
    "detokenize": "answers are text; send return_token_ids to get token ids as well",
    "diagnostics": _SERVICE,
    "disable_additional_properties": "a schema says it itself; set additionalProperties in it",
    "disable_fallback": "a constraint has no fallback; leave it out",
    "fallback_credit_token": _SERVICE,
    "fallbacks": "the model that is named answers; leave it out",
    "function_call": "functions are tools; send tool_calls",
    "height": _TEXT_ONLY,
    "images": _TEXT_ONLY,
    "output_format": "send output_config with a format",
    "prefix": "send continue_final_message",
    "prompt": "prompts are not stored; send input and instructions",
    "prompt_logprobs": _COMPLETIONS,
    "type": "send parts with a type as its content",
    "reasoning_details": "send reasoning_content instead",
    "refusal": _CONTENT,
    "return_token_ids": "send return_tokens",
    "return_tokens_as_token_ids": _COMPLETIONS,
    "steps": _TEXT_ONLY,
    "stream_options": "the last chunk has the token counts anyway; leave it out",
    "suffix": "a prompt is continued at its end; write the model's own infill tokens into it",
    "template": _TEMPLATE,
    "thread": _WHOLE,
    "user_profile_id": _SERVICE,
    "width": _TEXT_ONLY,
    "workspace_id": _SERVICE,
}


def why_refused(name: str) -> str:
    """The reason and the fix, as a sentence's end."""
    return WHY_REFUSED.get(name, "remove it")
