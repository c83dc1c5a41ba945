"""Stand-in for tests/utils.py of vLLM: RemoteOpenAIServer starts Quire with the bundled model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.parse
from typing import Any

import openai

ROCM_EXTRA_ARGS: list[str] = []
ROCM_ENV_OVERRIDES: dict[str, str] = {}
# options that Quire gets as they are; the others set up what the bundled model does not have
PASSED_ON = {"--uds": 1, "--root-path": 1, "--api-key": 1, "--served-model-name": 9}
MAX_MODEL_LEN = 4096  # of the bundled model


class RemoteOpenAIServer:
    """A running `quire serve`. model: the name under which the bundled model is served."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        *,
        env_dict: dict[str, str] | None = None,
        **_options: Any,
    ) -> None:
        command = [sys.executable, "-m", "quire", "serve", *_own_args(model, vllm_serve_args)]
        self.show_hidden_metrics = False
        environment = os.environ | (env_dict or {})
        self.proc = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        self.uds = _value(vllm_serve_args, "--uds")
        assert self.proc.stdout is not None
        line = self.proc.stdout.readline()
        ready = re.search(r"ready at (http://[^:/]+):?(\d*)", line)
        assert ready is not None or self.uds, f"the server did not start: {line}"
        self.host, self.port = "127.0.0.1", int(ready[2] or 0) if ready else 0

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.proc.send_signal(signal.SIGTERM)
        self.proc.wait(timeout=60)

    @property
    def url_root(self) -> str:
        """The address of the server."""
        if self.uds:
            return "http+unix://" + urllib.parse.quote(self.uds, safe="")
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        """The address of a path."""
        return "/".join([self.url_root, *parts])

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


def _own_args(model: str, args: list[str]) -> list[str]:
    own = [] if "--served-model-name" in args else ["--served-model-name", model]
    for index, name in enumerate(args):
        if (count := PASSED_ON.get(name)) is not None:
            rest = args[index + 1 : index + 1 + count]
            ends = [i for i, text in enumerate(rest) if text.startswith("--")] or [len(rest)]
            own += [name, *rest[: ends[0]]]
    length = int(_value(args, "--max-model-len") or MAX_MODEL_LEN)
    own += ["--max-model-len", str(min(length, MAX_MODEL_LEN))]
    return own if "--uds" in own else [*own, "--port", "0"]


def _value(args: list[str], name: str) -> str | None:
    return args[args.index(name) + 1] if name in args else None
