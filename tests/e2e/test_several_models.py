"""Several models in one server: each answers as if it were alone, whatever the others do."""

from __future__ import annotations

import json
import re
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from server_process import end_server, running_server
from streams import PATIENCE, Stream, wait_until

from quire.core.sampling_params import SamplingParams
from quire.kernels.cpu.native import set_num_threads
from quire.llm import LLM
from quire.model_folder import BUNDLED_FOLDER
from quire.models.config.quality_report import QUALITY_FILE, write_report

MODELS = {"chat": "quire-tiny", "small": "quire-tiny-draft"}
PROMPTS = [f"stream number {number}" for number in range(2)]
LENGTH = 100
ENDLESS = 1_000_000  # tokens, which take minutes also without a model


@dataclass
class Server:
    """A running `quire serve` with several models."""

    parent: psutil.Process
    url: str
    admin: Path

    @property
    def engines(self) -> list[psutil.Process]:
        """Engine processes by age, which is the order of loading."""
        children = [
            p
            for p in self.parent.children()
            if "quire.engine.processes.engine_process" in p.cmdline()
        ]
        return sorted(children, key=lambda process: (process.create_time(), process.pid))

    def ask(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error) | {"headers": dict(error.headers)}

    def complete(self, model: str, prompt: str, **fields: Any) -> str:
        sampling_fields = {"max_tokens": LENGTH, "ignore_eos": True, "temperature": 0} | fields
        status, reply = self.ask("/v1/completions", model=model, prompt=prompt, **sampling_fields)
        assert status == 200, reply
        return str(reply["choices"][0]["text"])

    def stream(self, model: str, prompt: str, length: int = LENGTH) -> Stream:
        fields = {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0}
        return Stream(self.url, **fields)

    def states(self) -> dict[str, str]:
        return {m["name"]: m["state"] for m in self.order("GET", "/admin/models")["models"]}

    def order(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """One request to the admin endpoints."""
        data = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(str(self.admin))
            sock.sendall(head.encode() + data)
            reply = b"".join(iter(lambda: sock.recv(65536), b""))
        return json.loads(reply.partition(b"\r\n\r\n")[2])  # type: ignore[no-any-return]


@contextmanager
def serve(admin: Path, *options: str) -> Iterator[Server]:
    with running_server("--admin-uds", str(admin), *options) as (process, url):
        yield Server(psutil.Process(process.pid), url, admin)
        end_server(process)


# ---------------------------------------------------------------------- real models


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, str], str]:
    """What each model says when nothing else runs."""
    sampling = SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=0.0)
    set_num_threads(1)
    answers = {}
    for name, model in MODELS.items():
        llm = LLM(model=model, num_blocks=200)
        for prompt, output in zip(
            PROMPTS, llm.generate(PROMPTS, sampling, use_tqdm=False), strict=True
        ):
            answers[name, prompt] = output.outputs[0].text
    return answers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    words = [word for name, model in MODELS.items() for word in ("--model", f"{name}={model}")]
    admin = tmp_path_factory.mktemp("admin") / "sock"
    first = "--prepared-weights", "none"  # as at a first start, which needs most memory
    with serve(admin, *words, "--num-blocks", "200", *first) as server:
        yield server


def test_models_at_the_same_time_answer_as_alone(
    server: Server, alone: dict[tuple[str, str], str]
) -> None:
    with ThreadPoolExecutor(len(alone)) as pool:
        texts = pool.map(lambda key: server.complete(*key), alone)
    assert dict(zip(alone, texts, strict=True)) == alone


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="told by Linux alone")
def test_memory_is_as_configured(server: Server) -> None:
    """Pages of libraries are shared and the KV cache is not touched yet: not to the byte."""
    reported = {m["name"]: m["num_bytes"] for m in server.order("GET", "/admin/models")["models"]}
    measured = sorted(most_resident(engine) for engine in server.engines)
    for size, name in zip(measured, ("small", "chat"), strict=True):
        assert 0.7 < size / reported[name] < 1.3


def most_resident(process: psutil.Process) -> int:
    """Bytes of its peak, which is at the start: code that ran once is given back behind it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) << 10  # type: ignore[index]


def test_a_killed_engine_is_nothing_to_the_others(
    server: Server, alone: dict[tuple[str, str], str]
) -> None:
    streams = {key: server.stream(*key) for key in alone}
    wait_until(lambda: all(stream.num_events >= 1 for stream in streams.values()))
    sizes = {engine.memory_info().rss: engine for engine in server.engines}
    victim, other = sizes[min(sizes)], sizes[max(sizes)]
    victim.kill()
    for stream in streams.values():
        stream.join(PATIENCE)
    assert {key: stream.text for key, stream in streams.items()} == alone
    assert other in server.engines
    assert victim not in server.engines


def test_wrong_files_of_a_model_on_demand_are_nothing_to_the_others(tmp_path: Path) -> None:
    """They are refused by the reason, and loaded once they are right."""
    folders = {name: tmp_path / name for name in ("failed", "passed")}
    for name, folder in folders.items():
        shutil.copytree(BUNDLED_FOLDER / "quire-tiny-draft", folder)
        failures = ["the figures are bad"] * (name == "failed")
        write_report(folder, {"passed": not failures, "failures": failures})
    words = [word for name, path in folders.items() for word in ("--model", f"{name}={path}")]
    words += ["--model", "gone=./nowhere", "--num-blocks", "64"]
    with serve(tmp_path / "sock", *words, "--model-load", "on_demand") as server:
        _, models = server.ask("/v1/models")
        qualities = {model["id"]: model["quality"] for model in models["data"]}
        reports = {name: {"passed": name == "passed", "base": ""} for name in folders}
        assert qualities == reports | {"gone": None}
        for name, reason in (("failed", "the figures are bad"), ("gone", "there is no folder")):
            status, reply = server.ask("/v1/completions", model=name, prompt="x")
            assert (status, reply["error"]["code"]) == (503, "model_not_loaded")
            assert reason in reply["error"]["message"]
        assert server.complete("passed", "x")
        (folders["failed"] / QUALITY_FILE).unlink()
        wait_until(lambda: server.ask("/v1/completions", model="failed", prompt="x")[0] == 200)
        assert server.ask("/v1/models/failed")[1]["quality"] is None


# ---------------------------------------------------------------------- on demand, without models

MIB = 1 << 20
NULL = ["--load-format", "null", "--model-load", "on_demand"]
NULL += ["--max-model-len", str(ENDLESS + LENGTH)]


@pytest.fixture(scope="module")
def memory_for_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Three models of 256 MiB each, and memory for two."""
    admin = tmp_path_factory.mktemp("admin") / "sock"
    words = [word for name in "abc" for word in ("--model", f"{name}=quire-tiny")]
    limits = ("--model-memory-bytes", str(600 * MIB), "--api-server-count", "2")
    with serve(admin, *words, *NULL, *limits) as server:
        yield server


