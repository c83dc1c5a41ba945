"""Fields of text-generation-webui's and KoboldCpp's requests, as SillyTavern sends all of them.

It sends them to llama.cpp, too, which ignores what it does not know; with the defaults they ask for
nothing.
"""

from __future__ import annotations

from quire.compat import phrases as say
from quire.compat.foreign_name import ForeignName, alias, each, no_effect, of_switch, only

_W, _K, _S = "text-generation-webui", "KoboldCpp", "SillyTavern"
_TEMPERATURE = "the temperature is fixed"
_OTHER_PENALTY = "there is no such penalty"
_CLIENT = "it is the client's own"

WEBUI_PARAMS: tuple[ForeignName, ...] = (  # that are the same as sampling params
    alias("stopping_strings", "stop", _W),
    alias("sampler_seed", "seed", _K),
    alias("rep_pen", "repetition_penalty", _K),
    alias("ban_eos_token", "ignore_eos", _W),
    alias("banned_strings", "bad_words", _K),
    alias("min_length", "min_tokens", _W),
    alias("trim_stop", "include_stop_str_in_output", _K, values={True: False, False: True}),
)

WEBUI_FIELDS: tuple[ForeignName, ...] = (
    *each("api_server api_type legacy_api", _CLIENT, engines=_S),
    no_effect("truncation_length", _W, "a prompt is not cut; it must fit the context"),
    no_effect("rep_pen_range", _K, say.PENALTIES),
    no_effect("repetition_penalty_range", _W, say.PENALTIES),
    no_effect("temperature_last", _W, "the temperature comes before the cuts"),
    of_switch("dynatemp_low", _W, _TEMPERATURE),
    of_switch("dynatemp_high", _W, _TEMPERATURE),
    of_switch("smoothing_curve", _W, "it needs smoothing_factor, which is not there"),
    only("dynamic_temperature", _W, (False,), _TEMPERATURE, "use temperature"),
    only("smoothing_factor", _W, (0,), _TEMPERATURE, "use temperature"),
    only("tfs", _W, (1,), say.CUTS, say.USE_CUTS),
    only("top_a", _W, (0,), say.CUTS, say.USE_CUTS),
    only("typical", _K, (1,), say.CUTS, say.USE_CUTS),
    only("nsigma", _W, (-1, 0), say.CUTS, say.USE_CUTS),
    only("skew", _W, (0,), say.CUTS, say.USE_CUTS),
    only("epsilon_cutoff", _W, (0,), say.CUTS, say.USE_CUTS),
    only("eta_cutoff", _W, (0,), say.CUTS, say.USE_CUTS),
    only("mirostat_mode", _W, (0,), "there is no Mirostat", say.USE_CUTS),
    only("encoder_repetition_penalty", _W, (1,), _OTHER_PENALTY, "use repetition_penalty"),
    only("penalty_alpha", _W, (0,), _OTHER_PENALTY, "use repetition_penalty"),
    only("guidance_scale", _W, (1,), "a step runs one prompt of each request", "leave it out"),
    only("negative_prompt", _W, ("",), "a step runs one prompt of each request", "leave it out"),
    only("custom_token_bans", _W, ("", []), "tokens are banned by their bias",
         "use logit_bias, or bad_words"),
    only("max_tokens_second", _W, (0,), "tokens are sent as they come", "leave it out"),
    only("add_bos_token", _W, (True,), "the tokens around a prompt are the tokenizer's",
         "send add_special_tokens"),
    only("grammar_string", _W, ("",), "grammars have llama.cpp's name", "send grammar"),
)  # fmt: skip
