"""A dedicated start imports what it needs and leaves the process as it was."""

from __future__ import annotations

import sys

import pytest
from child_process import run_to_end

IMPORT = """
import gc, os, signal, sys
from quire.config import EngineConfig
from quire.engine.startup.torch_import import dedicated_start, import_torch
environment = dict(os.environ)
with dedicated_start(EngineConfig.from_options(load_format="null")):
    assert gc.isenabled()
with dedicated_start(EngineConfig.from_options(device="cpu", prepared_weights="none")):
    assert "numpy" in sys.modules and "torch" not in sys.modules and not gc.isenabled()
    import_torch()
    assert "torch" in sys.modules and not gc.isenabled() and "torch._refs" not in sys.modules
    from torch._meta_registrations import register_meta  # somebody needs it after all
    assert callable(register_meta) and "torch._refs" in sys.modules
assert sys.modules["torch._meta_registrations"].register_meta is register_meta
assert gc.isenabled() and os.environ == environment
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
with dedicated_start(EngineConfig.from_options(device="cpu")):
    assert gc.isenabled()
import torch
assert torch.mm(torch.ones(2, 3), torch.ones(3, 2)).sum() == 12
torch.nn.Linear(4, 4, device="meta")
"""

ENGINE = """
import sys
from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.startup.torch_import import dedicated_start
config = EngineConfig.from_options(device="cpu", num_blocks=8, prepared_weights="none")
with dedicated_start(config):
    from quire.engine.startup.start_engine import start_engine
    core, _ = start_engine(config)
sampling = SamplingParams(max_tokens=2, logprobs=1)
core.handle(AddRequest(request_id="1", prompt_token_ids=[7, 9], sampling=sampling))
while core.has_work:
    assert all(delta.error is None for delta in core.step().deltas)
assert "torch" in sys.modules and "torch._refs" not in sys.modules
import torch._meta_registrations
assert callable(torch._meta_registrations.register_meta)
"""


@pytest.mark.parametrize("program", [IMPORT, ENGINE], ids=["import", "engine"])
def test_a_start_in_a_process_of_its_own(program: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = run_to_end(command)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_a_start_wherever_it_comes() -> None:
    """Also where Python ignores errors, and where an error would end in a traceback."""
    program = """
import os
from quire.config import EngineConfig
from quire.engine.startup.torch_import import dedicated_start
class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), 2)
with dedicated_start(EngineConfig.from_options(device="cpu", prepared_weights="none")):
    Interrupted()
    print("it goes on")
"""
    done = run_to_end([sys.executable, "-c", program])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_pytorch_is_whole_after_ctrl_c_in_its_import() -> None:
    """Where PyTorch's library imports NumPy's, which clears what a handler raises there."""
    program = """
import os, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "numpy._core.multiarray":
            os.kill(os.getpid(), 2)
sys.meta_path.insert(0, Interrupt())
from quire.engine.startup.torch_import import import_torch
try:
    import_torch()
except KeyboardInterrupt:
    import torch
    print(torch.ones(2).numpy().sum())
"""
    done = run_to_end([sys.executable, "-c", program])
    assert (done.stdout, done.returncode) == ("2.0\n", 0), done.stderr
