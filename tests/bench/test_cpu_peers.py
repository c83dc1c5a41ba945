"""benchmarks/cpu_peers.py: how it runs other engines, and what it does with their answers."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
from child_process import run_to_end
from cpu_growth import Work
from cpu_peers import chosen, next_due, result_of
from cpu_tables import cpu_peers
from peers.bench import Worker, WorkerError
from peers.checkpoint import write_checkpoint
from peers.disturbance import busy_seconds, is_disturbed, stolen_seconds
from peers.install import PEERS, PeerCache
from peers.quire_engine import Quire
from peers.rows import all_rows
from peers.worker import age, answer_all, peak_bytes
from record import cpu_flags

from quire.hub import resolve_model
from quire.models.config.model_config import ModelConfig

SHAPE = Path(__file__).parents[2] / "benchmarks" / "shapes" / "llama-3.2-1b"
SCRIPT = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "leave":
        break
    print(json.dumps({"error": "no room"} if request["do"] == "load" else request), flush=True)
"""


def ask_quire(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    answers = io.StringIO()
    answer_all(Quire(), map(json.dumps, requests), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_quire_answers_as_a_peer_does() -> None:
    model = str(resolve_model("quire-tiny"))
    load = {"do": "load", "model": model, "threads": 1, "max_len": 80, "streams": 3}
    loaded, first, again, decode, done = ask_quire(
        load | {"options": {"dtype": "float32"}},
        {"do": "prefill", "prompt": [5, 6, 7] * 7},
        {"do": "prefill", "prompt": [5, 6, 7] * 7},
        {"do": "decode", "streams": 3, "steps": 4},
        {"do": "decode", "streams": 1, "steps": 4},
    )
    assert loaded["settings"]["dtype"] == "float32"
    assert first["token"] == again["token"]
    assert (decode["tokens"], done["tokens"]) == (12, 4)  # one token a stream and step
    assert first["age"] < done["age"]
    assert first["seconds"] > 0.0 < decode["seconds"]


def test_a_request_that_fails_is_reported_and_the_next_one_taken() -> None:
    lost, odd = ask_quire({"do": "prefill", "prompt": [1]}, {"do": "decode", "streams": 1})
    assert "Quire" in lost["error"]
    assert "steps" in odd["error"]


def test_a_process_knows_its_age_and_its_memory() -> None:
    assert 0.0 < age() < 24 * 3600
    held = bytearray(64 << 20)
    assert peak_bytes() > len(held)


def test_workers_are_asked_line_by_line_and_their_failures_have_reasons() -> None:
    worker = Worker([sys.executable, "-c", SCRIPT], threads=1, seconds=60.0)
    try:
        assert worker.ask("prefill", prompt=[1, 2]) == {"do": "prefill", "prompt": [1, 2]}
        with pytest.raises(WorkerError, match="no room"):
            worker.ask("load")
        with pytest.raises(WorkerError, match="asked to leave"):
            worker.ask("leave")
    finally:
        worker.close()


def test_a_worker_that_takes_too_long_is_ended() -> None:
    worker = Worker([sys.executable, "-c", "import time; time.sleep(60)"], 1, seconds=0.2)
    with pytest.raises(WorkerError, match="ended"):
        worker.ask("load")
    worker.close()


RATES = {"read_gb_per_s": 21.0, "float32_tflops": 0.2, "bfloat16_tflops": 0.1, "int8_tops": 0.3}


def measurement(weights: str, speed: float, **more: Any) -> dict[str, Any]:
    found = {"engine": "quire", "weights": weights, "context": 512, "version": "1", "settings": {}}
    found |= {"decode_tokens_per_s": {"1": speed, "8": 3 * speed}, "prefill_tokens_per_s": speed}
    found |= {"first_token_s": 1.0, "peak_gb": 3.0, "peak_gb_all_streams": 3.5}
    found |= {"read_gb_per_s": 20.0, "weights_gb": 2.0, "others_cores": 0.0, "disturbed": False}
    return found | {"rates_before": RATES, "rates_after": RATES} | more


def test_rows_are_medians_in_the_order_of_the_list_without_failed_measurements() -> None:
    measurements = [measurement("float32", speed) for speed in (9.0, 5.0, 7.0)]
    measurements += [measurement("float32", 1.0, disturbed=True)] * 2  # which do not count
    measurements += [measurement("bfloat16", 6.0), {"engine": "openvino", "error": "no room"}]
    result = result_of(measurements)
    assert result["rates"] == RATES
    assert [row["weights"] for row in result["rows"]] == ["bfloat16", "float32"]
    assert result["rows"][1]["decode_tokens_per_s"] == {"1": 7.0, "8": 21.0}
    table = cpu_peers(result | {"threads": 2})
    assert "| **Quire** float32 | **7.0** | **7.0** | **21.0** | 1.0 | 3.00 | 3.50 | 70% |" in table
    assert "Behind a peer with as many bits: in no cell." in table


def test_a_table_marks_every_cell_in_which_a_peer_with_as_many_bits_is_ahead() -> None:
    measurements = [measurement("int8", 7.0), measurement("bfloat16", 5.0)]
    plain = "Q8_0, plain attention"
    measurements += [
        measurement(plain, 8.0, engine="llama_cpp", prefill_tokens_per_s=6.0, peak_gb=3.1)
    ]
    measurements += [
        measurement("int8", 6.0, engine="openvino", prefill_tokens_per_s=9.0, first_token_s=0.5)
    ]
    table = cpu_peers(result_of(measurements) | {"threads": 2})
    line = next(line for line in table.splitlines() if line.startswith("Behind"))
    assert line == (
        "Behind a peer with as many bits: int8: prefill 7.00 (OpenVINO GenAI int8 9.00), decode of "
        "1 7.00 (llama.cpp Q8_0, plain attention 8.00), decode of 8 21.00 (llama.cpp Q8_0, plain "
        "attention 24.00), seconds to a first token 1.00 (OpenVINO GenAI int8 0.50)."
    )


def order_of(disturbed: set[int | str]) -> str:
    """The order in which rows a, b and c are measured.

    disturbed: some by number, or a whole row.
    """
    measurements: list[dict[str, Any]] = []
    while key := next_due(measurements, [(512, "quire", weights) for weights in "abc"], rounds=3):
        measurements.append(
            measurement(key[2], 5.0, disturbed=bool({len(measurements), key[2]} & disturbed))
        )
    return "".join(each["weights"] for each in measurements)


def test_each_round_begins_with_another_row_and_disturbed_measurements_are_repeated_later() -> None:
    assert order_of(set()) == "abcbcacab"
    assert order_of({1}).startswith("abcb")
    given_up = order_of({"c"})
    assert (given_up.count("a"), given_up.count("b"), given_up.count("c")) == (3, 3, 9)


def test_a_measurement_is_disturbed_by_others_and_by_a_machine_that_changes_its_pace() -> None:
    assert not is_disturbed(measurement("int8", 5.0))
    assert is_disturbed(measurement("int8", 5.0, others_cores=0.2))
    for rate in (10.0, 40.0):
        assert is_disturbed(measurement("int8", 5.0, rates_after=RATES | {"read_gb_per_s": rate}))
    assert 0.0 <= stolen_seconds() <= busy_seconds()


def test_llama_cpp_is_built_with_the_instructions_that_the_processor_has() -> None:
    options = PEERS["llama_cpp"].options
    arguments = next(option for option in options if option.startswith("cmake.args="))
    assert ("-DGGML_AVX2=ON" in arguments) == ("avx2" in cpu_flags())
    assert ("-DGGML_NATIVE=ON" in arguments) == (
        "=ON" not in arguments.replace("-DGGML_NATIVE=ON", "")
    )


def test_rows_can_be_chosen_by_engine_and_by_format() -> None:
    assert [row.name for row in chosen(["llama_cpp:Q4_0"])] == ["llama_cpp Q4_0"]
    assert {row.engine for row in chosen(["openvino", "quire"])} == {"openvino", "quire"}
    assert chosen(None) == all_rows()


def test_an_environment_of_wheels_has_what_they_lack_from_this_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    wheels = tmp_path / "wheels" / "openvino"
    wheels.mkdir(parents=True)
    about, files = "openvino_genai-7.dist-info", {"openvino_genai.py": "version = 7"}
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/METADATA"] = "Metadata-Version: 2.1\nName: openvino-genai\nVersion: 7\n"
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(wheels / "openvino_genai-7-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    cache = PeerCache(tmp_path / "cache", here=("transformers",), wheels=tmp_path / "wheels")
    python = cache.python_of("openvino")
    imports = "import numpy, openvino_genai; print(numpy.__file__, openvino_genai.version)"
    done = run_to_end([python, "-c", imports], check=True)
    assert done.stdout.split() == [str(numpy.__file__), "7"]
    done = (tmp_path / "cache" / "openvino" / "installed").stat().st_mtime_ns
    assert cache.python_of("openvino") == python
    assert (tmp_path / "cache" / "openvino" / "installed").stat().st_mtime_ns == done
    assert cache.python_of("transformers") == Path(sys.executable)


def test_the_checkpoint_is_one_that_quire_reads(tmp_path: Path) -> None:
    shape, small = tmp_path / "shape", json.loads((SHAPE / "config.json").read_text())
    small |= {"hidden_size": 64, "head_dim": 2, "intermediate_size": 128, "vocab_size": 300}
    small |= {"num_hidden_layers": 1, "bos_token_id": 298, "eos_token_id": 299}
    shape.mkdir()
    (shape / "config.json").write_text(json.dumps(small))
    model = str(write_checkpoint(shape, tmp_path / "checkpoint"))
    load = {"do": "load", "model": model, "threads": 1, "max_len": 40, "streams": 1}
    loaded, first = ask_quire(load, {"do": "prefill", "prompt": [1, 2, 3]})
    assert loaded["settings"]["dtype"] in ("bfloat16", "float32")
    assert 0 <= first["token"] < 300


def test_the_floor_counts_the_weights_that_linears_read() -> None:
    work = Work(json.loads((SHAPE / "config.json").read_text()), 2.0)
    assert work.num_weights == ModelConfig.from_folder(SHAPE).num_parameters
    rates = {"read_gb_per_s": 20.0, "bfloat16_tflops": 1e3, "float32_tflops": 1e3}
    step = work.decode_floor(2, 1000, rates, "bfloat16")
    assert step == pytest.approx((2 * work.num_weights + 2 * 1000 * 32768) / 20e9)
