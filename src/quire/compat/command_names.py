"""Commands of other engines' command lines, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

from quire.compat import phrases as say

COMMANDS: Mapping[str, str] = {
    "run": "use `quire chat MODEL`, or `quire chat MODEL TEXT` for one answer",
    "complete": "use `quire generate MODEL TEXT`",
    "cli": "use `quire chat MODEL`, or `quire chat MODEL TEXT` for one answer",
    "server": "use `quire serve MODEL`",
    "launch": "use `quire serve MODEL`",
    "pull": "a model is downloaded by its first use, or by hf download",
    "download": "a model is downloaded by its first use, or by hf download",
    "list": say.HUB,
    "ls": say.HUB,
    "rm": say.HUB,
    "show": "use `quire serve MODEL --dry-run`",
    "ps": "ask a server for /v1/models",
    "stop": "end a server by Ctrl-C or SIGTERM; its admin endpoints unload models",
    "cp": "use the folder of a model, and --served-model-name for another name",
    "push": "use hf upload",
    "create": "use the folder of a model; options are in a file for --config",
    **dict.fromkeys(
        ("bench", "benchmark"),
        "use `quire profile MODEL` for a step, and `quire demo --url URL` or any client of OpenAI's"
        " API for a server",
    ),
    "perplexity": "use `quire verify`, or prompt_logprobs",
    "imatrix": "use `quire quantize`, which reads its own calibration texts",
    "gguf-split": "use llama-gguf-split",
    **dict.fromkeys(("signin", "login"), "use hf auth login"),
    **dict.fromkeys(("signout", "logout"), "use hf auth logout"),
    **dict.fromkeys(
        ("embed", "embedding", "embeddings"), "use LLM.embed, or /v1/embeddings of `quire serve`"
    ),
    **dict.fromkeys(
        ("tokenize", "detokenize"), "use LLM.get_tokenizer(), or /tokenize of `quire serve`"
    ),
    **dict.fromkeys(("load", "start"), "use `quire serve MODEL`"),
    "unload": "end a server by Ctrl-C or SIGTERM; its admin endpoints unload models",
    **dict.fromkeys(("convert", "export"), "use `quire quantize`, which writes safetensors"),
    **dict.fromkeys(("eval", "lm-eval"), "use `quire verify`, or any client of OpenAI's API"),
    "check-env": "use `python -m torch.utils.collect_env`, and `quire --version`",
    "collect-env": "use `python -m torch.utils.collect_env`, and `quire --version`",
}
