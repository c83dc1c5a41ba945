"""Fields of HTTP requests that have no effect here, or are refused by their own name.

Of OpenAI's, Anthropic's, vLLM's, llama.cpp's and Ollama's APIs, whatever the route. Sampling
params of other engines are in sampling_names.py.
"""

from __future__ import annotations

from quire.compat.foreign_name import ForeignName, alias, no_effect, only

_AI, _ANT, _V, _L, _O = "OpenAI", "Anthropic", "vLLM", "llama.cpp", "Ollama"
_CACHED = "equal prefixes of one key are always cached"
_STORED = "only /v1/responses stores answers"
_RESEND = "send the whole conversation"
_TIER = "there is one service tier; see priority"
_TEXT_ONLY = "models read and write text alone"
_TOOLS = "clients run the tools"
_OWN_TOOLS = "use tools of your own"

REQUEST_NAMES: tuple[ForeignName, ...] = (
    no_effect("user", _AI, "requests are told apart by their API key; see cache_salt"),
    no_effect("safety_identifier", _AI, "requests are told apart by their API key"),
    no_effect("prompt_cache_key", _AI, _CACHED),
    no_effect("prompt_cache_options", _AI, _CACHED),
    no_effect("prompt_cache_retention", _AI, _CACHED),
    no_effect("verbosity", _AI, "the length of an answer is the model's choice; see max_tokens"),
    no_effect("store", _AI, _STORED),
    no_effect("service_tier", "OpenAI, Anthropic", _TIER),
    no_effect("speed", _ANT, _TIER),
    no_effect("inference_geo", _ANT, "a request is answered by this server"),
    no_effect("context_management", "OpenAI, Anthropic",
              "a conversation is never shortened; it must fit the context"),
    no_effect("truncation", _AI, "a conversation is never shortened; it must fit the context"),
    no_effect("include", _AI, "an answer has all that is known; see top_logprobs"),
    no_effect("thinking", _ANT, "the chat template has no variable for it"),
    no_effect("reasoning_effort", _AI, "the chat template has no variable for it"),
    no_effect("cache_prompt", _L, _CACHED),
    no_effect("id_slot", _L, "there are no slots"),
    no_effect("timings_per_token", _L, "only chats, completions and responses have it"),
    no_effect("return_progress", _L, "only chats, completions and responses have it"),
    no_effect("keep_alive", _O, "a model stays loaded; see idle_unload_seconds"),
    no_effect("guided_decoding_backend", _V, "llguidance constrains every structured output"),
    no_effect("request_id", _V, "a request is named by its header x-request-id"),
    alias("use_activation", "normalize", _V),
    only("padding", _V, ("do_not_pad",), "prompts are never padded", "leave it out"),
    no_effect("include_obfuscation", _AI, "streams are sent without padding"),
    no_effect("max_tool_calls", _AI, _TOOLS),
    only("background", _AI, (False,), "a request is answered while its client waits",
         "leave it out, or use /v1/responses"),
    only("previous_response_id", _AI, (), _STORED, _RESEND),
    only("conversation", _AI, (), _STORED, _RESEND),
    only("prompt_template", _AI, (), _STORED, "send the prompt itself"),
    only("audio", _AI, (), _TEXT_ONLY, "leave it out"),
    only("image", _AI, ({},), _TEXT_ONLY, "leave it out"),
    only("modalities", _AI, (["text"],), _TEXT_ONLY, "leave it out"),
    only("image_data", "llama.cpp, Ollama", ([],), _TEXT_ONLY, "leave it out"),
    only("images", _O, ([],), _TEXT_ONLY, "leave it out"),
    only("prediction", _AI, (), "a step samples one token of each request", "leave it out"),
    only("moderation", _AI, (), "answers are not moderated", "leave it out"),
    only("web_search_options", _AI, (), _TOOLS, _OWN_TOOLS),
    only("mcp_servers", _ANT, ([],), _TOOLS, _OWN_TOOLS),
    only("container", _ANT, (), _TOOLS, _OWN_TOOLS),
    only("functions", _AI, ([],), "functions are tools", "send tools"),
    only("function_call", _AI, ("none", "auto"), "functions are tools", "send tool_choice"),
    only("documents", _V, ([],), "there is no retrieval", "put the documents into a message"),
    only("suffix", _AI, ("",), "a prompt is continued at its end",
         "write the model's own infill tokens into the prompt"),
    only("prompt_embeds", _V, (), "prompts are text or token ids", "send prompt"),
    only("mm_processor_kwargs", _V, ({},), _TEXT_ONLY, "leave it out"),
    only("kv_transfer_params", _V, ({},), "each engine has a KV cache of its own",
         "leave it out"),
    only("vllm_xargs", _V, ({},), "there are no plug-ins", "leave it out"),
    no_effect("session_id", _V, "equal prefixes of one API key are cached, whatever the session"),
    only("watermarking", _V, (False, {}), "answers have no watermark", "leave it out"),
    only("media_io_kwargs", _V, ({},), _TEXT_ONLY, "leave it out"),
    no_effect("mm_payload", _V, _TEXT_ONLY),
    only("return_mm_kwargs", _V, (False,), _TEXT_ONLY, "leave it out"),
    only("ec_transfer_params", _V, ({},), _TEXT_ONLY, "leave it out"),
    only("return_weight_versions", _V, (False,), "weights stay as they were loaded",
         "leave it out"),
    only("routed_experts_prompt_start", _V, (0,), "experts are not reported",
         "leave it out"),
    only("return_token_offsets", _V, (False,), "answers have no offsets",
         "send return_token_ids, and decode them"),
    only("return_prompt_text", _V, (False,), "the prompt is not in the answer",
         "send the messages to /apply-template"),
    only("include_reasoning", _V, (True,), "reasoning is in the answer",
         "leave out what is not wanted"),
    only("previous_input_messages", _V, ([],), _STORED, _RESEND),
    only("structured_outputs", _V, ({},), "an answer's format is a field of the text",
         "send text.format"),
    only("stop_token_ids", _V, ([],), "an answer ends by texts and by the model's own tokens",
         "send stop"),
    only("extra_body", _V, ({},), "it is an argument of OpenAI's client, no field",
         "send its fields themselves"),
    only("lora", _L, ([],), "the weights are those of the model's folder",
         "merge the adapter into its model, and serve the merged folder"),
    only("lora_request", _V, (), "the weights are those of the model's folder",
         "merge the adapter into its model, and serve the merged folder"),
    only("format", _O, ("",), "an answer's form is that of response_format",
         "send response_format {\"type\": \"json_object\"}, or one with a json_schema"),
    only("think", _O, (), "reasoning is switched by the chat template",
         "in chats send chat_template_kwargs {\"enable_thinking\": false}, or reasoning_effort"),
    only("n_probs", _L, (0,), "log-probabilities are asked for as in OpenAI's API",
         "send logprobs, and top_logprobs in chats"),
    only("raw", _O, (False,), "/v1/completions takes a raw prompt", "use /v1/completions"),
    only("options", _O, ({},), "sampling params are fields of the request",
         "send its fields themselves"),
)  # fmt: skip