def num_tokens(server: Server, model: str) -> float:
    with urllib.request.urlopen(server.url + "/metrics", timeout=PATIENCE) as response:
        text = response.read().decode()
    pattern = rf'^vllm:generation_tokens_total\{{.*"{model}"\}} (\S+)'
    found = re.search(pattern, text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def wait_for_states(server: Server, **states: str) -> None:
    """Until the API process that is asked, which may be another one, knows that models are so."""
    wait_until(lambda: server.states() == states)


def test_the_least_recently_used_one_leaves(memory_for_two: Server) -> None:
    assert set(memory_for_two.states().values()) == {"unloaded"}
    assert not memory_for_two.engines
    memory_for_two.complete("a", "x")
    memory_for_two.complete("b", "x")
    wait_for_states(memory_for_two, a="loaded", b="loaded", c="unloaded")
    memory_for_two.complete("a", "x")
    memory_for_two.complete("c", "x")
    wait_for_states(memory_for_two, a="loaded", b="unloaded", c="loaded")
    assert len(memory_for_two.engines) == 2
    with ThreadPoolExecutor(12) as pool:  # all of them, each waiting for its turn or served
        texts = list(pool.map(lambda n: memory_for_two.complete("abc"[n % 2], "x"), range(12)))
    assert len(set(texts)) == 1
    wait_until(lambda: num_tokens(memory_for_two, "b") == LENGTH * 7)  # of both its processes


def test_models_in_use_stay(memory_for_two: Server) -> None:
    memory_for_two.complete("a", "x")
    memory_for_two.complete("c", "x")
    streams = [memory_for_two.stream(name, "x", length=4000) for name in "ac"]
    endless = [memory_for_two.stream(name, "x", length=ENDLESS) for name in "ac"]
    wait_until(lambda: all(stream.num_events for stream in (*streams, *endless)))
    status, reply = memory_for_two.ask("/v1/completions", model="b", prompt="x")
    assert (status, reply["error"]["code"]) == (503, "model_not_loaded")
    assert f"of {600 * MIB:,} bytes" in reply["error"]["message"]
    assert int(reply["headers"]["retry-after"]) >= 1
    assert all(stream.is_alive() for stream in endless), "too late: make the answers longer"
    seen = [stream.num_events for stream in endless]
    wait_until(lambda: all(s.num_events > n for s, n in zip(endless, seen, strict=True)))
    for stream in streams:
        stream.join(PATIENCE)
        assert not stream.is_alive()
        assert not stream.error
    for stream in endless:
        stream.leave()
        assert not stream.error
    # the server sees a moment later that they left
    wait_until(lambda: memory_for_two.ask("/v1/completions", model="b", prompt="x")[0] == 200)
    assert memory_for_two.complete("b", "x")


def test_an_administrator_unloads_a_model_when_its_requests_are_done(
    memory_for_two: Server,
) -> None:
    memory_for_two.complete("a", "x")
    running = memory_for_two.stream("a", "x", length=2000)
    wait_until(lambda: running.num_events > 0)
    reply = memory_for_two.order("POST", "/admin/models/unload", model="a")
    assert (reply["state"], running.error) == ("unloaded", {})
    running.join(PATIENCE)
    assert running.text
    endless = memory_for_two.stream("a", "x", length=ENDLESS)
    wait_until(lambda: endless.num_events > 0)
    memory_for_two.order("POST", "/admin/models/unload", model="a", grace=0)
    endless.join(PATIENCE)
    assert "unloaded" in endless.error["message"]
    assert endless.error["code"] == "server_is_overloaded"  # not a failure of the engine
    reply = memory_for_two.order("POST", "/admin/models/load", model="a")
    assert reply["state"] == "loaded"


def test_idle_models_leave(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("models:\n  - {name: a, model: quire-tiny, load: at_start}\n"
                    "  - {name: b, model: quire-tiny}\n")  # fmt: skip
    with serve(
        tmp_path / "sock", "--config", str(file), *NULL, "--idle-unload-seconds", "0.5"
    ) as s:
        assert s.states() == {"a": "loaded", "b": "unloaded"}
        s.complete("b", "x")
        wait_until(lambda: s.states()["b"] == "unloaded")
        assert s.states()["a"] == "loaded"
