"""Commands of other engines, and their modules for `python -m`: what to use in their place."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

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

# by the module's name without its package, such as vllm
PROGRAMS = {
    "entrypoints.api_server": ["serve"],
    "entrypoints.cli.main": [],
    "entrypoints.openai.api_server": ["serve"],
    "entrypoints.openai.run_batch": ["run-batch"],
    "launch_server": ["serve"],  # SGLang's
    "server": ["serve"],  # llama-cpp-python's
}


def program_spec(name: str) -> ModuleSpec | None:
    """The spec of `package.module.__main__`, which ends with the command; None for others."""
    module = name.partition(".")[2].removesuffix(".__main__")
    if module not in PROGRAMS:
        return None
    return ModuleSpec(name, _Program(module))  # type: ignore[arg-type]  # a loader by its methods


class _Program:
    """The loader of a program that says what to use."""

    def __init__(self, module: str) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> None:
        """Raise ImportError: it can only be run."""
        raise ImportError(f"quire has no module {self._module}", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Never called; Python asks whether it is there."""

    def get_code(self, _: str) -> CodeType:
        """Code that ends with the command, with the options that this one was called with."""
        command = shlex.join(["quire", *PROGRAMS[self._module], *sys.argv[1:]])
        text = f"quire has no program {self._module}; use `{command}`"
        return compile(f"raise SystemExit({text!r})", f"<{self._module}>", "exec")
