"""What the start of an API process imports."""

from __future__ import annotations

import json
import sys

from child_process import run_to_end

START = """
import json, sys
import msgspec
def refuse(*_):
    raise AssertionError("it evaluates all type annotations again: read __struct_defaults__")
msgspec.structs.fields = refuse
import quire.server.worker
ours = [vars(m) for name, m in sys.modules.items() if name.partition(".")[0] == "quire"]
classes = {value for each in ours for value in each.values() if isinstance(value, type)}
records = [each.__name__ for each in classes if "__dataclass_fields__" in vars(each)]
unneeded = ["torch", "numpy", "prometheus_client", "rich", "quire.compat.import_names",
            "quire.compat.method_names", "quire.compat.server_names", "quire.compat.vllm_names"]
used = [name for name in unneeded if name in sys.modules]
print(json.dumps([len(ours), len(records), used]))
"""
# A module takes 0.2 to 0.5 ms, a dataclass 0.5 to 1 (a msgspec.Struct 0.01).
MOST_MODULES, MOST_DATACLASSES = 245, 8


def test_an_api_process_imports_little_that_it_does_not_need() -> None:
    done = run_to_end([sys.executable, "-c", START])
    assert done.returncode == 0, done.stderr
    num_modules, num_dataclasses, unneeded = json.loads(done.stdout)
    assert (num_modules <= MOST_MODULES, num_dataclasses <= MOST_DATACLASSES) == (True, True)
    assert unneeded == []
