"""Virtual environments for the peers, and the forms of the checkpoint that each one reads.

Everything is made once, below one cache folder, and nothing is fetched but packages from PyPI.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from peers.checkpoint import write_checkpoint
from peers.rows import Row

BENCHMARKS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Peer:
    """How an engine gets there. packages: none means this interpreter, which has it already.

    unwanted: packages that others drag in and that break them. converter: the module that makes
    its form of the checkpoint. environment: while packages are built.
    """

    module: str
    packages: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    converter: str | None = None
    environment: tuple[tuple[str, str], ...] = ()


PEERS = {
    "llama_cpp": Peer(
        "peers.llama_cpp_engine",
        ("llama-cpp-python", "gguf"),
        ("--no-binary", "llama-cpp-python"),
        converter="peers.to_gguf",
        # built here for this processor, without the parts that need a network or pictures
        environment=(("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAVA_BUILD=OFF"),),
    ),
    "openvino": Peer(
        "peers.openvino_engine",
        ("openvino-genai", "openvino-tokenizers", "nncf", "optimum-intel[openvino]"),
        # the usual torchvision is one for CUDA, which a torch for CPUs cannot load
        unwanted=("torchvision",),
        converter="peers.to_openvino",
    ),
    "transformers": Peer("peers.transformers_engine"),
    "quire": Peer("peers.quire_engine"),
    "machine": Peer("peers.machine"),
}


def python_of(engine: str, cache: Path, here: Collection[str] = ()) -> Path:
    """The interpreter that an engine runs in; its environment is made where there is none.

    here: engines that this interpreter has, whoever installed them.
    """
    peer = PEERS[engine]
    if engine in here or not peer.packages:
        return Path(sys.executable)
    folder = cache / engine
    done = folder / "installed"  # what is in it: another list makes it anew
    wanted = " ".join((*peer.packages, *peer.options))
    python = folder / "bin" / "python"
    if not done.is_file() or done.read_text() != wanted:
        _say(f"installing {engine} into {folder}; a build takes minutes")
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip"]
        environment = os.environ | dict(peer.environment)
        subprocess.run(
            [*pip, "install", *peer.packages, *peer.options], check=True, env=environment
        )
        if peer.unwanted:
            subprocess.run([*pip, "uninstall", "--yes", *peer.unwanted], check=True)
        done.write_text(wanted)
    return python


def make_models(rows: list[Row], shape: Path, cache: Path, here: Collection[str] = ()) -> Path:
    """The folder that holds every model the rows name."""
    folder = cache / shape.name
    checkpoint = folder / "checkpoint"
    if not (checkpoint / "model.safetensors").is_file():
        _say(f"writing random weights to {checkpoint}")
        write_checkpoint(shape, checkpoint)
    for engine in dict.fromkeys(row.engine for row in rows):
        peer = PEERS[engine]
        missing = [r for r in rows if r.engine == engine and not (folder / r.model).exists()]
        if peer.converter and missing:
            forms = [row.weights for row in missing]
            _say(f"converting the checkpoint for {engine}: {', '.join(forms)}")
            target = (folder / missing[0].model).parent
            python = python_of(engine, cache, here)
            command = [str(python), "-m", peer.converter, str(checkpoint), str(target), *forms]
            offline = os.environ | {"HF_HUB_OFFLINE": "1"}
            subprocess.run(command, check=True, cwd=BENCHMARKS, env=offline)
    return folder


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
