"""Half of torch waits until someone looks into it, and is then what it always is."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from quire.engine.startup.deferred_imports import (
    OF_ANY_TORCH,
    OF_TRIED_TORCH,
    Waiting,
    names_that_wait,
)

PROGRAM = """
import gc, inspect, os, sys
from quire.engine.startup.lean_import import _quick_look_ups, import_lean
environment = dict(os.environ)
look_up, frame = inspect.getmodule, sys._getframe()
with _quick_look_ups():
    assert inspect.getmodule(frame) is sys.modules["__main__"]
    assert inspect.getmodule(import_lean).__name__ == "quire.engine.startup.lean_import"
import_lean()
assert inspect.getmodule is look_up and os.environ == environment
assert not gc.isenabled()
import torch
assert "torch._meta_registrations" in sys.modules and "torch._refs" not in sys.modules
torch.nn.Linear(4, 4, device="meta")
assert torch.mm(torch.ones(2, 3), torch.ones(3, 2)).sum() == 12
assert callable(sys.modules["torch._meta_registrations"].register_meta)
assert "torch._refs" in sys.modules
"""


COMMAND = """
import gc, sys
from quire.config import EngineConfig
from quire.engine.startup.lean_import import import_torch, lean_start
with lean_start(EngineConfig.from_options(load_format="null")):
    assert gc.isenabled()
with lean_start(EngineConfig.from_options(device="cpu")):
    assert "torch" not in sys.modules and not gc.isenabled()
    import_torch()
    assert "torch" in sys.modules and not gc.isenabled()
assert gc.isenabled() and "torch._refs" not in sys.modules
with lean_start(EngineConfig.from_options(device="cpu")):
    assert gc.isenabled()
"""


def run(program: str, *args: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", program, *args]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", [PROGRAM, COMMAND], ids=["engine", "command"])
def test_it_waits_and_is_there_when_asked_for(program: str) -> None:
    run(program)


def torch_folder() -> Path:
    spec = PathFinder.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


TRIED = pytest.mark.skipif(
    names_that_wait(torch_folder()) == OF_ANY_TORCH, reason="a torch of which little waits"
)

ENGINE = """
import sys
from quire.engine.startup.lean_import import import_lean
import_lean()
from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.startup.start_engine import start_engine
core, _ = start_engine(EngineConfig.from_options(device="cpu", num_blocks=8))
sampling = SamplingParams(max_tokens=2, logprobs=1)
core.handle(AddRequest(request_id="1", prompt_token_ids=[7, 9], sampling=sampling))
while core.has_work:
    assert all(delta.error is None for delta in core.step().deltas)
assert not {"sympy", "torch._refs", "torch.fx.node"} & sys.modules.keys()
"""


@TRIED
def test_an_engine_looks_into_none() -> None:
    run(ENGINE)


# What torch's modules have, with the names of functions and types, so that no stand-in is left.
WHOLE = """
import json, sys
from types import FunctionType
if len(sys.argv) > 1:
    from quire.engine.startup.lean_import import import_lean
    import_lean()
    import torch.utils.data
    exec(sys.argv[1])
import torch

def told(thing):
    named = isinstance(thing, type | FunctionType)
    return f"{thing.__module__}.{thing.__qualname__}" if named else type(thing).__name__

found = [(name, vars(m)) for name, m in sys.modules.items() if name.partition(".")[0] == "torch"]
modules = {name: m for name, m in found if "__file__" in m}
print(json.dumps({name: {n: told(v) for n, v in m.items()} for name, m in modules.items()}))
"""


@TRIED
def test_who_looks_into_one_has_all_of_torch() -> None:
    looks = (
        "assert torch.utils.data.DataLoader([1, 2]).batch_size == 1",
        "assert callable(torch.vmap(torch.neg))",
        # and who asked where one lies, which nobody imports
        "import importlib.util; assert importlib.util.find_spec('torch.ao.ns'); torch.optim.SGD",
    )
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(run, WHOLE)
        found = list(pool.map(lambda look: run(WHOLE, look), looks))
    for each in found:
        assert json.loads(each) == json.loads(plain.result())


def test_little_waits_of_a_torch_that_is_not_known(tmp_path: Path) -> None:
    def names(version: str) -> tuple[str, ...]:
        (tmp_path / "version.py").write_text(f"__version__ = '{version}'\n")
        return tuple(names_that_wait(tmp_path))

    assert names("2.13.0+cpu") == OF_ANY_TORCH + OF_TRIED_TORCH
    assert names_that_wait(tmp_path / "nowhere") == OF_ANY_TORCH
    assert names("2.12.1") == names("2.130.0") == OF_ANY_TORCH
    assert names("2.13.0+cu130") == names("2.13.0+rocm7.0") == OF_ANY_TORCH


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that looks into itself on the way, and takes a while."""
    folder = tmp_path / "slow_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("import time\ntime.sleep(0.05)\ny = []\n")
    inner = "import sys\nfrom . import y\nassert not hasattr(sys.modules[__name__], 'x')\nx = 1\n"
    (folder / "inner.py").write_text(inner)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return folder


def test_threads_that_look_at_once_find_the_whole_module(package: Path) -> None:
    with Waiting([package.name]):
        __import__("slow_package.inner")
    module = sys.modules["slow_package.inner"]
    assert "y" not in vars(sys.modules["slow_package"])
    begin = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: module.x, range(4))) == [1] * 4
    assert time.monotonic() - begin >= 0.05
    assert "__getattr__" not in vars(module)
    with pytest.raises(AttributeError, match="no attribute 'z'"):
        _ = module.z


LIBRARY = """
import os, sys
from pathlib import Path
from quire.engine.startup.torch_library import is_for_gpus, open_torch_library, torch_folder
before = dict(os.environ)
library = open_torch_library()
assert open_torch_library() is library and os.environ == before
library.join()
folder = torch_folder()
if (folder / "lib" / "libtorch_cpu.so").exists() and not is_for_gpus(folder):
    assert "libtorch_cpu" in Path("/proc/self/maps").read_text()
assert "torch" not in sys.modules
import torch
assert torch.ones(2).sum() == 2
"""


def test_its_library_is_opened_before_it_is_imported() -> None:
    run(LIBRARY)
