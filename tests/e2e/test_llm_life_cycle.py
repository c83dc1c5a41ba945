"""`LLM` from its start to its close: sleep, other threads, forked processes."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from child_process import run_to_end
from llm_calls import GREEDY, texts
from msgspec.structs import replace

from quire import LLM, EngineArgs, SamplingParams
from quire.config import EngineConfig
from quire.engine.core.engine_core import EngineCore
from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend import loaded_model
from quire.engine.startup.start_engine import start_engine
from quire.errors import ConfigError, ContextLengthError, InvalidRequestError
from quire.model_folder import BUNDLED_FOLDER


def test_engine_args_make_an_llm() -> None:
    with LLM.from_engine_args(EngineArgs(model="quire-tiny", max_model_len=64)) as llm:
        assert llm.info.limits.max_model_len == 64


def test_the_size_of_a_models_files_is_known(llm: LLM) -> None:
    files = (BUNDLED_FOLDER / "quire-tiny").glob("*.safetensors")
    assert llm.info.file_bytes == sum(file.stat().st_size for file in files) > 0


def test_an_engine_that_sleeps_and_ends() -> None:
    with LLM(dtype="float32", threads=1, num_blocks=64) as llm:
        before = texts(llm.generate("A list is", GREEDY, use_tqdm=False))
        assert llm.generate("A list is " * 9, GREEDY, use_tqdm=False)
        assert llm.generate("A list is " * 9, GREEDY, use_tqdm=False)[0].num_cached_tokens > 0
        assert llm.reset_prefix_cache()
        assert llm.generate("A list is " * 9, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
        with pytest.raises(InvalidRequestError, match=r"^level: must be 1 or 2, not 0"):
            llm.sleep(level=0)
        assert not llm.is_sleeping()
        llm.sleep(level=2)
        assert llm.is_sleeping()
        with pytest.raises(
            InvalidRequestError, match=r"^tags: must be weights or kv_cache, not 'all'"
        ):
            llm.wake_up(tags=["all"])
        with pytest.raises(ConfigError, match=r"sleeps; call wake_up\(\)"):
            llm.generate("A list is", GREEDY, use_tqdm=False)
        llm.wake_up(tags=["weights"])
        llm.wake_up(tags=["kv_cache"])
        assert texts(llm.generate("A list is", GREEDY, use_tqdm=False)) == before
    with pytest.raises(ConfigError, match="closed"):
        llm.embed("A list is", use_tqdm=False)
    with pytest.raises(ConfigError, match="closed"):
        llm.wake_up()


def test_requests_are_checked_by_the_limits_of_the_engine_that_woke_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LLM(dtype="float32", threads=1, num_blocks=64) as llm:
        bad_words = SamplingParams(max_tokens=1, bad_words=["list"])
        llm.generate("A", bad_words, use_tqdm=False)
        llm.sleep()

        def start_smaller(config: EngineConfig) -> tuple[EngineCore, EngineInfo]:
            core, info = start_engine(config)
            return core, replace(info, limits=replace(info.limits, max_model_len=8))

        monkeypatch.setattr(loaded_model, "start_engine", start_smaller)
        llm.wake_up()
        with pytest.raises(ContextLengthError):
            llm.generate("A list is " * 9, GREEDY, use_tqdm=False)
        inputs = llm._inputs
        inputs.set_limits(replace(llm.info.limits, vocab_size=3))
        (request,) = inputs.prepare("a", [1], bad_words).messages
        assert request.bad_words_ids == [], "ids that the model does not have"


def test_a_close_does_not_wait_for_the_call_of_another_thread() -> None:
    llm = LLM(dtype="float32", threads=1, num_blocks=64)
    params = SamplingParams(max_tokens=900, ignore_eos=True)
    runs, errors = threading.Event(), list[Exception]()

    def ask() -> None:
        try:
            llm.generate("A list is", params, on_output=lambda _: runs.set())
        except ConfigError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert runs.wait(60)
    llm.close()
    asking.join(60)
    assert ["closed" in str(error) for error in errors] == [True]


def test_an_interrupted_close_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    llm = LLM(dtype="float32", threads=1, num_blocks=64)
    monkeypatch.setattr(loaded_model, "_free_memory", interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.close()
    with pytest.raises(ConfigError, match="closed"):
        llm.generate("A list is", GREEDY, use_tqdm=False)


FORKS = """
import os, signal, sys
from quire import LLM, SamplingParams

options = {"dtype": "float16", "threads": 2, "num_blocks": 64}  # with PyTorch and its OpenMP
llm, params = LLM(**options), SamplingParams(max_tokens=1)
prompts = ["a list is " * 60] * 8
answers = llm.generate(prompts, params, use_tqdm=False)
if child := os.fork():
    signal.alarm(60)
    assert os.waitpid(child, 0)[1] == 0
    assert len(llm.generate(prompts, params, use_tqdm=False)) == 8
    sys.exit()
signal.alarm(30)
for call in (
    lambda: llm.generate(prompts, params, use_tqdm=False),
    lambda: llm.stats, llm.sleep, llm.wake_up, llm.close,
    lambda: LLM(**options),
):
    try:
        call()
        print("done")
    except Exception as error:
        print(type(error).__name__, error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")
def test_calls_in_a_forked_process_are_refused() -> None:
    """It would wait for threads that it does not have."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = run_to_end(command)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 6), done
    fix = r"; make an LLM in each process that uses one, and none before .*get_context\('spawn'\)$"
    for line in lines[:-1]:
        assert re.match("ConfigError this LLM was made in the process .*" + fix, line), line
    assert re.match("ConfigError PyTorch has run .*in the process .*" + fix, lines[-1]), lines


FORKED_TORCH = """
import os, threading, time, torch
torch.set_num_threads(2)
if RUNS:
    torch.ones(1 << 20).exp_()
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if RUNS_AGAIN:
    torch.ones(1 << 20).exp_()
if HAS_THREAD:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
from quire import LLM
LLM(dtype="float16", threads=2, num_blocks=64)  # with PyTorch and its OpenMP
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is a fork")
@pytest.mark.parametrize(
    ("runs", "has_thread", "runs_again"),
    [(False, False, False), (False, True, True), (True, False, False), (True, True, False)],
)
def test_a_fork_of_a_program_that_has_run_pytorch_is_refused(
    runs: bool, has_thread: bool, runs_again: bool
) -> None:
    """runs_again: PyTorch runs in the fork alone."""
    code = f"RUNS, HAS_THREAD, RUNS_AGAIN = {runs}, {has_thread}, {runs_again}" + FORKED_TORCH
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = run_to_end(command)
    assert done.returncode == runs, done
    assert ("ConfigError: PyTorch has run in the process that" in done.stderr) == runs, done


def test_answers_where_the_system_starts_no_more_threads(
    no_thread_left: Callable[[], AbstractContextManager[None]], tmp_path: Path
) -> None:
    with no_thread_left(), LLM(device="cpu", prepared_weights=str(tmp_path)) as llm:
        (output,) = llm.generate("Hello", SamplingParams(max_tokens=3))
        assert len(output.outputs[0].token_ids) == 3
    assert [*tmp_path.iterdir()] == []  # nobody could write beside
