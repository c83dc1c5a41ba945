"""Scripts that measure a GPU refuse to run without one, and their servers end with them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_serving
import pytest
from child_process import run_to_end

from quire.processes import is_alive

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SAVING = [
    path
    for path in sorted(BENCHMARKS.glob("gpu_*.py"))
    if re.search(r"\bsave\(", path.read_text()) and path.name != "gpu_timing.py"
]
STARTS_SERVER = """
import sys
from workloads.backends import ServedEngine
options = {"model": "quire-tiny", "load_format": "null", "log_level": "error"}
engine = ServedEngine(options, 60.0)
print(engine._server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("path", SAVING, ids=lambda path: path.stem)
def test_what_saves_figures_of_a_gpu_asks_for_one(path: Path) -> None:
    asks = r"^ {4,8}(record\.require_gpu\(\)|args = parse_on_gpu\(parser\))"
    assert re.search(asks, path.read_text(), re.MULTILINE)


def test_options_that_are_not_given_have_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the engine's options, in the same namespace, those that are not given are absent."""
    monkeypatch.setattr(sys, "argv", ["gpu_serving.py"])
    args, options = gpu_serving.parse()
    text = Path(gpu_serving.__file__).read_text()
    assert not options
    assert set(re.findall(r"\b_?args\.([a-z_]+)", text)) <= set(vars(args))


def test_without_a_gpu_nothing_is_measured() -> None:
    command = [sys.executable, "gpu_serving.py", "--only", "voice-1b", "--seconds", "5"]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = run_to_end(command, cwd=BENCHMARKS, env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no GPU was found")


def test_a_server_ends_with_the_script_that_started_it() -> None:
    """SIGTERM ends a script at once, as `timeout` does it."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_SERVER], cwd=BENCHMARKS,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as script:  # fmt: skip
        assert script.stdout is not None
        server = int(script.stdout.readline())
        script.send_signal(signal.SIGTERM)
        script.wait(20)
        end = time.monotonic() + 20
        while is_alive(server) and time.monotonic() < end:
            time.sleep(0.05)
        is_left = is_alive(server)
        if is_left:
            os.kill(server, signal.SIGKILL)
        assert not is_left
