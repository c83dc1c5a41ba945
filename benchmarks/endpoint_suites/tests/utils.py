"""Stand-in for tests/utils.py of vLLM: RemoteOpenAIServer starts Quire with the suite's model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.parse
from typing import Any

import openai
import pytest

ROCM_EXTRA_ARGS: list[str] = []
ROCM_ENV_OVERRIDES: dict[str, str] = {}
# options that are left out, with their values: those of another model or its hardware, and those
# that Quire refuses, so that tests of the same file that need none of them can run
LEFT_OUT = [
    "--dtype",
    "--tokenizer",
    "--chat-template",
    "--tool-call-parser",
    "--reasoning-parser",
    "--load-format",
    "--hf-overrides",
    "--gpu-memory-utilization",
    "--attention-backend",
    "--attention-config",
    "--seed",
    "--enable-lora",
    "--lora-modules",
    "--max-lora-rank",
    "--max-cpu-loras",
    "--pooler-config",
    "--watermark-config",
    "--speculative-config",
    "--enable-per-request-metrics",
]


# tests whose model reasons before each answer
THINKING = "test_thinking_token_budget.py"


def multi_gpu_only(*_args: Any, **_options: Any) -> Any:
    """No several GPUs: a test that needs them is not applicable."""
    return pytest.mark.skip(reason="needs several GPUs")


requires_fp8 = pytest.mark.skip(reason="needs FP8 of a GPU")


class RemoteOpenAIServer:
    """A running `quire serve`. model: the name under which the suite's model is served."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        *,
        env_dict: dict[str, str] | None = None,
        **_options: Any,
    ) -> None:
        args = list(vllm_serve_args)
        command = [sys.executable, "-m", "quire", "serve", *own_args(model, args)]
        self.show_hidden_metrics = any("--show-hidden-metrics" in word for word in args)
        self.uds = args[args.index("--uds") + 1] if "--uds" in args else None
        environment = os.environ | (env_dict or {})
        if "VLLM_API_KEY" in environment:
            environment["QUIRE_API_KEY"] = environment["VLLM_API_KEY"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with open(os.environ["SUITE_LOG"], "w+", encoding="utf-8") as log:
            self.proc = subprocess.Popen(command, env=environment, **pipes | {"stderr": log})
            assert self.proc.stdout is not None
            line = self.proc.stdout.readline()
            if (ready := re.search(r"ready at (\S+)", line)) is None:
                self.proc.wait(timeout=30)
                log.seek(0)
                said = [line for line in log if line.startswith("error")] or ["nothing"]
                pytest.fail(f"the server did not start: {said[-1]}", pytrace=False)
        address = urllib.parse.urlsplit(ready[1])
        self.host, self.port = address.hostname, None if self.uds else address.port

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.proc.send_signal(signal.SIGTERM)
        self.proc.wait(timeout=60)

    @property
    def url_root(self) -> str:
        """The address of the server."""
        if self.uds:
            return "http://localhost"
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        """The address of a path."""
        return "/".join([self.url_root, *(part.strip("/") for part in parts)])

    def get_client(self, **options: Any) -> openai.OpenAI:
        """OpenAI's client for this server."""
        return openai.OpenAI(**self._options(options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        """OpenAI's asynchronous client for this server."""
        return openai.AsyncOpenAI(**self._options(options))

    def get_client_anthropic(self, **options: Any) -> Any:
        """Anthropic's client for this server."""
        import anthropic

        return anthropic.Anthropic(**self._options(options, path=""))

    def get_async_client_anthropic(self, **options: Any) -> Any:
        """Anthropic's asynchronous client for this server."""
        import anthropic

        return anthropic.AsyncAnthropic(**self._options(options, path=""))

    def _options(self, options: dict[str, Any], path: str = "/v1") -> dict[str, Any]:
        given = {"base_url": self.url_root + path, "api_key": self.DUMMY_API_KEY, "timeout": 600}
        return given | {"max_retries": 0} | options


class RemoteLaunchRenderServer(RemoteOpenAIServer):
    """A server that only renders; here it is the same one."""


def own_args(model: str, args: list[str]) -> list[str]:
    """Arguments of `quire serve` for those of `vllm serve MODEL`."""
    own, is_left_out = [os.environ["SUITE_MODEL"]], False
    for word in args:
        if word.startswith("--"):
            is_left_out = word.partition("=")[0] in LEFT_OUT
        if not is_left_out:
            own.append(word)
    if not any("generation-config" in word for word in own):  # the model may not end an answer
        own += ["--override-generation-config", '{"max_new_tokens": 512}']
    if THINKING in os.environ.get("PYTEST_CURRENT_TEST", ""):
        own[0] += "/thinking"
    if "--served-model-name" not in own:
        own += ["--served-model-name", model]
    return own if "--uds" in own or "--port" in own else [*own, "--port", "0"]
