"""The homes of fields that a route does not have: its own field that means the same, or a route."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

# fields that mean the same, each on routes of its own; with a dot: inside of another field
_ALIKE = (
    ("input", "prompt", "messages", "inputs", "content", "text", "texts"),
    ("tokens", "token_ids"),
    ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict",
     "num_predict", "options.num_predict"),
    ("response_format", "text.format", "output_config.format", "format", "structured_outputs"),
    ("reasoning_effort", "reasoning.effort", "output_config.effort", "think", "reasoning"),
    ("thinking_token_budget", "reasoning.max_tokens", "thinking_budget", "reasoning_budget"),
    ("chat_template_kwargs.enable_thinking", "enable_thinking"),
    ("structured_outputs.regex", "regex"),
    ("structured_outputs.grammar", "ebnf"),
    ("system", "instructions"),
    ("stop", "stop_sequences"),
    ("temperature", "temp"),
    ("repetition_penalty", "repeat_penalty"),
    ("logprobs", "n_probs"),
)  # fmt: skip

# where a prompt of this kind belongs, in OpenAI's API and in Ollama's
_ROUTES = {
    "messages": ("/v1/chat/completions", "/api/chat"),
    "prompt": ("/v1/completions", "/api/generate"),
    "input": ("/v1/responses and /v1/embeddings", "/api/embed"),
}
# of Ollama's `options`; a test compares them
_OPTIONS = """
    draft_num_predict embedding_only f16_kv frequency_penalty logits_all low_vram main_gpu min_p
    num_batch num_ctx num_gpu num_gqa num_keep num_predict num_thread numa penalize_newline
    presence_penalty repeat_last_n repeat_penalty rope_frequency_base rope_frequency_scale seed
    stop temperature top_k top_p use_mlock use_mmap vocab_only
"""
OLLAMA_OPTIONS = frozenset(_OPTIONS.split())
_OF_OLLAMA = "keep_alive"  # a field that all bodies of its API have

_NAMED = re.compile(r"(?:send|use) (?!(?:a|its|the) )([a-z_.]+)")  # an advice that names a field
_WORD = re.compile(r"[a-z_.]+")


def own_field(name: str, known: Collection[str]) -> str | None:
    """The field of a route that means the same as an unknown one; None if there is none.

    known: the route's fields.
    """
    alike = next((group for group in _ALIKE if name in group), ())
    for other in alike:
        if other != name and other.partition(".")[0] in known:
            return other
    if "options" in known:
        return next((f"options.{n}" for n in (name, *alike) if n in OLLAMA_OPTIONS), None)
    return None


def fix_of_route(fix: str, known: Collection[str]) -> str:
    """The advice on a refused field, without fields that the route lacks.

    fix: such as "use top_p, top_k or min_p". known: the route's fields.
    """
    named = _NAMED.match(fix)
    words = {word.partition(".")[0] for word in _WORD.findall(fix)}
    if named is None or not words.isdisjoint(known):
        return fix
    own = own_field(named[1], known)
    return f"send {own}" if own else "leave it out"


def field_home(name: str, known: Collection[str]) -> str | None:
    """Advice on a field that a route does not know; None for one that has no home."""
    own, route = own_field(name, known), _route(name, known)
    if own is None and _is_system(name) and "messages" in known:
        return "send it as a message with the role system"
    fixes = ([f"send {own}"] if own else []) + ([f"use {route}"] if route else [])
    return ", or ".join(fixes) or None


def _is_system(name: str) -> bool:
    """Whether a field is the instructions to the model, which a chat has as a message."""
    return name in ("system", "instructions", "system_prompt")


def misplaced(missing: str, found: Iterable[str], known: Collection[str]) -> str | None:
    """The advice on a field that a body has in the place of a missing one; None without one."""
    group = next((group for group in _ALIKE if missing in group), ())
    for name in found:
        if name in group and name not in known:
            route = _route(name, known)
            return f"{name} is a field of {route}" if route else f"send it in place of {name}"
    return None


def _route(name: str, known: Collection[str]) -> str | None:
    routes = _ROUTES.get(name)
    return None if routes is None else routes[_OF_OLLAMA in known]
