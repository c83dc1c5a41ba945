"""Fields of requests to llama.cpp's server, which its page and other clients send with defaults."""

from __future__ import annotations

from quire.compat import phrases as say
from quire.compat.foreign_name import ForeignName, each, no_effect, only

_L = "llama.cpp"
_WHOLE = "an answer ends by itself, by max_tokens or by timeout"
_GRAMMAR = "a grammar holds from the first token of an answer"
_CHAT = "a chat's answer is read as the server's parsers say"
_TIMEOUT = "send timeout, in seconds"
_SPECULATIVE = ("n_max", "n_min", "p_min", "type", "ngram_size_n", "ngram_size_m", "ngram_min_hits")

LLAMA_CPP_FIELDS: tuple[ForeignName, ...] = (
    *each("n_keep n_discard", say.NO_SHIFT, engines=_L),
    no_effect("n_cache_reuse", _L, "equal prefixes are shared, other parts of a prompt are not"),
    no_effect("slot_id", _L, "there are no slots", neutral=(-1,)),
    no_effect("backend_sampling", _L, "the server decides where tokens are sampled"),
    no_effect("sse_ping_interval", _L, say.EVENTS_ALONE),
    no_effect("reasoning_format", _L, "reasoning is a field of its own; see reasoning_parser",
              neutral=("", "auto", "deepseek")),
    *each("chat_format chat_parser", _CHAT, engines=_L),
    no_effect("parse_tool_calls", _L, _CHAT, neutral=(True,)),
    *each("reasoning_budget_start_tag reasoning_budget_end_tags",
          "reasoning has the marks of its parser", engines=_L),
    *(no_effect(f"speculative.{name}", _L, say.ONE_TOKEN) for name in _SPECULATIVE),
    only("parse_special", _L, (True,), "control tokens in a prompt are always read as such",
         "leave it out"),
    only("verbose", _L, (False,), "replies have what their API has", "leave it out"),
    only("return_tokens", _L, (False,), "chats have it by vLLM's name", "send return_token_ids"),
    only("response_fields", _L, ([],), "a reply has all its fields", "leave it out"),
    only("post_sampling_probs", _L, (False,), "probabilities are those before sampling",
         "leave it out"),
    only("n_indent", _L, (0,), "lines may begin as the model likes", "use structured_outputs"),
    only("t_max_prompt_ms", _L, (-1, 0), _WHOLE, _TIMEOUT),
    only("t_max_predict_ms", _L, (-1, 0), _WHOLE, _TIMEOUT),
    only("grammar_lazy", _L, (False,), _GRAMMAR, "use a structural_tag, whose text is free"),
    only("grammar_triggers", _L, ([],), _GRAMMAR, "use a structural_tag, which has triggers"),
    only("preserved_tokens", _L, ([],), "control tokens are not in an answer's text",
         "send skip_special_tokens false"),
    only("generation_prompt", _L, ("",), "the chat template writes it", "leave it out"),
    only("continue_final_message", _L, (False,), "there is no conversation", "leave it out"),
    only("echo", _L, (False,), "the prompt is not in the answer", "leave it out"),
    only("reasoning_control", _L, (False,), "a running answer is not changed",
         "send thinking_token_budget"),
    only("reasoning_budget_message", _L, ("",), "reasoning ends by its mark alone",
         "leave it out"),
    only("api_key", _L, ("",), "keys are sent in a header", "send Authorization: Bearer KEY"),
)  # fmt: skip
