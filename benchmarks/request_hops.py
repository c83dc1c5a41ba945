"""Counts the hops of a chat request and of a weight: functions and files of Quire that run for it.

    python benchmarks/request_hops.py [--before OLD] [--save]

A request passes the server, with the tests' scripted engine, and an engine, by LLM.chat; each has
answered one before. A weight passes what takes or returns an array of at least MIN_NUMBERS while an
engine in INT8 starts for the first time. Comprehensions are no hops.

--before: a checkout of another commit, with its native library built, to be counted as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import record

MIN_NUMBERS = 4096
CHAT = [{"role": "user", "content": "red runing shoes"}]


def hops(run: Callable[[], object], *, of_weights: bool = False) -> dict[str, int]:
    """Functions of Quire that `run` calls, in its thread or a new one, and files of these."""
    found = set[tuple[str, str]]()

    def note(frame: FrameType, event: str, result: Any) -> None:
        _, is_ours, file = frame.f_code.co_filename.partition("/src/quire/")
        if is_ours and event in ("call", "return") and not frame.f_code.co_name.startswith("<"):
            values = [result] if event == "return" else frame.f_locals.values()
            if any(map(_is_weight, values)) if of_weights else event == "call":
                found.add((file, frame.f_code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    run()
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]  # as sys.setprofile
    return {"functions": len(found), "files": len({file for file, _ in found})}


def _is_weight(value: Any) -> bool:
    is_array = type(value).__name__ in ("ndarray", "memmap", "Tensor", "Parameter")
    return is_array and len(value.shape) > 0 and value.nbytes // value.itemsize >= MIN_NUMBERS


def measure(root: str) -> dict[str, Any]:
    """The hops in a checkout."""
    sys.path[:0] = [f"{root}/src", f"{root}/tests/server"]
    from asgi_client import call  # of the tests
    from fake_engine import FakeEngine

    from quire import LLM, SamplingParams
    from quire.server.app import build_app
    from quire.server.settings import ServerSettings

    app, params = build_app(FakeEngine(), ServerSettings()), SamplingParams(max_tokens=4)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options: Any = {"quantization": "int8", "prepared_weights": folder}
        found = {"weight": hops(lambda: LLM(**options), of_weights=True)}
        with LLM(**options) as llm:
            paths: dict[str, Callable[[], object]] = {
                "request_server": lambda: call(app, "/v1/chat/completions", {"messages": CHAT}),
                "request_engine": lambda: llm.chat(CHAT, params, use_tqdm=False),
            }
            for name, path in paths.items():
                path()
                found[name] = hops(path)
        for thread in threading.enumerate():
            if thread.name == "quire-prepared":  # writes into the folder
                thread.join()
    return found


if __name__ == "__main__":
    parser = record.parser(__doc__, "request_hops")
    parser.add_argument("--before", metavar="FOLDER")
    parser.add_argument("--root", default=str(Path(__file__).parents[1]), help="the checkout")
    args = parser.parse_args()
    result = {"after": measure(args.root)}
    if args.before:
        command = [sys.executable, __file__, "--root", args.before]
        other = subprocess.run(command, capture_output=True, text=True, check=True)
        result["before"] = json.loads(other.stdout)["after"]
    print(json.dumps(result))
    record.save(args.name, result, args.out)
