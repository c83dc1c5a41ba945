"""The command line's frozen surface, its numbers and its mistakes, whatever the command."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from child_process import run_to_end

from quire import processes
from quire.cli import COMMANDS, main, profile, serve, served_models
from quire.cli.options import human_int
from quire.errors import EngineError
from quire.processes import interrupted

ENGINE = """
    --tokenizer --revision --served-model-name --dtype --max-model-len --load-format --pooling
    --max-logprobs --skip-tokenizer-init --no-skip-tokenizer-init --chat-template
    --generation-config --override-generation-config --quantization-overrides
    --quality-gate
    --quantization --seed --block-size --num-blocks --kv-cache-dtype --kv-cache-dtype-skip-layers
    --kv-cache-memory-bytes
    --gpu-memory-utilization
    --enable-prefix-caching --no-enable-prefix-caching --max-num-seqs --max-num-batched-tokens
    --scheduling-policy --enable-chunked-prefill --no-enable-chunked-prefill
    --long-prefill-token-threshold --itl-target-ms --ttft-target-ms --device --threads
    --enforce-eager --no-enforce-eager --batch-invariant --no-batch-invariant --prepared-weights
"""
SAMPLING = """
    --n --temperature --top-p --top-k --min-p --presence-penalty --frequency-penalty
    --repetition-penalty --stop --stop-token-ids --include-stop-str-in-output
    --no-include-stop-str-in-output --max-tokens --min-tokens --thinking-token-budget --ignore-eos
    --no-ignore-eos
    --bad-words --skip-special-tokens --no-skip-special-tokens
    --json-schema --regex --grammar --choice
"""
PROMPTS = " --default-chat-template-kwargs -e --escape --no-escape "
SERVE = """
    --host --port --uds --root-path --api-key --api-key-file
    --share-prefix-cache --no-share-prefix-cache
    --return-tokens-as-token-ids --no-return-tokens-as-token-ids
    --enable-force-include-usage --no-enable-force-include-usage
    --allowed-hosts
    --allowed-origins
    --max-queued-requests --max-queued-tokens --queue-timeout --request-timeout
    --slow-reader-timeout --admin-port --admin-uds --admin-api-key --tool-call-parser
    --default-chat-template-kwargs
    --reasoning-parser --model --config --model-load --model-memory-bytes --model-load-timeout
    --idle-unload-seconds --max-body-bytes --max-held-body-bytes --api-server-count
    --response-store-bytes
    --engine-hang-timeout --engine-load-timeout --shutdown-timeout --log-level
    --log-format --access-log --no-access-log
    --enable-request-id-headers --no-enable-request-id-headers --otlp-traces-endpoint
    --gpu-hour-cost --dry-run --gpu-memory-gib --json
"""

VERIFY = """
    --calibration --samples --seq-len --tasks --quality-limits --replace-report --speed --no-speed
    --device --json
