"""What torch imports last waits until someone looks into it."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import Loader
from types import ModuleType

import pytest

from quire.engine.lean_import import _Postponed

PROGRAM = """
import gc, inspect, sys
from quire.engine.lean_import import LATER, _quick_look_ups, import_lean
look_up, frame = inspect.getmodule, sys._getframe()
with _quick_look_ups():
    assert inspect.getmodule(frame) is sys.modules["__main__"]
    assert inspect.getmodule(import_lean).__name__ == "quire.engine.lean_import"
import_lean()
assert inspect.getmodule is look_up
assert not gc.isenabled()
import torch
assert LATER in sys.modules and "torch._refs" not in sys.modules
torch.nn.Linear(4, 4, device="meta")
assert torch.mm(torch.ones(2, 3), torch.ones(3, 2)).sum() == 12
assert callable(sys.modules[LATER].register_meta)
assert "torch._refs" in sys.modules
"""


COMMAND = """
import gc, sys
from quire.config import EngineConfig
from quire.engine.lean_import import lean_start
with lean_start(EngineConfig.from_options(load_format="null")):
    assert "torch" not in sys.modules and gc.isenabled()
with lean_start(EngineConfig.from_options(device="cpu")):
    assert "torch" in sys.modules and not gc.isenabled()
assert gc.isenabled() and "torch._refs" not in sys.modules
with lean_start(EngineConfig.from_options(device="cpu")):
    assert gc.isenabled()
"""


@pytest.mark.parametrize("program", [PROGRAM, COMMAND], ids=["engine", "command"])
def test_it_waits_and_is_there_when_asked_for(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Slow(Loader):
    """Of a module that looks into itself on the way."""

    def exec_module(self, module: ModuleType) -> None:
        with pytest.raises(AttributeError, match="no x yet"):
            _ = module.x
        time.sleep(0.05)
        module.x = 1  # type: ignore[attr-defined]


def test_threads_that_look_at_once_find_the_whole_module() -> None:
    module = ModuleType("late")
    _Postponed(Slow()).exec_module(module)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: module.x, range(4))) == [1] * 4
    assert "__getattr__" not in vars(module)
    with pytest.raises(AttributeError, match="no attribute 'y'"):
        _ = module.y


LIBRARY = """
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from quire.engine.lean_import import _open_library
_open_library()
folder = Path(PathFinder.find_spec("torch").origin).parent / "lib"
if (folder / "libtorch_cpu.so").exists() and not (folder / "libtorch_cuda.so").exists():
    assert "libtorch_cpu" in Path("/proc/self/maps").read_text()
assert "torch" not in sys.modules
import torch
assert torch.ones(2).sum() == 2
"""


def test_its_library_is_opened_before_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
