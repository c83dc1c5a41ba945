"""One start of Quire in a process of its own: `cpu_start.py` runs it, with the settings as JSON.

The last line that it prints is what it found, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from peers.worker import age, peak_bytes

FIRST_PROMPT = 16  # tokens of the prompt whose answer ends the start
PATIENCE = 60.0  # seconds for prepared weights to be written


def main() -> None:
    begin, before = time.monotonic(), age()
    settings = json.loads(sys.argv[1])
    from quire.config import EngineConfig
    from quire.engine.startup.torch_import import dedicated_start

    config = EngineConfig.from_options(**settings)
    with dedicated_start(config):
        from quire.core.messages import AddRequest
        from quire.core.sampling_params import SamplingParams
        from quire.engine.startup.footprint import footprint_of
        from quire.engine.startup.start_engine import start_engine

        core, info = start_engine(config, begin=begin)
    ready = age()
    sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    prompt = list(range(FIRST_PROMPT))
    core.handle(AddRequest(request_id="first", prompt_token_ids=prompt, sampling=sampling))
    while not any(delta.token_ids for delta in core.step().deltas):
        pass
    first, plan = age(), footprint_of(config)
    phases = {"interpreter": before} | info.seconds | {"first step": first - ready}
    found: dict[str, Any] = {"phases": phases, "first_token_s": first}
    found |= {"peak_gb": peak_bytes() / 1e9, "base_gb": plan.base / 1e9}
    found |= {"weights_gb": plan.weights / 1e9, "kv_gb": plan.kv_cache / 1e9}
    print(json.dumps(found), flush=True)
    _wait_for_prepared(Path(settings["prepared_weights"]))


def _wait_for_prepared(folder: Path) -> None:
    """Wait until the thread has written them, so that the next start finds them."""
    end = time.monotonic() + PATIENCE
    while not list(folder.glob("*.safetensors")) and time.monotonic() < end:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