"""

# Every option of every command. Changing this list is changing what users have in their scripts.
SURFACE = {
    "serve": SERVE + ENGINE,
    "chat": "--system" + PROMPTS + SAMPLING.replace(" --n ", " ") + ENGINE,
    "generate": "--prompt --file --chat --system --json" + PROMPTS + SAMPLING + ENGINE,
    "run-batch": """
        -i --input-file -o --output-file --tool-call-parser --reasoning-parser
        --default-chat-template-kwargs
    """
    + ENGINE,
    "profile": "--batch-size --context --prefill --json --plot" + ENGINE,
    "quantize": """
        --method --out -o --output --group-size --symmetric --no-symmetric --format --ignore
        --act-order --rotate --no-rotate --weight-only --no-weight-only
        --double-quantization --no-double-quantization
        --damping --smoothing --steps --seed --verify --no-verify
    """
    + VERIFY,
    "verify": VERIFY,
    "cache": "--gone --full --other-processors --prepared-weights",
    "completion": "",
    "demo": "--url --api-key --concurrency --json",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_frozen_surface(command: str) -> None:
    parser = importlib.import_module(f"quire.cli.{command.replace('-', '_')}").make_parser()
    flags = {flag for flag in parser._option_string_actions if flag not in ("-h", "--help")}
    assert sorted(flags) == sorted(SURFACE[command].split())


@pytest.mark.parametrize("command", COMMANDS)
def test_each_integer_has_bounds(command: str) -> None:
    """`int` reads any, of which code that takes 64 bits makes a traceback."""
    parser = importlib.import_module(f"quire.cli.{command.replace('-', '_')}").make_parser()
    assert [action.dest for action in parser._actions if action.type is int] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert main([command, "--help=all"]) == 0, "as vLLM has it, whose options are in groups"
    assert capsys.readouterr().out == text
    assert text.startswith(f"usage: quire {command} ")
    assert f"examples:\n  quire {command}" in text or f"| quire {command}" in text


def test_top_help(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--help"], ["-h"], ["--help=all"]):
        assert main(argv) == 0
        text = capsys.readouterr().out
        assert all(f"  {command} " in text for command in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["srve"], "did you mean 'serve'?"),
        (["--bogus"], "unknown option '--bogus'; a command comes first, such as `quire chat`"),
        (["-m", "x"], "unknown option '-m'; a command comes first, such as `quire chat`"),
        (["quire-tiny"], "a command comes before a model: `quire chat quire-tiny`, or `quire"),
        (["serve", "--device", "cuda:1"], "use 'cuda', and set CUDA_VISIBLE_DEVICES=1"),
        (["serve", "--device", "mps"], "error: --device 'mps' is not supported: it runs on CPUs"),
        (
            ["quantize", "a", "--method", "q4", "--out", "x"],
            "--method: must be one of 'rtn', ",
        ),
        (["profile", "-p", "512"], "-p 512 is not supported: this command has no prompts as"),
        (
            ["generate", "hi you", "tell me"],
            "'hi you' is not a model; for several prompts use --prompt",
        ),
        (["generate", "--logprobs", "3"], "--logprobs is not an option here; use SamplingParams("),
        (["generate", "a/b", "tell", "me"], "unexpected 'me'; put quotes around a prompt of"),
        (["help", "bench"], "unknown command 'bench'; use `quire profile MODEL` for a step, and"),
        (["quantize", "a", "b.gguf", "Q4"], "unexpected 'b.gguf'; name the new folder by --out,"),
        (["serve", "a", "b"], "unexpected 'b'; use --model MODEL for each of several models"),
        (["chat", "a/b", "--seed", "1", "--", "-x"], "-- and after it; write all of them after it"),
        (["serve", "--quantization", "q4_k_m"], "error: --quantization 'q4_k_m' is not supported"),
        (["serve", "--dry-run", "--kv-transfer-config", "{}", "--port", "x"], "an integer"),
        (["a/b", "hi"], "a command comes before a model: `quire chat a/b`, or `quire serve a/b`"),
        (
            ["xyzzy"],
            "use one of serve, chat, generate, run-batch, profile, quantize, ",
        ),
        (["serve", "--max-num-seq", "3"], "did you mean --max-num-seqs?"),
        (["serve", "--max-num-seq=3"], "did you mean --max-num-seqs?"),
        (["serve", "--no-prefix-caching"], "did you mean --enable-prefix-caching?"),
        (["serve", "--xyzzy"], "see quire serve --help"),
        (["serve", "a", "b"], "unexpected 'b'"),
        (["serve", "--port", "x"], "must be an integer"),
        (["serve", "--port", "1.5"], "must be an integer"),
        (["serve", "--port", "70000"], "error: --port must be between 0 and 65535, not 70000"),
        (["serve", "--port", "x" * 999], f"not '{'x' * 64}'; see"),
        (
            ["verify", "--device", "x" * 999],
            f"'cpu', 'cuda', not '{'x' * 64}'; see",
        ),
        (["quantize", "--format", "x" * 999], f"'compressed-tensors', not '{'x' * 64}'; see"),
        (["generate", "--temperature", "x" * 999], f"must be a number, not '{'x' * 64}'; see"),
        (["completion", "x" * 999], f"fish, not '{'x' * 64}'\n"),
        (["cache", "x" * 999], f"clear, not '{'x' * 64}'\n"),
        (["serve", "--port"], "--port: its value is missing; see quire serve --help"),
        (["serve", "--max-num-seqs="], "must be an integer"),
        (["serve", "--enforce-eager=yes"], "--no-enforce-eager: it is a switch and takes no value"),
        (["serve", "--gpu-memory-utilization", "90%"], "must be a number, not '90%'"),
        (["generate", "--temperature", "x"], "--temperature: must be a number, not 'x'"),
        (["generate", "", "--prompt", "a"], "model must not be empty; name a folder"),
        (["serve", "--dtype", "int3"], "auto, float32"),
        (["serve", "--block-size", "17"], "power of two"),
        (
            ["serve", "--max-num-seqs", "9" * 18],
            "error: --max-num-seqs must be between",
        ),
        (["serve", "--max-num-batched-tokens", "3g"], "must be between 0 and 2147483647"),
        (["serve", "--long-prefill-token-threshold", "3g"], "must be between 0 and 2147483647"),
        (
            ["serve", "--max-model-len", "3g"],
            "error: --max-model-len must be between 1 and 2147483647, not 3000000000",
        ),
        (
            ["serve", "--block-size", "4G"],
            "error: --block-size must be between 1 and 2147483647, not 4294967296",
        ),
        (
            ["serve", "--num-blocks", "3g"],
            "error: --num-blocks must be between 1 and 2147483647, not 3000000000",
        ),
        (
            ["serve", "--threads", "3g"],
            "error: --threads must be between 1 and 2147483647, not 3000000000",
        ),
        (
            ["serve", "--api-server-count", "257"],
            "--api-server-count must be between 1 and 256, not 257",
        ),
        (["serve", "--kv-cache-memory-bytes", "9" * 19], "must fit in 64 bits"),
        (["serve", "--max-num-seqs", "9" * 5000], "must fit in 64 bits"),
        (["serve", "--request-timeout", "1e300"], "--request-timeout must be between 0.001 and"),
        (
            ["serve", "--itl-target-ms", "nan"],
            "--itl-target-ms must be between 0.001 and 3600000, not nan",
        ),
        (["serve", "--max-queued-requests", "99999999999"], "must be between 0 and 2147483647"),
        (["serve", "--shutdown-timeout", "1g"], "--shutdown-timeout must be between 0 and"),
        (["serve", "--gpu-hour-cost", "inf"], "--gpu-hour-cost must be between 0.0 and"),
        (
            ["generate", "--load-format", "null", "--num-blocks", "1g", "--prompt", "a"],
            "error: --num-blocks must be at most 16777216 without a model, not 1000000000",
        ),
        (
            ["serve", "--max-num-seqs", "3K", "--max-num-batched-tokens", "1k"],
            "below --max-num-seqs",
        ),
        (["serve", "--host", "203.0.113.1"], "not an address of this machine"),
        (["generate"], "no prompt is given"),
        (["generate", "--file", "/nowhere/at/all"], "No such file"),
        (
            ["generate", "--prompt", "a", "--temperature", "-1"],
            "error: --temperature: must be between 0.0 and 100.0, not -1.0",
        ),
        (["generate", "--prompt", "a", "--n", "99"], "must be between 1 and 16"),
        (["chat", "--top-p", "0"], "error: --top-p: must be > 0"),
        (
            ["generate", "--prompt", "a", "--max-tokens", "0"],
            "error: --max-tokens: must be between",
        ),
        (["serve", "--admin-port", "1"], "or use --admin-uds"),
        (
            ["serve", "--port", "0", "--admin-uds", "/nowhere/at/all"],
            "use another --admin-port or",
        ),
        (["demo", "--concurrency", "0"], "at least 1"),
        (["serve", "--config", "/nowhere"], "error: --config '/nowhere' cannot be read (No such"),
        (["serve", "--host", "zzz"], "error: --host 'zzz' is not an address of this machine; use"),
        (["serve", "--uds", ""], "error: --uds must not be empty"),
        (["generate", "--file", "/nowhere"], "error: --file '/nowhere' cannot be read (No such"),
        (["run-batch", "-i", "/nowhere", "-o", "x"], "error: -i '/nowhere' cannot be opened (No"),
        (["chat", "--file", "p.txt"], "use `quire generate --prompt"),
        (["serve", "-p", "8080"], "or --port N for a server's port"),
        (["serve", "--", "m/m", "--dry-run"], "--dry-run is behind --, where words are; write it"),
        (["serve", "--port", "abc"], "error: --port: must be an integer, not 'abc'; see"),
        (["serve", "--block-size", "abc"], "must be an integer such as 4096, 4K or 4k, not 'abc'"),
        (["generate", "-p", "a", "--stop-token-ids", "5,6"], "use the option once for each"),
        (["generate", "-p", "a", "-n", "0"], "or -1 (until the answer ends), not 0"),
        (["generate", "-p", "a", "--json-schema", "x.json"], "error: --json-schema: must be valid"),
        (["generate", "-p", "a", "--json-schema", __file__], "is a file, but the option takes its"),
        (["generate", "-p", "a", "--samplers", "temperature;top_k"], "'temperature;top_k' is not"),
        (["run-batch", "-i", __file__, "-o", "/nowhere/x"], "; correct it, or write elsewhere"),
        (["demo", "--url", "localhost"], "such as http://127.0.0.1:8000"),
        (["demo", "--url", "http://["], "such as http://127.0.0.1:8000"),
        (["demo", "--url", "http:///v1"], "such as http://127.0.0.1:8000"),
        (
            ["quantize", "quire-tiny", "--method", "rtn", "--out", ""],
            "error: --out is missing; as in `quire quantize quire-tiny --method",
        ),
        (
            ["quantize"],
            "error: MODEL is missing; as in `quire quantize quire-tiny --method awq",
        ),
        (["verify", "quire-tiny"], "QUANTIZED is missing; as in `quire verify quire-tiny ./t"),
        (["generate", "-p", "a", "--prepared-weights", ""], "name a folder, or none"),
        (["cache", "--prepared-weights=--", "rm", "x"], "nothing is stored for 'x'"),
        (["serve", "--port=--"], "error: --port: must be an integer, not '--'"),
        (["serve", "--default-chat-template-kwargs", "[" * 9999], "must be a JSON object, such"),
        (["serve", "--override-generation-config", "[" * 9999, "--dry-run"], "a JSON object, such"),
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
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_human_integers(text: str, value: int) -> None:
    assert human_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "1kk", "1 k", "0x10", "1e3", "1.0001k", "9" * 30, "²"])
def test_wrong_integers(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        human_int(text)


def test_a_key_of_the_command_line_counts_and_not_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "c,d")
    for words, key in ((["--api-key", "a"], "a"), ([], "c,d")):
        args = serve.make_parser().parse(words)
        assert served_models.server_settings(args).api_key == key


def test_none_is_the_default_of_an_option_that_is_a_list() -> None:
    words = ["--allowed-origins", "None", "--served-model-name=None", "--api-key", "None"]
    args = serve.make_parser().parse([*words, "--api-key", "a", "--api-key", "b"])
    assert served_models.server_settings(args).allowed_origins is None
    assert served_models.server_settings(args).api_key == "a,b"
    (plan,) = served_models.model_plans(args, served_models.server_settings(args))
    assert plan.name == "quire-tiny"


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
    run_to_end([sys.executable, "-c", code], check=True)


def test_module_is_the_command() -> None:
    done = run_to_end([sys.executable, "-m", "quire", "--version"], check=True)
    assert re.fullmatch(r"quire \d+\.\d+\.\d+\n", done.stdout)


def test_failures_that_are_nobodys_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_argv: list[str]) -> int:
        raise EngineError("the engine stopped; start it again")

    monkeypatch.setattr("quire.cli.demo.run", fail)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "error: the engine stopped; start it again\n"


def test_a_limit_of_threads_is_reported_in_one_line(
    no_thread_left: Callable[[], AbstractContextManager[None]], capsys: pytest.CaptureFixture[str]
) -> None:
    with no_thread_left():
        assert main(["chat", "hello"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: no thread could be started; try again later, or raise")


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["demo"]])
def test_a_few_threads_are_too_few_for_a_server(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its libraries would abort, each with words of its own."""
    left = 3

    def start(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(processes, "start_new_thread", start)
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing is started
    assert main(command) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert re.search(r"takes at least \d+ threads, and can have 5; .*ulimit -u", error)


def test_many_threads_are_not_too_many() -> None:
    processes.require_threads(10_000, "nothing")


def test_a_server_needs_a_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    assert main(["serve", "--port", "0"]) == 1
    assert capsys.readouterr().err.startswith("error: no process could be started; try again")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EAGAIN, "no process could be started; try again later, or raise"),
        (errno.ENOMEM, "the system has no memory left; end other programs, or raise"),
    ],
)
def test_a_process_that_cannot_be_started_is_reported_in_one_line(
    number: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_argv: list[str]) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("quire.cli.demo.run", fail)
    assert main(["demo"]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {said}")


THREADS = """
import os
from quire.cli import main
main(["generate", "--max-tokens", "1", "hello"])
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_command_encodes_its_text_without_threads() -> None:
    env = os.environ | {"RAYON_NUM_THREADS": "100"}
    env.pop("TOKENIZERS_PARALLELISM", None)
    command = [sys.executable, "-c", THREADS]
    run = run_to_end(command, env=env, check=True)
    assert int(run.stdout.splitlines()[-1]) < 100


def test_files_may_lie_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands ~ behind =."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text("num-blocks: 64\n")
    assert main(["serve", "--config=~/config.yaml", "--dry-run"]) == 0
    (tmp_path / "empty").touch()
    (tmp_path / "prompt").write_text("hello\n")
    few = ["--num-blocks=64"]
    assert main(["run-batch", "--input-file=~/empty", "--output-file=~/answers", *few]) == 0
    assert (tmp_path / "answers").exists()
    assert main(["generate", "--file=~/prompt", "--max-tokens=1", *few]) == 0
    plot = profile.make_parser().parse(["--plot=~/step.png"]).plot
    assert plot == str(tmp_path / "step.png")


INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from quire.cli import main
main(["cache", "purge"])
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


@pytest.mark.parametrize(
    ("program", "module", "status"),
    [
        ("bin/quire", "quire.compat.missing_names", -signal.SIGINT),
        ("bin/quire", "quire.errors", -signal.SIGINT),
        ("bin/quire", "quire.cli.cache", 130),
        ("bin/quire", "none", 0),
        ("program.py", "quire.errors", None),
    ],
)
def test_ctrl_c_while_the_command_is_imported(
    program: str, module: str, status: int | None, tmp_path: Path
) -> None:
    """status: None for an interrupt that a program which imports quire gets."""
    (tmp_path / program).parent.mkdir(exist_ok=True)
    (tmp_path / program).write_text(INTERRUPTED_IMPORT)
    words = [sys.executable, str(tmp_path / program), module]
    done = run_to_end(words)
    assert ("KeyboardInterrupt" in done.stderr) == (status is None)
    assert ("Traceback" in done.stderr) == (status is None)
    assert status in (None, done.returncode)


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("quire.cli.demo.run", interrupt)
    assert main(["demo"]) == 130
    assert interrupted.is_set()
    interrupted.clear()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the latter in the C locale
def test_an_output_gets_escapes_of_what_it_lacks(
    errors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors=errors))
    assert main(["--version"]) == 0
    print("·", flush=True)
    assert raw.getvalue().endswith(rb"\xb7" + b"\n")


@pytest.mark.parametrize("words", ["serve --help", "serve --dry-run"])  # argparse's, and rich's
def test_reader_that_leaves(words: str) -> None:
    command = f"{sys.executable} -m quire {words} | true"
    done = run_to_end(["bash", "-o", "pipefail", "-c", command])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("max_tokens: 0; lower max_tokens", "--max-tokens: 0; lower --max-tokens"),
        ("prompt 3: too long; give 'max_tokens'", "prompt 3: too long; give 'max_tokens'"),
        ("device is 'cuda'; use device='cpu'", "--device is 'cuda'; use --device cpu"),
        ("device must be one of cpu", "--device must be one of cpu"),
        ("seed does nothing with it", "--seed does nothing with it"),
        ("file /a/max_tokens has no chat_words", "file /a/max_tokens has no chat_words"),
        ("the seed is wrong; $MAX_TOKENS", "the seed is wrong; $MAX_TOKENS"),
    ],
)
def test_errors_name_options(text: str, parsed: str) -> None:
    assert importlib.import_module("quire.cli.generate").make_parser().in_flags(text) == parsed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["cache", "--help"]])
def test_a_full_disk_is_reported_in_one_line(words: list[str]) -> None:
    command = [sys.executable, "-m", "quire", *words]
    with Path("/dev/full").open("w") as full:
        done = run_to_end(command, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "error: the disk is full; free some of it, or write elsewhere\n"


@pytest.mark.parametrize(
    "command",
    [
        "--version <&- >&- 2>&-",
        "generate --prompt a --max-tokens 1 --load-format dummy <&- 2>&-",  # half of torch waits
        "chat <&-",
    ],
)
def test_closed_streams_and_dummy_weights_are_no_failure(command: str) -> None:
    done = run_to_end(["sh", "-c", f"{shlex.quote(sys.executable)} -m quire {command}"])
    assert done.returncode == 0, done.stderr
