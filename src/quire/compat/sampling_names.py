"""Sampling params of other engines: SamplingParams, options of generate and chat, HTTP fields."""

from __future__ import annotations

from quire.compat import phrases as say
from quire.compat.foreign_name import ANY, ForeignName, alias, always, no_effect, of_switch, only
from quire.compat.sampler_stages import LETTERS, STAGES, are_in_order

_V, _L, _O, _LO, _T = "vLLM", "llama.cpp", "Ollama", "llama.cpp, Ollama", "transformers"
_BEAMS = "tokens are drawn, without beams"
_STAGES = "stages have one order, and those left out are switched off"
_STAGES_IN_ORDER = f"leave it out, or name some of '{';'.join(STAGES)}' in this order"
_MIROSTAT = "there is no Mirostat"
_REACH = f"{say.PENALTIES}; 0 switches them off"

SAMPLING_NAMES: tuple[ForeignName, ...] = (
    alias("max_new_tokens", "max_tokens", "transformers, SGLang"),
    alias("n_predict", "max_tokens", _L, "-n", "--predict", values={-1: None, -2: None}),
    alias("num_predict", "max_tokens", _O, values={-1: None, -2: None}),
    alias("temp", "temperature", _L),
    alias("stop_sequences", "stop", "TGI"),
    alias("reverse_prompt", "stop", _L, "-r"),
    only("do_sample", "transformers", (True,), "tokens are drawn", "use temperature=0"),
    alias("max_completion_tokens", "max_tokens", "OpenAI"),
    alias("min_new_tokens", "min_tokens", _T),
    alias("num_return_sequences", "n", _T),
    only("max_length", _T, (), "it counts the prompt, too", "use max_tokens"),
    only("num_beams", _T, (1,), _BEAMS, "leave it out, or use LLM.beam_search in Python"),
    only("no_repeat_ngram_size", _T, (0,), "there is no such rule", "use repetition_penalty"),
    only("eos_token_id", _T, (), "a model's end tokens are those of its files",
         "use stop_token_ids"),
    no_effect("pad_token_id", _T, "prompts are never padded"),
    always("use_cache", _T, "keys and values are always cached"),
    no_effect("return_dict_in_generate", _T, "outputs have names"),
    only("output_scores", _T, (False,), "outputs have log-probabilities", "use logprobs"),
    alias("repeat_penalty", "repetition_penalty", _LO),
    alias("thinking_budget_tokens", "thinking_token_budget", _L),
    alias("reasoning_budget_tokens", "thinking_token_budget", _L),
    alias("n_cmpl", "n", _L),
    alias("no_stop_trim", "include_stop_str_in_output", "SGLang"),
    alias("guided_decoding", "structured_outputs", _V),
    only("best_of", _V, (1,), "as many answers are drawn as are returned",
         "use n, and choose among the answers", repeats="n"),
    only("use_beam_search", _V, (False,), _BEAMS, "leave it out, or use LLM.beam_search in Python"),
    only("beam_width", _V, (1,), _BEAMS, "leave it out"),
    only("length_penalty", _V, (1,), _BEAMS, "leave it out"),
    only("early_stopping", _V, (False,), _BEAMS, "leave it out"),
    no_effect("spaces_between_special_tokens", _V, "text is that of the tokens"),
    no_effect("skip_clone", _V, "each request has its own checked params"),
    no_effect("stream_interval", _V, "each step is streamed"),
    only("flat_logprobs", _V, (False,), "log-probabilities are maps", "leave it out"),
    only("extra_args", _V, ({},), say.NO_PLUG_INS, "leave it out"),
    only("logits_processors", _V, ([],), "logits are changed by sampling params alone",
         say.USE_BIAS),
    only("repetition_detection", _V, (), "an answer ends by itself or by max_tokens",
         "use repetition_penalty"),
    only("skip_reading_prefix_cache", _V, (False,), "equal prefixes are shared",
         "use cache_salt, or enable_prefix_caching=False"),
    no_effect("repeat_last_n", _LO, _REACH, neutral=(-1,)),
    no_effect("penalty_last_n", "Tabby", say.PENALTIES, neutral=ANY),
    no_effect("penalize_newline", _O, say.PENALTIES, neutral=(True,)),
    no_effect("penalize_nl", _L, say.PENALTIES, neutral=(True,)),
    only("mirostat", _LO, (0,), _MIROSTAT, say.USE_CUTS),
    of_switch("mirostat_eta", _LO, _MIROSTAT, "--mirostat-lr"),
    of_switch("mirostat_tau", _LO, _MIROSTAT, "--mirostat-ent"),
    only("tfs_z", _LO, (1,), say.CUTS, say.USE_CUTS),
    only("typical_p", _LO, (1,), say.CUTS, say.USE_CUTS, "--typical"),
    only("typ_p", _L, (1,), say.CUTS, say.USE_CUTS),
    only("top_n_sigma", _L, (-1, 0), say.CUTS, say.USE_CUTS, "--top-nsigma"),
    only("xtc_probability", _L, (0,), say.CUTS, say.USE_CUTS),
    of_switch("xtc_threshold", _L, "it needs xtc_probability, which is not there"),
    only("dry_multiplier", _L, (0,), "there is no DRY penalty", "use repetition_penalty"),
    of_switch("dry_base", _L, "there is no DRY penalty"),
    of_switch("dry_allowed_length", _L, "there is no DRY penalty"),
    of_switch("dry_penalty_last_n", _L, "there is no DRY penalty"),
    of_switch("dry_sequence_breaker", _L, "there is no DRY penalty"),
    of_switch("dry_sequence_breakers", _L, "there is no DRY penalty"),
    only("dynatemp_range", _L, (0,), "the temperature is fixed", "use temperature"),
    only("dynatemp_exponent", _L, (1,), "the temperature is fixed", "use temperature",
         "--dynatemp-exp"),
    only("min_keep", _L, (0, 1), "at least one token is kept", "leave it out"),
    only("samplers", _L, ([], STAGES, ";".join(STAGES), LETTERS), _STAGES, _STAGES_IN_ORDER,
         takes_if=are_in_order),
    only("adaptive_target", _L, (-1,), say.CUTS, say.USE_CUTS),
    of_switch("adaptive_decay", _L, "it needs adaptive_target, which is not there"),
    only("sampling_seq", _L, (), say.CUTS, "leave it out", "--sampler-seq"),
)  # fmt: skip
