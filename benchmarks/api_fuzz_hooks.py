"""Hooks by which schemathesis knows this server: loaded by it when api_fuzz.py runs it.

Owns the two checks that need to know more than the OpenAPI document can say. Valid bodies may be
refused only by a rule that is listed here and told in an operation's description; a 5xx is an error
unless it is 503, and so is a 408 that the request itself did not ask for. What was seen is counted
and written as JSON to $API_FUZZ_COUNTS at the end.
"""

from __future__ import annotations

import atexit
import json
import os
import re
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import schemathesis

MOST_TOKENS = 4  # of an answer, so that the time goes into many examples
ENOUGH_SECONDS = 30.0
TIMEOUT = "X-Request-Timeout"

# rule → what a refusal of a body that its schema takes says then
RULES = {
    "context": r"context|KV cache|for the answer|characters|tokens, but the limit here",
    "vocabulary": r"vocabulary|token ids go|no token|one token|no tokens|is empty|^logit_bias.+exp",
    "biases": r"^(options\.)?logit_bias(: must be between|\['\d+'\]: must be an integer)",
    "integers": r"expected int.*, got float|must be an integer.*, not a number",
    "template": r"chat template|the template|messages: .*render",
    "arguments": r"not JSON|JSON object|arguments",
    "tools": r"^tools|twice; rename|arguments are always an object",
    "tool_choice": r"^tool_choice",
    "form": r"^(structured_outputs|guided_\w+|response_format|text\.format|output_config)",
    "strict tools": r"grammar|schema",
    "batch": r"are not streamed|gets one answer",
    "logprobs": r"above max_logprobs|in all; ask for fewer|it needs (logprobs|n_probs); ask",
    "stream": r"it needs a stream|not sent in a stream",
    "min_tokens": r"^min_tokens",
    "max_tokens": r"^max_tokens: (0|must be at least 1)",
    "other fields": r"^(max_completion_tokens: it differs|top_logprobs: it needs)|prompts with n=",
    "priority": r"^priority",
    "stored": r"^Previous response with id|Item with id '.*' not found",
    "truncation": r"^truncate_prompt_tokens",
    "roles": r"last one is the assistant|only (the (assistant|user) has this|tools have|text; rem)",
    "continued": r"last one has no text",
    "calls": r"a message of the role \w+ has none",
    "effort": r"^reasoning(_effort|\.effort)",
    "variables": r"^chat_template_kwargs",
    "dimensions": r"^dimensions",
    "pairs": r"^(queries|documents|text_[12]): (it is missing|must be (sent|1 text))",
    "objects": r"^(quer(y|ies)|documents|text_[12])(\[\d+\])?: it has no text",
    "texts": r"U\+FDD0",
    "durations": r"^keep_alive: must be a number of seconds, or a duration",
    "homes": r"^\w+: unknown field; send \w+\.",
    "thinking": r"^thinking",
}

WRITE_EVERY = 50

_seen = Counter[str]()
_timeouts, _calls = count(1), count(1)
_counts = os.environ.get("API_FUZZ_COUNTS")


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Reduce valid parameters to what a small model can serve."""
    if TIMEOUT in (case.headers or {}):
        with suppress(ValueError):
            case.headers[TIMEOUT] = str(_patient(float(case.headers[TIMEOUT])))
    body = case.body
    if not isinstance(body, dict):
        return
    if "timeout" in body:
        body["timeout"] = _patient(body["timeout"])
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"):
        if type(body.get(name)) is int and MOST_TOKENS < body[name] < 2**31:
            body[name] = MOST_TOKENS
    for name in ("prompt", "input", "tokens", "stop_token_ids"):
        if name in body:
            body[name] = _near(body[name])
    if isinstance(body.get("model"), str):  # any other name than the served one is a 404
        body["model"] = "quire" if len(body["model"]) % 4 else body["model"]


def _patient(value: Any) -> Any:
    """Mostly enough seconds to answer in."""
    is_short = isinstance(value, int | float) and 0 < value < ENOUGH_SECONDS
    return ENOUGH_SECONDS if is_short and next(_timeouts) % 8 else value


def _near(value: Any) -> Any:
    """Token ids that a small vocabulary has."""
    if type(value) is int and 0 <= value < 2**31:
        return value % 512
    return [_near(item) for item in value] if isinstance(value, list) else value


@schemathesis.check
def only_own_failures(_context: Any, response: Any, case: Any) -> None:
    """No 5xx but 503, and 408 only for a request that gave itself no time."""
    status = response.status_code
    _seen[f"status {status}"] += 1
    if next(_calls) % WRITE_EVERY == 0:
        _write()
    is_right = own_timeout(case) if status == 408 else status < 500 or status == 503
    assert is_right, f"{status}: {response.text[:300]}"


@schemathesis.check
def valid_data_is_taken_or_refused_by_a_rule(_context: Any, response: Any, case: Any) -> None:
    """Bodies that the schema takes are answered, unless a rule in words stands against it."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        _seen["negative"] += 1
        return
    _seen["positive"] += 1
    if response.status_code != 400:
        return
    _seen["positive, refused"] += 1
    error = json.loads(response.content)["error"]  # Ollama's is the sentence itself
    message = error if isinstance(error, str) else error["message"]
    rule = rule_of(message)
    assert rule is not None, f"refused by no rule that is told: {message}"
    _seen[f"rule {rule}"] += 1


def rule_of(message: str) -> str | None:
    """The rule by which something was refused."""
    return next((name for name, words in RULES.items() if re.search(words, message)), None)


def own_timeout(case: Any) -> bool:
    """Whether the request itself says how long it may take."""
    asked = [(case.headers or {}).get(TIMEOUT)]
    if isinstance(case.body, dict):
        asked.append(case.body.get("timeout"))
    return any(value is not None for value in asked)


@atexit.register
def _write() -> None:
    if _counts is not None:
        part = Path(f"{_counts}.part")
        part.write_text(json.dumps(dict(sorted(_seen.items()))))
        part.replace(_counts)
