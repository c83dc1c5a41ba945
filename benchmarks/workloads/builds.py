"""A build of Quire by its source tree: runs its server, its `LLM` and its commands.

Everything runs in processes whose PYTHONPATH is the tree, so two builds do not meet in one process.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from record import installed

from workloads.backends import BackendError, ServedEngine

WORKER = Path(__file__).parent / "llm_worker.py"


class Seconds(NamedTuple):
    """Wall-clock and processor seconds of a process."""

    wall: float
    cpu: float


class Rates(NamedTuple):
    """Tokens a second, and a second of one processor."""

    wall: float
    cpu: float


class Build:
    """A source tree that `quire` is imported from. Kernels compiled for it go to `cache`."""

    def __init__(self, name: str, root: Path, cache: Path) -> None:
        self.name = name
        self._cache = cache
        self._env = installed(
            PYTHONPATH=str(root.resolve()),
            TRITON_CACHE_DIR=str(cache / "triton"),
            XDG_CACHE_HOME=str(cache),
            HF_HUB_OFFLINE="1",
            PYTHONUNBUFFERED="1",
        )
        self._num_cold = 0
        assert self.imported_from().is_relative_to(root.resolve()), f"{name}: not from {root}"

    def imported_from(self) -> Path:
        """The package's folder that a process of this build finds."""
        command = [sys.executable, "-c", "import quire; print(quire.__path__[0])"]
        return Path(subprocess.check_output(command, env=self._env, text=True).strip())

    def serve(self, options: dict[str, Any], patience: float) -> ServedEngine:
        """`quire serve` with these settings. Raises BackendError if it does not start."""
        return ServedEngine(options, patience, self._env)

    def load(self, options: dict[str, Any], patience: float) -> LLMProcess:
        """A process with an `LLM` of these settings. Raises BackendError if it does not start."""
        return LLMProcess(options, patience, self._env)

    def seconds_of(self, *words: str) -> Seconds:
        """Seconds that a Python process takes. Raises BackendError if it fails."""
        begin, before = time.perf_counter(), _processor_seconds()
        command = [sys.executable, *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True)
        if done.returncode:
            raise BackendError(f"{self.name}: {' '.join(command)}: {done.stderr[-2000:]}")
        return Seconds(time.perf_counter() - begin, _processor_seconds() - before)

    def cold_folder(self) -> Path:
        """A new, empty folder for prepared weights."""
        self._num_cold += 1
        folder = self._cache / f"cold_{self._num_cold}"
        folder.mkdir(parents=True)
        return folder


class LLMProcess:
    """A process that runs llm_worker.py."""

    def __init__(self, options: dict[str, Any], patience: float, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self._patience = patience
        self.load_s = float(self._ask(do="load", options=options)["seconds"])

    def rates(self, prompts: list[list[int]], max_tokens: int, count: int) -> Rates:
        """Rates of answering all prompts at once. count: the tokens that count."""
        answer = self._ask(do="generate", prompts=prompts, max_tokens=max_tokens)
        if answer["tokens"] != len(prompts) * max_tokens:
            raise BackendError(f"got {answer['tokens']} tokens")
        return Rates(count / float(answer["seconds"]), count / float(answer["cpu_seconds"]))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            if select.select([self._process.stdout], [], [], self._patience)[0]:
                line = self._process.stdout.readline()
                if line:
                    answer: dict[str, Any] = json.loads(line)
                    return answer
        except OSError:
            pass
        self.close()
        raise BackendError("the process of an LLM ended or took too long; what it said is above")


def _processor_seconds() -> float:
    """Processor seconds of all child processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def has_native_code(root: Path) -> bool:
    """Whether the compiled library of CPU kernels is in a source tree."""
    return any((root / "quire" / "kernels" / "cpu").glob("_native*.so"))


def read_whole_libraries() -> None:
    """Bring PyTorch and Triton into the page cache, so that the first start finds them there."""
    subprocess.run(
        [sys.executable, "-c", "import torch, triton, triton.language"],
        check=False, stderr=subprocess.DEVNULL, env=dict(os.environ),
    )  # fmt: skip
