"""Virtual environments for the peers, and the formats of the checkpoint that each one reads.

Everything is made once, below one cache folder, and nothing is fetched but packages from PyPI; with
a folder of wheels not even those.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from record import cpu_flags

from peers.checkpoint import write_checkpoint
from peers.rows import Row

BENCHMARKS = Path(__file__).parents[1]


# instructions that ggml can be compiled with, by the kernel's names
INSTRUCTIONS = {
    "sse4_2": "SSE42",
    "f16c": "F16C",
    "fma": "FMA",
    "bmi2": "BMI2",
    "avx": "AVX",
    "avx2": "AVX2",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_tile": "AMX_TILE",
    "amx_int8": "AMX_INT8",
    "amx_bf16": "AMX_BF16",
}


def _cmake_options() -> str:
    """llama.cpp for this processor, without the parts that need a network or pictures.

    Instructions are named. All of them (`GGML_NATIVE`) would be those of AVX512-FP16, too, with
    which ggml takes 128 numbers at a time, and heads of 64 one by one: attention many times slower.
    """
    has = cpu_flags()
    named = {f"GGML_{name}": flag in has for flag, name in INSTRUCTIONS.items()}
    options = {"GGML_NATIVE": not any(named.values()), "LLAVA_BUILD": False} | named
    return ";".join(f"-D{name}={'ON' if on else 'OFF'}" for name, on in options.items())


@dataclass(frozen=True)
class Peer:
    """Installation of an engine. packages: none means this interpreter, which has it already.

    unwanted: packages that others drag in and that break them. converter: the module that makes
    its format of the checkpoint. environment: while packages are built.
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
        (
            *("--no-binary", "llama-cpp-python"),
            *("--config-settings", f"cmake.args={_cmake_options()}"),
            "--no-cache-dir",  # there may be a wheel that was built with other options
        ),
        converter="peers.to_gguf",
        environment=(("CXXFLAGS", f"-include {Path(__file__).with_name('amx_memory.h')}"),),
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


@dataclass(frozen=True)
class PeerCache:
    """Paths of engines and models, and the sources of the engines.

    cache: holds environments and models, made once. here: engines that this interpreter has,
    whoever installed them. wheels: for a machine without a network, a folder with one folder of
    wheels for each engine; what they need beside each other is what this interpreter has.
    """

    cache: Path
    here: Collection[str] = ()
    wheels: Path | None = None

    def python_of(self, engine: str) -> Path:
        """The interpreter that an engine runs in; its environment is made where there is none."""
        peer = PEERS[engine]
        if engine in self.here or not peer.packages:
            return Path(sys.executable)
        folder = self.cache / engine
        wheels = None if self.wheels is None else sorted((self.wheels / engine).glob("*.whl"))
        named = (*peer.packages, *peer.options) if wheels is None else [w.name for w in wheels]
        done = folder / "installed"  # what is in it: another list makes it anew
        if not done.is_file() or done.read_text() != " ".join(named):
            _say(f"installing {engine} into {folder}; a build takes minutes")
            if wheels is None:
                _install(peer, folder)
            else:
                _install_wheels(wheels, folder)
            done.write_text(" ".join(named))
        return folder / "bin" / "python"

    def models(self, rows: list[Row], shape: Path) -> Path:
        """The folder that holds every model the rows name; what is missing is made."""
        folder = self.cache / shape.name
        checkpoint = folder / "checkpoint"
        if not (checkpoint / "model.safetensors").is_file():
            _say(f"writing random weights to {checkpoint}")
            write_checkpoint(shape, checkpoint)
        for engine in dict.fromkeys(row.engine for row in rows):
            missing = [r for r in rows if r.engine == engine and not (folder / r.model).exists()]
            if missing and PEERS[engine].converter:
                self._convert(engine, checkpoint, folder, missing)
        return folder

    def _convert(self, engine: str, checkpoint: Path, folder: Path, rows: list[Row]) -> None:
        formats = list(dict.fromkeys(Path(row.model).stem for row in rows))
        _say(f"converting the checkpoint for {engine}: {', '.join(formats)}")
        target = (folder / rows[0].model).parent
        command = [str(self.python_of(engine)), "-m", str(PEERS[engine].converter)]
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}
        subprocess.run(
            [*command, str(checkpoint), str(target), *formats],
            check=True,
            cwd=BENCHMARKS,
            env=offline,
        )


def _install(peer: Peer, folder: Path) -> None:
    """An environment with a peer's packages from PyPI."""
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    environment = os.environ | dict(peer.environment)
    subprocess.run([*pip, "install", *peer.packages, *peer.options], check=True, env=environment)
    if peer.unwanted:
        subprocess.run([*pip, "uninstall", "--yes", *peer.unwanted], check=True)


def _install_wheels(wheels: list[Path], folder: Path) -> None:
    """An environment with these wheels before all that this interpreter has."""
    venv.create(folder, clear=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    (packages / "this_interpreter.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    plain = ["--no-index", "--no-deps", "--no-compile"]  # Python compiles what it imports
    subprocess.run([*pip, "install", *plain, *map(str, wheels)], check=True)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
