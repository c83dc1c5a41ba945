"""The command line: its frozen surface, its mistakes, and each command with a scripted engine."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import importlib
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

SERVER_TESTS = Path(__file__).parent / "server"
sys.path.insert(0, str(SERVER_TESTS))

from fake_engine import FakeEngine  # noqa: E402

from quire.cli import COMMANDS, main  # noqa: E402
from quire.cli.chat import Chat, Speed  # noqa: E402
from quire.cli.options import human_int  # noqa: E402
from quire.core.output import CompletionOutput, RequestOutput, RequestTimes  # noqa: E402
from quire.core.sampling_params import SamplingParams  # noqa: E402
from quire.errors import EngineError  # noqa: E402
from quire.server.listen import bind  # noqa: E402

ENGINE = """
    --tokenizer --revision --served-model-name --dtype --max-model-len --load-format --pooling
    --quantization --seed --block-size --num-blocks --kv-cache-dtype --kv-cache-memory-bytes
    --gpu-memory-utilization
    --enable-prefix-caching --no-enable-prefix-caching --max-num-seqs --max-num-batched-tokens
    --scheduling-policy --enable-chunked-prefill --no-enable-chunked-prefill
    --long-prefill-token-threshold --itl-target-ms --ttft-target-ms --device --threads
    --enforce-eager --no-enforce-eager
"""
SAMPLING = """
    --n --temperature --top-p --top-k --min-p --presence-penalty --frequency-penalty
    --repetition-penalty --stop --stop-token-ids --include-stop-str-in-output
    --no-include-stop-str-in-output --max-tokens --min-tokens --ignore-eos --no-ignore-eos
    --bad-words --skip-special-tokens --no-skip-special-tokens
"""
SERVE = """
    --host --port --api-key --api-key-file --share-prefix-cache --no-share-prefix-cache
    --allowed-origins
    --max-queued-requests --max-queued-tokens --queue-timeout --request-timeout
    --slow-reader-timeout --admin-port --admin-uds --admin-api-key --tool-call-parser
    --reasoning-parser --model --config --model-load --model-memory-bytes --model-load-timeout
    --idle-unload-seconds --max-body-bytes --max-held-body-bytes --api-server-count
    --engine-hang-timeout --shutdown-timeout --log-level --log-format --otlp-traces-endpoint
    --gpu-hour-cost --dry-run --gpu-memory-gib --json
"""

# Every option of every command. Changing this list is changing what users have in their scripts.
SURFACE = {
    "serve": SERVE + ENGINE,
    "chat": "--system" + SAMPLING.replace(" --n ", " ") + ENGINE,
    "generate": "--prompt --file --chat --json" + SAMPLING + ENGINE,
    "run-batch": "-i --input-file -o --output-file" + ENGINE,
    "profile": "--batch-size --context --prefill --json --plot" + ENGINE,
    "demo": "--url --api-key --concurrency --json",
}


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    """A command's log handler would outlive its test, with a stream that is closed by then."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("command", COMMANDS)
def test_frozen_surface(command: str) -> None:
    parser = importlib.import_module(f"quire.cli.{command.replace('-', '_')}").make_parser()
    flags = {flag for flag in parser._option_string_actions if flag not in ("-h", "--help")}
    assert sorted(flags) == sorted(SURFACE[command].split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: quire {command} ")
    assert f"examples:\n  quire {command}" in text or f"| quire {command}" in text


def test_top_help(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--help"], ["-h"]):
        assert main(argv) == 0
        text = capsys.readouterr().out
        assert all(f"  {command} " in text for command in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["srve"], "did you mean 'serve'?"),
        (["--bogus"], "unknown option '--bogus'"),
        (["xyzzy"], "give one of serve, chat, generate, run-batch, profile, demo"),
        (["serve", "--max-num-seq", "3"], "did you mean --max-num-seqs?"),
        (["serve", "--max-num-seq=3"], "did you mean --max-num-seqs?"),
        (["serve", "--no-prefix-caching"], "did you mean --enable-prefix-caching?"),
        (["serve", "--xyzzy"], "see quire serve --help"),
        (["serve", "a", "b"], "unexpected 'b'"),
        (["serve", "--port", "x"], "not an integer"),
        (["serve", "--port", "1.5"], "not a whole number"),
        (["serve", "--port", "70000"], "error: --port is 70000; give 0 to 65535"),
        (["serve", "--port"], "expected one argument"),
        (["serve", "--dtype", "int3"], "'auto', 'float32'"),
        (["serve", "--block-size", "17"], "power of two"),
        (
            ["serve", "--max-num-seqs", "3K", "--max-num-batched-tokens", "1k"],
            "below --max-num-seqs",
        ),
        (["serve", "--host", "203.0.113.1"], "no address of this machine"),
        (["generate"], "there is no prompt"),
        (["generate", "--file", "/nowhere/at/all"], "No such file"),
        (
            ["generate", "--prompt", "a", "--temperature", "-1"],
            "error: --temperature: -1.0 is out of range",
        ),
        (["generate", "--prompt", "a", "--n", "99"], "give 1 to 16"),
        (["chat", "--top-p", "0"], "error: --top-p: 0 keeps no token"),
        (["generate", "--prompt", "a", "--max-tokens", "0"], "error: --max-tokens: 0 is"),
        (["serve", "--admin-port", "1"], "or use --admin-uds"),
        (["demo", "--concurrency", "0"], "at least 1"),
        (["demo", "--url", "localhost"], "such as http://127.0.0.1:8000"),
    ],
)
def test_mistakes_are_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("4096", 4096),
        ("32K", 32768),
        ("32k", 32000),
        ("1.5k", 1500),
        ("1.5K", 1536),
        ("2M", 2 << 20),
        ("3m", 3_000_000),
        ("1G", 1 << 30),
        ("1g", 10**9),
        ("1_000", 1000),
    ],
)
def test_human_integers(text: str, value: int) -> None:
    assert human_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "1kk", "1 k", "0x10", "1e3", "1.0001k", "9" * 30, "²"])
