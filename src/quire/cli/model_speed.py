"""Measurement of a model on this machine: rate of decoding, and memory.

`measure_speed` starts a process of its own for it, so that the caller's memory is not in the way
and nothing is left behind: `python -m quire.cli.model_speed FOLDER DEVICE` prints JSON.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from quire.model_folder import named_path

if TYPE_CHECKING:
    from quire.llm import LLM

logger = logging.getLogger(__name__)

Speed = dict[str, Any]

STREAMS = (1, 16)
_PROMPT = 16  # tokens
_LEAST, _MOST = 8, 96  # tokens of an answer
_SECONDS = 4.0  # that the runs of one figure may take
_LEAST_RUNS, _MOST_RUNS = 3, 9
_TIMEOUT = 1800.0  # seconds of the whole process: a large model may be read from a slow disk
_BLOCKS = 256  # of the KV cache: more than all streams need


def measure_speed(folder: Path, device: str) -> Speed | None:
    """Tokens a second by streams, bytes of weights in memory, tokens that the KV cache holds.

    Rates are the medians of several runs, with their least and most.

    None, with a warning, where the model does not start here, or takes half an hour.
    """
    command = [sys.executable, "-m", "quire.cli.model_speed", str(folder), device]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        logger.warning(
            "the speed of %s is not measured: it took more than %g s; use a less busy machine",
            *(named_path(folder).name, _TIMEOUT),
        )
        return None
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or [f"status {ran.returncode}"])[-1]
        logger.warning("the speed of %s is not measured: %s", named_path(folder).name, last)
        return None
    found: Speed = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure the model that the command line names."""
    from quire.cli.dry_run import device_memory
    from quire.config import EngineConfig
    from quire.engine.startup.memory_plan import plan_memory
    from quire.llm import LLM

    folder, device = sys.argv[1:]
    options: dict[str, Any] = {"device": device, "quality_gate": "off"}
    config = EngineConfig.from_options(model=folder, **options)
    plan = plan_memory(config, device_memory(config, None))
    with LLM(folder, num_blocks=_BLOCKS, max_num_seqs=max(STREAMS), **options) as llm:
        rates = {str(count): _tokens_per_second(llm, count) for count in STREAMS}
    found = {
        "device": plan.device,
        "tokens_per_second": {count: round(median(each), 1) for count, each in rates.items()},
        "tokens_per_second_range": {
            count: [round(min(each), 1), round(max(each), 1)] for count, each in rates.items()
        },
        "weight_bytes": sum(plan.weights.values()),
        "kv_tokens": plan.num_slots,
    }
    print(json.dumps(found))


def _tokens_per_second(llm: LLM, count: int) -> list[float]:
    """Rates of several runs of `count` answers, after a short one that says how long these are."""
    most = min(_MOST, llm.info.limits.max_model_len - _PROMPT)
    least = min(_LEAST, most)
    _seconds(llm, count, least)
    length = int(_SECONDS / _MOST_RUNS / _seconds(llm, count, least) * least)
    length = max(least, min(most, length))
    rates, end = list[float](), time.monotonic() + _SECONDS
    while len(rates) < _LEAST_RUNS or (len(rates) < _MOST_RUNS and time.monotonic() < end):
        rates.append(count * length / _seconds(llm, count, length))
    return rates


def _seconds(llm: LLM, count: int, length: int) -> float:
    from quire.core.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
    prompts = [[5 + index] * _PROMPT for index in range(count)]
    begin = time.monotonic()
    llm.generate(prompts, params, use_tqdm=False)
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
