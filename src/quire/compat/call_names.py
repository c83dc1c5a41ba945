"""Arguments of the methods of vLLM's `LLM`."""

from __future__ import annotations

from quire.compat import phrases as say
from quire.compat.foreign_name import ForeignName, alias, no_effect, only

_V = "vLLM"
_OF_PARAMS = "each request has params of its own"

CALL_NAMES: tuple[ForeignName, ...] = (
    alias("prompt_token_ids", "prompts", _V),
    alias("inputs", "prompts", _V),
    alias("input_ids", "prompts", "transformers"),
    alias("prompt", "prompts", "OpenAI"),
    alias("text", "prompts", "SGLang"),
    *(only(name, engines, (), "sampling params have one name", "use sampling_params")
      for name, engines in (("params", _V), ("sampling", "SGLang"), ("generation_config",
                                                                     "transformers"))),
    alias("input", "prompts", "OpenAI"),
    alias("texts", "prompts", "Cohere"),
    alias("query", "data_1", "Cohere"),
    alias("documents", "data_2", "Cohere"),
    alias("text_1", "data_1", _V),
    alias("text_2", "data_2", _V),
    only("lora_request", _V, ([],), say.NO_ADAPTER, say.MERGE),
    only("prompt_adapter_request", _V, (), say.NO_ADAPTER, say.MERGE),
    only("mm_processor_kwargs", _V, ({},), say.TEXT_ONLY, "leave it out"),
    only("guided_options_request", _V, (), "each request has params of its own",
         "use structured_outputs in SamplingParams"),
    only("priority", _V, ([],), "the prompts of a call run in their order",
         "sort them, or give add_request of an LLMEngine a priority"),
    only("response_format", "OpenAI", ({"type": "text"},), _OF_PARAMS,
         "use structured_outputs in SamplingParams"),
    only("grammar", "llama.cpp", (), _OF_PARAMS, "use structured_outputs in SamplingParams"),
    only("format", "Ollama", ("",), _OF_PARAMS, "use structured_outputs in SamplingParams"),
    only("options", "Ollama", ({},), _OF_PARAMS, "use SamplingParams"),
    only("top_logprobs", "OpenAI", (), _OF_PARAMS, "use logprobs in SamplingParams"),
    only("stream", "OpenAI", (False,), "answers come whole", "use on_output, or AsyncEngine"),
    only("streamer", "transformers", (), "a function gets the parts of answers", "use on_output"),
    only("echo", "OpenAI", (False,), "answers come without their prompts",
         "put them in front"),
    only("tool_choice", "OpenAI", ("auto",), "the model chooses",
         "run `quire serve`, whose chats take it"),
    no_effect("chat_template_content_format", _V, "both kinds of content are rendered",
              neutral=("auto",)),
    no_effect("concurrency_limit", _V, "requests beyond max_num_seqs wait for their turn"),
    only("pooling_params", _V, (), "they are params of embeddings", "use embed"),
    only("chat_template", _V, (), "a text is taken as it is",
         "use chat, or render it by the tokenizer first"),
    no_effect("arrival_time", _V, "a request is timed from its call"),
    only("trace_headers", _V, ({},), "requests over HTTP are traced", "use `quire serve`"),
    only("data_parallel_rank", _V, (0,), say.ONE_DEVICE, "leave it out"),
    no_effect("prompt_text", _V, "texts of prompts are those of their token ids"),
    only("score_template", _V, (), "a text is taken as it is", "leave it out"),
    no_effect("reset_running_requests", _V, "the cache is cleared whatever runs", neutral=(False,)),
    only("reset_connector", _V, (False,), "KV caches are in the engine alone", "leave it out"),
    only("mode", _V, ("abort",), "an engine that sleeps has no requests",
         "let them end before, or leave it out"),
    only("internal", _V, (False,), "requests have the ids that you gave them", "leave it out"),
    only("truncation", "transformers", (False,), "prompts are cut to a number of tokens",
         "use truncate_prompt_tokens; -1 keeps as many as fit"),
    only("max_length", "transformers", (), "prompts are cut to a number of tokens",
         "use truncate_prompt_tokens"),
    only("padding", "transformers", (False,), "batches have no padding", "leave it out"),
    only("reasoning_ended", _V, (), "the prompt says whether a thought is open", "leave it out"),
)  # fmt: skip

_TO_EMBED = "give it to LLM.embed instead"

POOLING_NAMES: tuple[ForeignName, ...] = (  # params of PoolingParams
    only("task", _V, ("embed",), "a model makes one vector of each text", "use LLM.embed"),
    alias("use_activation", "normalize", _V),
    alias("activation", "normalize", _V),
    alias("softmax", "normalize", _V),
    only("truncate_prompt_tokens", _V, (), "it belongs to the texts", _TO_EMBED),
    only("step_tag_id", _V, (), "there are no reward models", "leave it out"),
    only("returned_token_ids", _V, (), "there are no reward models", "leave it out"),
    only("requires_token_ids", _V, (False,), say.NO_PLUG_INS, "leave it out"),
    only("skip_reading_prefix_cache", _V, (False,), "equal prefixes are shared",
         "use enable_prefix_caching=False"),
    only("extra_kwargs", _V, ({},), say.NO_PLUG_INS, "leave it out"),
    no_effect("output_kind", _V, "a vector comes at once"),
)  # fmt: skip
