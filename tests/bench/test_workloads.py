"""The load of benchmarks/gpu_serving.py: what is sent, how answers are read, what it amounts to."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_server import Script, chat_events, chunked, event, raw, scripted_server
from serving_table import vllm_serving
from workloads import plan, steady
from workloads.cached_prompts import cached_prompt_requests
from workloads.figures import RequestResult, line, summarize
from workloads.http_load import Load, Reader, now, request
from workloads.offline import Run
from workloads.plan import Level, Workload, make_level
from workloads.steady import CACHED_PROMPT, Steady
from workloads.vocabulary import make_folder

from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.startup.null_engine import start_null_engine
from quire.engine.startup.start_engine import start_engine
from quire.tokenizer.tokenizer import Tokenizer

SHAPES = Path(__file__).parents[2] / "benchmarks" / "shapes"
VOICE = Workload("v", "quire-tiny", 30, 3, (2,), shared_prefix=20)
CLOSES = "Connection: close\r\n"  # which is what the scripted server does
REWRITE = Workload("r", "quire-tiny", 5, 3, (100,), stream=False, is_open=True)


def level_of(workload: Workload, number: float = 2, seconds: float = 5.0) -> Level:
    return make_level(workload, number, "m", 2048, seed=7, seconds=seconds)


def test_lengths_vary_as_far_as_they_are_asked_to() -> None:
    level = level_of(replace(VOICE, input_len=100, output_len=50, shared_prefix=0, jitter=0.6))
    lengths = [len(prompt) for prompt in level.prompts()], level.output_lens()
    for mean, found in zip((100, 50), lengths, strict=True):
        assert 0.4 * mean <= min(found) < 0.6 * mean
        assert 1.4 * mean < max(found) <= 1.6 * mean
        assert len(set(found)) > mean / 2
    assert level.output_lens() == lengths[1]
    assert set(level_of(VOICE).output_lens()) == {VOICE.output_len}


@pytest.mark.parametrize("seed", [0, 3, 12345678])
def test_the_mean_of_varied_lengths_is_the_workloads(seed: int) -> None:
    [workload] = plan.chosen(["varied-4000-50"])
    seeds = make_level(workload, 48, "m", 2048, seed, seconds=5.0).seeds
    assert seeds[0] >= seed
    for num_requests in (len(seeds), 168, 144):
        ins, outs = zip(*map(workload.lengths, seeds[:num_requests]), strict=True)
        assert np.mean(ins) == pytest.approx(4000, rel=0.003)
        assert np.mean(outs) == pytest.approx(50, rel=0.003)
        assert abs(np.corrcoef(ins, outs)[0, 1]) < 0.25


def test_prompts_share_what_is_shared_and_nothing_else() -> None:
    prompts = list(level_of(VOICE).prompts())
    assert {len(prompt) for prompt in prompts} == {30}
    assert len({tuple(prompt[:20]) for prompt in prompts}) == 1
    assert len({tuple(prompt[20:]) for prompt in prompts}) == len(prompts) == 8
    assert {token for prompt in prompts for token in prompt} <= set(range(1000, 2048))


@pytest.mark.parametrize("number", [1, 3, 6])
def test_shares_deal_all_lanes_and_requests(number: int) -> None:
    level = level_of(VOICE, number)
    shares = level.shares(4)
    assert sum(share.level for share in shares) == number
    assert sorted(seed for share in shares for seed in share.seeds) == list(level.seeds)


def test_open_shares_keep_each_arrival_with_its_prompt() -> None:
    level = level_of(REWRITE, 100)
    assert 300 < len(level.offsets) < 700  # 5 seconds of 100 a second
    pairs = [p for s in level.shares(4) for p in zip(s.seeds, s.offsets, strict=True)]
    assert sorted(pairs) == list(zip(level.seeds, level.offsets, strict=True))


def test_chosen_workloads_are_known_and_take_levels() -> None:
    [workload] = plan.chosen(["voice-8b:1,64"])
    assert workload.levels == (1.0, 64.0)
    assert plan.chosen(None) == list(plan.WORKLOADS)
    with pytest.raises(ValueError, match="no workload 'vioce'; known: voice-8b"):
        plan.chosen(["vioce"])


def answers(script: Script, level: Level) -> list[RequestResult]:
    async def run() -> list[RequestResult]:
        async with scripted_server(script) as url:
            wanted = zip(level.prompts(), level.output_lens(), strict=True)
            bodies = [(request(url, level, *each), each[1]) for each in wanted]
            return await Load(url, level, bodies, now()).run()

    return asyncio.run(run())


def stream(parts: list[bytes]) -> Script:
    return chunked(parts, status=f"200 OK\r\n{CLOSES}Content-Type: text/event-stream")


def completion(text: str) -> list[bytes]:
    """Events of a completion, without the role that opens a chat's answer."""
    return chat_events(text)[1:]


