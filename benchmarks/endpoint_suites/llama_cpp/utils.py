"""Replaces utils.py of llama.cpp's server tests: ServerProcess starts Quire."""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import suite_report
import upstream_utils
from requests.structures import CaseInsensitiveDict
from upstream_utils import *  # noqa: F403 - the tests' helpers as they are

# what a test may ask of the server that is refused by choice
REFUSED = {
    "lora_files": "no adapters",
    "spec_type": "no speculation",
    "model_draft": "no speculation",
    "mmproj_url": "models read text alone",
    "media_path": "models read text alone",
    "models_dir": "several models are in a file for --models",
    "models_preset": "several models are in a file for --models",
    "slot_save_path": "KV blocks are not written to disk",
    "enable_ctx_shift": "a context is never shifted",
    "server_tools": "clients run the tools",
    "mcp_servers_config": "clients run the tools",
    "mcp_servers_json": "clients run the tools",
    "backend_sampling": "no sampling in the backend",
    "no_ui": "the page is always there",
    "n_ga": "a context is never extended",
}


# names that tests ask for, as llama.cpp's server takes any
OTHER_NAMES = (
    *("davinci-002", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "gpt-4.1", "test"),
    "text-embedding-3-small",
)

_running: dict[str, Any] = {}  # the latest server, which the next test may use too


def _end_running() -> None:
    if process := _running.pop("process", None):
        process.terminate()
        process.wait(timeout=60)
    _running.clear()


atexit.register(_end_running)


class ServerProcess(upstream_utils.ServerProcess):
    """A running `quire serve`; tests with the same options share it, which saves their starts."""

    def start(self, timeout_seconds: int = 60) -> None:  # noqa: ARG002 - the suite has a limit
        """Start it at a free port."""
        for name, reason in REFUSED.items():
            if getattr(self, name) not in (None, False, "auto"):
                pytest.fail(f"refused by choice: {reason}", pytrace=False)
        words = list(self._words())
        if words == _running.get("words") and not self.server_metrics:
            self.process, self.server_port = None, _running["port"]
            return
        _end_running()
        command = [sys.executable, "-m", "quire", "serve", *words, "--port", "0"]
        with open(os.environ["SUITE_LOG"], "w+", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            assert process.stdout is not None
            ready = re.search(r"ready at \S+?:(\d+)", process.stdout.readline())
            if ready is None:
                log.seek(0)
                said = [line for line in log if line.startswith("error")] or ["nothing"]
                pytest.fail(f"the server did not start: {said[-1]}", pytrace=False)
        self.server_port = int(ready[1])
        _running.update(words=words, port=self.server_port, process=process)

    def make_request(self, *args: Any, **options: Any) -> Any:
        """Send a request; a refusal joins the message of a test that fails.

        Names of headers are the same in any case, which their tests do not know.
        """
        response = super().make_request(*args, **options)
        response.headers = CaseInsensitiveDict(response.headers)
        if response.status_code >= 400:
            suite_report.note(f"{response.status_code}: {json.dumps(response.body)}")
        return response

    def _words(self) -> Iterator[str]:
        """Options of `quire serve`."""
        yield os.environ["SUITE_MODEL"]
        most = self.n_predict if (self.n_predict or 0) > 0 else None  # -1: no limit
        defaults = {"temperature": self.temperature, "max_new_tokens": most}
        found = {name: value for name, value in defaults.items() if value is not None}
        yield from ("--override-generation-config", json.dumps(found))
        yield from ("--seed", str(self.seed))
        slots = 1 if self.kv_unified else self.n_slots  # which share the context
        given = {
            "--served-model-name": ",".join([self.model_alias or "quire", *OTHER_NAMES]),
            "--max-model-len": self.n_ctx and self.n_ctx // (slots or 1),
            "--max-num-seqs": self.n_slots,
            # a shared prefix is counted in whole blocks here, in single tokens there
            "--block-size": 8,
            "--max-num-batched-tokens": self.n_batch,
            "--api-key": self.api_key,
            "--host": self.server_host,
            "--chat-template": self.chat_template_file or self._template(),
            "--allowed-origins": self.cors_origins,
            "--pooling": self.pooling,
            # with auto, llama.cpp sets enable_thinking, too
            "--reasoning": self.reasoning and self.reasoning.replace("auto", "on"),
        }
        for option, value in given.items():
            if value:
                yield from (option, str(value))

    def _template(self) -> str | None:
        """A file with the template, if it is none of those that llama.cpp knows by name."""
        if self.chat_template is None:
            return None
        if " " not in self.chat_template:
            pytest.fail("refused by choice: a template is a file, not a name", pytrace=False)
        file = Path("template.jinja").absolute()
        file.write_text(self.chat_template)
        return str(file)


upstream_utils.ServerProcess = ServerProcess
upstream_utils.ServerPreset.load_all = staticmethod(lambda: None)
