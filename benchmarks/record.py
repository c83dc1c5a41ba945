"""Result files: what was measured, on what, with which versions and which command.

Not a program; the benchmarks share it. Unless QUIRE_RECORD=1 is set, or --save is given, they write
to a folder of their own, and not over the results that the documents show.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

TRACKED = Path(__file__).parent / "results"  # those that the documents show
RECORDS = os.environ.get("QUIRE_RECORD") == "1"
RESULTS = TRACKED if RECORDS else TRACKED.with_name("local-results")  # where measurements go
PACKAGES = ("quire", "torch", "transformers", "triton", "numpy")
# where a result goes, and what is of one machine
LEFT_OUT = ("--cache", "--out", "--under", "--before", "--old", "--new", "--work")


def parser(doc: str | None, name: str = "") -> argparse.ArgumentParser:
    """A program's parser: its docstring as help, and where its result goes.

    name: of the result file, unless it is told another one; without it there is no such option.
    """
    made = argparse.ArgumentParser(
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # see _folder
    )
    if name:
        made.add_argument("--name", default=name, help="of the result file")
    made.add_argument("--out", type=Path, default=_folder(), help="folder of the result file")
    made.add_argument("--save", action="store_true", help="replace the result of the documents")
    return made


def require(*modules: str) -> None:
    """End with the remedy where one of these cannot be imported."""
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        names = " and ".join(missing)
        sys.exit(f"{names}: not installed; pip install -e '.[bench,fuzz]' in the source tree")


def require_gpu() -> None:
    """End with the remedy where there is no GPU: figures of GPUs are not measured elsewhere."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("no GPU was found, and these figures are of GPUs; run it where there is one")


def installed(**more: str) -> dict[str, str]:
    """The environment of a process whose start is timed: what Python compiles may stay on disk.

    An installation has it there; some environments for development forbid to write it.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return env | more


def command() -> str:
    """The command line of this program, but for LEFT_OUT."""
    words, chosen = iter(sys.argv[1:]), []
    for word in words:
        if word in LEFT_OUT:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in LEFT_OUT)):
            chosen.append(word)
    return shlex.join(["python", Path(sys.argv[0]).name, *chosen])


def save(name: str, measured: dict[str, Any], folder: Path | None = None) -> Path:
    """Write `<name>.json` in a folder and return its path. folder: by default as said above."""
    folder = folder or _folder()
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(text_of(_circumstances() | measured))
    if folder == RESULTS != TRACKED:
        print(f"saved in {path}; QUIRE_RECORD=1 replaces {TRACKED / path.name}", file=sys.stderr)
    return path


def _folder() -> Path:
    return TRACKED if "--save" in sys.argv else RESULTS


def tracked(name: str) -> dict[str, Any]:
    """A result that the documents show."""
    found: dict[str, Any] = json.loads((TRACKED / f"{name}.json").read_text())
    return found


def earlier_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a result file, each with date and command of its run; none without a file."""
    if not path.is_file():
        return []
    found = json.loads(path.read_text())
    return [{name: found[name] for name in ("date", "command")} | row for row in found["rows"]]


def text_of(result: dict[str, Any]) -> str:
    """A result as JSON: each item of its lists on a line, numbers with six digits."""
    parts = []
    for name, value in json.loads(json.dumps(result), parse_float=_six_digits).items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(json.dumps(each) for each in value) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _six_digits(number: str) -> float:
    return float(f"{float(number):.6g}")


def _circumstances() -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "command": command(),
        "hardware": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),  # that the process may use
            "instructions": _instructions(),
            "memory_gib": round(
                os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1
            ),
        },
        "versions": {"python": platform.python_version()} | _versions(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    return _cpuinfo("model name") or platform.processor()


def _instructions() -> list[str]:
    """The instruction sets of the processor that speed up GEMMs."""
    flags = cpu_flags()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    return [flag for flag in wanted if flag in flags]


def cpu_flags() -> list[str]:
    """Flags of the processor, by the kernel's names; none where it has no such list."""
    return _cpuinfo("flags").split()


def _cpuinfo(field: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(field):
            return line.split(":", 1)[1].strip()
    return ""
