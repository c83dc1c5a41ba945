"""Commands of other engines' command lines, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_HUB = "models of the hub are in its cache: use hf cache ls, hf cache rm and hf download"
COMMANDS: Mapping[str, str] = {
    "run": "use `quire chat MODEL`, or `quire generate MODEL TEXT`",
    "complete": "use `quire generate MODEL TEXT`",
    "cli": "use `quire chat MODEL`, or `quire generate MODEL TEXT`",
    "server": "use `quire serve MODEL`",
    "launch": "use `quire serve MODEL`",
    "pull": "a model is downloaded by its first use, or by hf download",
    "download": "a model is downloaded by its first use, or by hf download",
    "list": _HUB,
    "ls": _HUB,
    "rm": _HUB,
    "show": "use `quire serve MODEL --dry-run`",
    "ps": "ask a server for /v1/models",
    "stop": "end a server by Ctrl-C or SIGTERM; its admin endpoints unload models",
    "cp": "use the folder of a model, and --served-model-name for another name",
    "push": "use hf upload",
    "create": "use the folder of a model; options are in a file for --config",
    "bench": "use `quire profile MODEL`",
    "perplexity": "use `quire verify`, or prompt_logprobs",
    "imatrix": "use `quire quantize`, which reads its own calibration texts",
    "gguf-split": "use llama-gguf-split",
    "signin": "use hf auth login",
    "signout": "use hf auth logout",
    "version": "use `quire --version`",
    "collect-env": "use `python -m torch.utils.collect_env`, and `quire --version`",
}