def test_a_stream_is_read_event_by_event() -> None:
    events = completion("abc")
    found = answers(stream([*events[:3], *events[4:]]), level_of(VOICE))
    assert [(e.error, e.tokens, e.events, len(e.gaps)) for e in found] == [(None, 3, 3, 2)] * 8
    assert all(e.due <= e.sent < e.first <= e.last <= e.done for e in found)


def test_an_answer_at_once_is_read_whole() -> None:
    body = json.dumps({"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 5}})
    script = raw(f"HTTP/1.1 200 OK\r\n{CLOSES}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    found = answers(script, level_of(REWRITE, 40, 0.2))
    assert found
    assert {(e.error, e.tokens, e.prompt_tokens) for e in found} == {(None, 3, 5)}


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (stream([event({"error": {"message": "too long"}})]), "too long"),
        (stream(completion("abc")[:-1]), "without [DONE]"),
        (stream(completion("ab")), "got 2 tokens, asked for 3"),
        (raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"), "HTTP 503 busy"),
        (raw(b""), "the connection broke"),
        (raw(b"nonsense\r\n\r\n"), "no sound answer"),
    ],
)
def test_failures_are_results(script: Script, problem: str) -> None:
    found = answers(script, level_of(VOICE))
    assert len(found) == 8
    assert all(problem in str(e.error) for e in found)


def test_framing_may_be_cut_anywhere() -> None:
    head = b"http/1.1 200 ok\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
    data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in completion("abc"))
    result, unread, over = RequestResult(0.0), bytearray(), False
    reader = Reader(head, result)
    for index, byte in enumerate(data + b"0\r\n\r\n"):
        assert not over
        unread.append(byte)
        over = reader.read(unread, float(index))
    assert over
    assert (result.error, result.tokens) == (None, 3)
    assert not unread


def test_what_takes_too_long_is_cut() -> None:
    slow = chunked(completion("abc"), delay=1.0)
    found = answers(slow, replace(level_of(VOICE), cut_after=0.1))
    assert [e.error for e in found] == ["unfinished"] * 2


def test_nothing_begins_when_time_is_over() -> None:
    quick = stream(completion("abc"))
    assert answers(quick, replace(level_of(VOICE), stop_after=0.0)) == []


@pytest.mark.parametrize("workload", [VOICE, REWRITE])
def test_the_engine_alone_serves_a_level(workload: Workload) -> None:
    core, _ = start_null_engine(EngineConfig())
    found = Run(core, level_of(workload, 3, 0.2)).run()
    assert found
    events = 3 if workload.stream else 2  # the first token, and the rest at the end
    assert {(e.error, e.tokens, len(e.gaps)) for e in found} == {(None, 3, events - 1)}
    assert not core.has_work


def test_the_engine_alone_is_left_empty_when_time_is_over() -> None:
    core, _ = start_null_engine(EngineConfig())
    long = replace(VOICE, output_len=3000)
    level = replace(level_of(long), stop_after=0.01, cut_after=0.02)
    assert {e.error for e in Run(core, level).run()} == {"unfinished"}
    assert not core.has_work


def test_a_saturated_level_is_even_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "WINDOW", 0.2)
    monkeypatch.setattr(steady, "LEAST_WINDOW", 0.1)
    monkeypatch.setattr(steady, "START_SECONDS", 0.05)
    core, _ = start_null_engine(EngineConfig())
    asked: list[tuple[int, int]] = []
    handle = core.handle

    def note(message: Any) -> None:
        if isinstance(message, AddRequest):
            asked.append((len(message.prompt_token_ids), message.sampling.max_tokens))
        handle(message)

    monkeypatch.setattr(core, "handle", note)
    workload = Workload("s", "quire-tiny", 20, 12, (4,), is_steady=True)
    found = Steady(core, level_of(workload, 4, 3.0)).measure()
    assert sorted(asked[:4]) == [(20, 12), (23, 9), (26, 6), (29, 3)]
    assert set(asked[4:]) == {(20, 12)}
    assert found["ok"] == pytest.approx(found["raw_tok_s"] * found["seconds"] / 12, rel=0.05)
    assert found["ok"] > 4
    assert not core.has_work
    assert Steady(core, level_of(workload, 4, 0.0)).measure()["errors"] == {"unsteady": 4}
    assert not core.has_work