def test_wrong_integers(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        human_int(text)


def test_settings_reach_the_tree() -> None:
    from quire.cli.options import engine_config
    from quire.cli.serve import make_parser

    argv = [
        "m",
        "--max-model-len",
        "8K",
        "--no-enable-prefix-caching",
        "--gpu-memory-utilization",
        "0.5",
    ]
    config = engine_config(make_parser().parse(argv))
    assert (config.model.model, config.model.max_model_len) == ("m", 8192)
    assert config.cache.enable_prefix_caching is False
    assert config.cache.gpu_memory_utilization == 0.5
    assert config.scheduler.max_num_seqs == 256


def test_start_is_quick_and_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from quire.cli import main\n"
        "for word in ('serve', 'chat', 'generate', 'demo'): assert main([word, '--help']) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quire", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"quire \d+\.\d+\.\d+\n", done.stdout)


def test_failures_that_are_nobodys_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_argv: list[str]) -> int:
        raise EngineError("the engine stopped; start it again")

    monkeypatch.setattr("quire.cli.demo.run", fail)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "error: the engine stopped; start it again\n"


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("quire.cli.demo.run", interrupt)
    assert main(["demo"]) == 130
    assert capsys.readouterr() == ("", "")


def test_reader_that_leaves() -> None:
    command = f"{sys.executable} -m quire serve --help | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("usage:")
    assert done.stderr == ""


# serve


@contextmanager
def serving(*options: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """`quire serve` without a model, which is quick to start."""
    command = [sys.executable, "-m", "quire", "serve", "--port", "0", "--load-format", "null"]
    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_ready(process: subprocess.Popen[str]) -> tuple[str, int]:
    """The text up to the curl example, and the port in it."""
    assert process.stdout is not None
    text = "".join(process.stdout.readline() for _ in range(5))
    found = re.search(r"ready at http://127\.0\.0\.1:(\d+)", text)
    assert found is not None, text
    return text, int(found[1])


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_serve(sent: signal.Signals, status: int) -> None:
    with serving("--log-level", "warning") as process:
        text, port = read_ready(process)
        assert "quire-tiny: null on null, context 4,096" in text
        assert "1,048,576 tokens: 65,536 blocks of 16, 0 MiB" in text
        assert f"curl http://127.0.0.1:{port}/v1/chat/completions -H" in text
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5})
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", body, headers)
            answer = json.load(connection.getresponse())
        assert answer["usage"]["completion_tokens"] == 5
        process.send_signal(sent)
        assert process.wait(10) == status
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_serve_key_from_the_environment() -> None:
    with serving(QUIRE_API_KEY="sesame") as process:
        text, port = read_ready(process)
        assert "Authorization: Bearer" in text
        assert "sesame" not in text
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", "/v1/models")
            assert connection.getresponse().status == 401


def test_a_signal_before_the_server_is_ready_is_no_failure() -> None:
    with serving() as process:
        assert process.stderr is not None
        assert "loading" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()


def test_serve_that_cannot_load() -> None:
    with serving("./missing") as process:
        _, err = process.communicate(timeout=20)
        assert process.returncode == 2
        assert re.fullmatch("error: .*missing.*\n", err)


