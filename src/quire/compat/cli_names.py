"""Options of other engines' command lines, for `generate`, `chat` and `quantize`."""

from __future__ import annotations

from quire.compat import phrases as say
from quire.compat.foreign_name import DEFAULT, ForeignName, alias, each, no_effect, only

_L = "llama.cpp"
_O = "Ollama"
_V = "vLLM"
_Q = "AutoAWQ, AutoRound, GPTQModel, llm-compressor"
_BY_METHOD = "each method of `quire quantize` has its own"
_FOR_BITS = (
    "use --method int8, smoothquant or fp8 for 8 bits, and rtn, awq, gptq, autoround, nf4 or mxfp4 "
    "for 4"
)
_MODES = "a command has one mode: `quire chat` or `quire generate`"
_PLAIN = "answers are plain text on standard output"
_SERVER = "the model is loaded by the command itself"
_ROLES = "the chat template writes what is around a message"

CLI_NAMES: tuple[ForeignName, ...] = (
    alias("conversation", "chat", _L, "-cnv", values={False: DEFAULT}, arity="switch"),
    alias("single_turn", "chat", _L, "-st", values={False: DEFAULT}, arity="switch"),
    no_effect("no_cnv", _L, "a prompt is plain text without --chat", "-no-cnv", arity="switch"),
    *each("interactive?/-i interactive_first?/-if", _MODES, engines=_L),
    no_effect("color", _L, _PLAIN, "-co", arity="optional"),
    *each("simple_io? show_timings? print_token_count/-ptc", _PLAIN, engines=_L),
    *each("display_prompt? verbose_prompt?", "a single prompt is not shown", engines=_L),
    only("file", _L, (), "a file has one prompt on each line here",
         "use `quire generate --prompt \"$(cat FILE)\"` for one prompt, or `quire generate --file "
         "FILE`", "-f"),
    only("system_prompt_file", _L, (), "the system message is text",
         "use --system \"$(cat FILE)\"", "-sysf"),
    only("prompt_cache", _L, (), say.NOT_ON_DISK, "leave it out"),
    only("json_schema_file", _L, (), "the schema is text", "use --json-schema \"$(cat FILE)\"",
         "-jf"),
    no_effect("stats", _V, _PLAIN, arity="switch"),
    no_effect("output_tmp_dir", _V, "answers are written to their file at once"),
    no_effect("nowordwrap", _O, _PLAIN, arity="switch"),
    only("prompt", _L, (), "this command has no prompts as options",
         "use `quire chat MODEL TEXT` for one answer, --prefill N of `quire profile` for speed, "
         "or --port N for a server's port"),
    no_effect("multiline_input", _L, "a text may have several lines", "-mli", arity="switch"),
    no_effect("keepalive", _O, "the model is loaded for the command"),
    no_effect("insecure", _O, "the hub is asked over TLS", arity="switch"),
    alias("special", "skip_special_tokens", _L, "-sp", values={True: False, False: True},
          arity="switch"),
    alias("format", "json_schema", _O, values={"json": '{"type": "object"}'}),
    alias("think", "default_chat_template_kwargs", _O, arity="optional", others=False,
          values={True: '{"enable_thinking": true}', False: '{"enable_thinking": false}'},
          text="a chat template knows few levels",
          fix="use default_chat_template_kwargs with what it reads"),
    only("hidethinking", _O, (False,), "reasoning is a part of the answer",
         "use `quire serve`, which tells them apart", arity="switch"),
    only("bits", _Q, (), _BY_METHOD, _FOR_BITS, "--wbits", "--w-bit", "--num-bits"),
    only("scheme", _Q, (), _BY_METHOD, _FOR_BITS),
    alias("quantization", "method", _V),
    alias("desc_act", "act_order", _Q, values={True: "group", False: "off"}, arity="switch"),
    alias("actorder", "act_order", _Q, values={"weight": "static"}),
    alias("sym", "symmetric", _Q, values={True: True, False: False}, arity="switch"),
    alias("asym", "symmetric", _Q, "--zero-point", values={True: False, False: True},
          arity="switch"),
    alias("q_group_size", "group_size", _Q, "--groupsize"),
    alias("dataset", "calibration", _Q),
    alias("nsamples", "samples", _Q, "--num-calibration-samples", "--num-samples"),
    alias("seqlen", "seq_len", _Q, "--max-seq-length"),
    alias("iters", "steps", _Q),
    alias("damp_percent", "damping", _Q, "--dampening-frac"),
    alias("smoothing_strength", "smoothing", _Q),
    only("url", _V, (), _SERVER, "ask a running server over HTTP"),
    only("server_base", _L, (), _SERVER, "ask a running server over HTTP"),
    only("model_name", _V, (), _SERVER, "name its folder, or its name on the hub, as MODEL"),
    only("quick", _V, (), "a message has no option",
         "use `quire chat MODEL TEXT`"),
    only("output_file", _L, (), "answers go to standard output", "redirect them: > FILE",
         "-o", "--output"),
    only("binary_file", _L, (), "prompts are text", "use --prompt \"$(cat FILE)\"", "-bf"),
    only("image", _L, (), say.TEXT_ONLY, "leave it out"),
    only("audio", _L, (), say.TEXT_ONLY, "leave it out"),
    only("video", _L, (), say.TEXT_ONLY, "leave it out"),
    only("in_prefix", _L, ("",), _ROLES, "use another --chat-template"),
    only("in_suffix", _L, ("",), _ROLES, "use another --chat-template"),
    only("in_prefix_bos", _L, (False,), _ROLES, "use another --chat-template", arity="switch"),
    only("grp_attn_n", _L, (1,), "positions are those of the model", "leave it out", "-gan"),
    only("grp_attn_w", _L, (), "positions are those of the model", "leave it out", "-gaw"),
    only("prompt_cache_all", _L, (False,), say.NOT_ON_DISK, "leave it out", arity="switch"),
    only("prompt_cache_ro", _L, (False,), say.NOT_ON_DISK, "leave it out", arity="switch"),
    only("grammar_file", _L, (), "the grammar is text", "use --grammar \"$(cat FILE)\""),
)  # fmt: skip