def test_requests_with_cached_prompts_find_them_in_blocks_of_their_own() -> None:
    options = {"model": "quire-tiny", "device": "cpu", "num_blocks": 64, "max_num_seqs": 3}
    with cached_prompt_requests():
        core, _ = start_engine(EngineConfig.from_options(**options, enable_prefix_caching=False))
    sampling = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    for name in (CACHED_PROMPT + "1", CACHED_PROMPT + "2", "3"):
        prompt = list(range(1000, 1100))
        core.handle(AddRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))
    deltas = core.step().deltas
    assert core.stats.num_free_blocks == 64 - 3 * 7
    while core.has_work:
        deltas += core.step().deltas
    cached = {delta.request_id: delta.num_cached_tokens for delta in deltas if delta.finish_reason}
    assert cached == {CACHED_PROMPT + "1": 96, CACHED_PROMPT + "2": 96, "3": 0}
    tokens = [d.token_ids for d in deltas if d.request_id.startswith(CACHED_PROMPT)]
    assert sum(map(len, tokens)) == 6
    assert core.stats.num_free_blocks == 64
    assert core.stats.num_shared_blocks == 0


def test_figures() -> None:
    results = [
        RequestResult(0.0, 0.0, 0.1 * n, 0.1 * n + 0.02, 1.0, 3, 30, 3, [0.005, 0.015])
        for n in (1, 2, 3)
    ]
    results.append(RequestResult(0.0, error="HTTP 503"))
    found = summarize(level_of(VOICE), results, 0.5)
    assert (found["n"], found["ok"], found["errors"]) == (4, 3, {"HTTP 503": 1})
    assert (found["ttft_p50"], found["ttft_p99"]) == (200.0, 300.0)
    assert (found["itl_p50"], found["itl_p99"], found["tpot_p50"]) == (5.0, 15.0, 10.0)
    assert (found["tok_s"], found["req_s"], found["total_tok_s"]) == (9.0, 3.0, 99.0)
    assert found["prompt_tok_s"] == 90.0
    assert "HTTP 503" in line(found)


def test_a_level_without_answers_has_no_figures() -> None:
    found = summarize(level_of(VOICE), [RequestResult(0.0, error="unfinished")], 0.0)
    assert found["ok"] == 0
    assert "tok_s" not in found


def test_a_shape_gets_a_tokenizer_of_its_size(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(make_folder(SHAPES / "llama-3.1-8b", tmp_path))
    assert tokenizer.vocab_size == 128_256
    assert tokenizer.eos_token_id == 128_001
    ids = [72, 105, 300, 301, 127_999]
    assert tokenizer.decode(ids).count(" ") == 2  # before words of odd ids
    assert tokenizer.decode([128_001]) == ""


def test_ratios_above_one_are_better(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(**figures: Any) -> dict[str, Any]:
        return {"workload": "voice-8b", "label": "bf16", "level": 1} | figures

    ours = {"levels": [row(ttft_p50=25, itl_p50=2.5, tok_s=400, ok=8)], "starts": []}
    monkeypatch.setattr("serving_table.tracked", lambda _name: ours)
    peer = {"source": "vLLM.", "starts": [], "levels": [row(ttft_p50=50, itl_p50=5, tok_s=200)]}
    text = vllm_serving(peer | {"saturation": {"rewrite-1b": 1213}})
    assert "| 1 | 50 / - · 5 / - · 200 | 25 / - · 2.5 / - · 400 | 2.00 · 2.00 · 2.00 |" in text