def test_port_in_use_is_said_before_loading(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as sock:
        assert main(["serve", "--port", str(sock.getsockname()[1])]) == 2
    assert "is in use" in capsys.readouterr().err


# chat


def talk(engine: FakeEngine, *lines: str, system: str = "") -> tuple[int, Chat]:
    with asyncio.Runner() as runner:
        chat = Chat(engine, SamplingParams(max_tokens=None), runner.run, system=system)  # type: ignore[arg-type]
        return chat.run(iter(lines)), chat


def test_chat_keeps_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    status, chat = talk(FakeEngine(), "hi\n", "\n", "more\n", system="be kind")
    assert status == 0
    assert chat.messages == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "Hello!"},
    ]
    out, err = capsys.readouterr()
    assert out == "Hello!\nHello!\n"
    assert re.search(r"\[6 tokens, [\d.]+ tokens/s, first token after \d+ ms\]", err)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_tokens: 0; lower max_tokens", "--max-tokens: 0; lower --max-tokens"),
        ("prompt 3: too long; give 'max_tokens'", "prompt 3: too long; give 'max_tokens'"),
        ("device is 'cuda'; give device='cpu'", "--device is 'cuda'; give --device cpu"),
        ("file /a/max_tokens has no chat_template", "file /a/max_tokens has no chat_template"),
        ("the seed is wrong; $MAX_TOKENS", "the seed is wrong; $MAX_TOKENS"),
    ],
)
def test_errors_name_options(text: str, told: str) -> None:
    assert importlib.import_module("quire.cli.generate").make_parser().in_flags(text) == told


def test_chat_without_a_template_is_refused_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine()
    engine.tokenizer.has_chat_template = False

    async def start(_config: object) -> FakeEngine:
        return engine

    monkeypatch.setattr("quire.engine.client.AsyncEngine.start", start)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert main(["chat"]) == 2
    assert capsys.readouterr().err.count("no chat template") == 1
    assert engine.closed


def test_chat_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("/help", "/nonsense", "hi", "/system be brief", "/reset", "/quit", "never read")
    status, chat = talk(FakeEngine(), *lines)
    assert status == 0
    assert chat.messages == [{"role": "system", "content": "be brief"}]
    out, err = capsys.readouterr()
    assert out == "Hello!\n"
    assert "/system TEXT" in err
    assert "unknown command /nonsense" in err


def test_chat_goes_on_after_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    status, chat = talk(FakeEngine(), "x" * 2000, "hi")
    assert status == 1
    assert [message["content"] for message in chat.messages] == ["hi", "Hello!"]
    assert "error: prompt: " in capsys.readouterr().err


def test_chat_stopped_by_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(fail_at=2, failure=KeyboardInterrupt())  # type: ignore[arg-type]
    status, chat = talk(engine, "hi")
    assert status == 0
    assert chat.messages[-1] == {"role": "assistant", "content": "He"}
    assert "[stopped]" in capsys.readouterr().err


def test_speed_without_a_rate() -> None:
    speed = Speed()
    speed.count(1)
    assert "tokens/s" not in str(speed)


# generate


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for quire.llm; returns what it was asked."""
    asked: list[Any] = []

    class FakeLLM:
        def __init__(self, **options: Any) -> None:
            asked.append(options)

        def generate(
            self, prompts: list[Any], sampling: SamplingParams, *, use_tqdm: bool
        ) -> list[RequestOutput]:
            asked.append((prompts, sampling, use_tqdm))
            return [
                RequestOutput(
                    request_id="x",
                    prompt=None,
                    prompt_token_ids=[1, 2],
                    outputs=[
                        CompletionOutput(i, f"Ünd {i}", [7], finish_reason="stop")
                        for i in range(sampling.n)
                    ],
                    times=RequestTimes(0.0),
                )
                for _ in prompts
            ]

        chat = generate

    module = types.ModuleType("quire.llm")
    module.LLM = FakeLLM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quire.llm", module)
    return asked


def test_generate(llm: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "m", "--prompt", "a", "--seed", "5", "--stop", "x", "--stop=y"]) == 0
    assert capsys.readouterr().out == "Ünd 0\n"
    options, (prompts, sampling, use_tqdm) = llm
    assert options == {"model": "m", "seed": 5}
    assert (prompts, use_tqdm) == (["a"], False)
    assert sampling == SamplingParams(stop=["x", "y"], max_tokens=128)


def test_generate_from_a_file(
    llm: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\ntwo\n")
    assert main(["generate", "--file", str(path), "--n", "2", "--max-tokens", "1K"]) == 0
    assert capsys.readouterr().out == "> one\nÜnd 0\nÜnd 1\n\n> two\nÜnd 0\nÜnd 1\n\n"
    assert llm[1][1].max_tokens == 1024


def test_generate_json_through_the_chat_template(
    llm: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    assert main(["generate", "--file", "-", "--chat", "--json"]) == 0
    assert llm[1][0] == [[{"role": "user", "content": "hi"}]]
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "prompt": "hi",
        "outputs": [
            {"text": "Ünd 0", "token_ids": [7], "finish_reason": "stop", "stop_reason": None}
        ],
        "num_prompt_tokens": 2,
        "num_cached_tokens": 0,
    }


def test_generate_refuses_what_is_not_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.bin"
    path.write_bytes(b"\xff\xfe")
    assert main(["generate", "--file", str(path)]) == 2
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_in_one_line() -> None:
    command = [sys.executable, "-m", "quire", "--help"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: the disk is full; free some of it, or write elsewhere\n"
