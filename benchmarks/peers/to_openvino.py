"""A checkpoint as OpenVINO's intermediate form, in each type of weights that is asked for.

    python -m peers.to_openvino CHECKPOINT FOLDER f16 int8 int4

Runs in OpenVINO's environment, through optimum-intel, with the settings that its command line has
by default: int8 with a scale for each output, int4 in groups of 128 with zero points, embedding
and head in int8.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

_BITS = {"f16": None, "int8": 8, "int4": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("types", nargs="+", choices=_BITS)
    args = parser.parse_args()
    for name in args.types:
        target = args.folder / name
        if not (target / "openvino_model.xml").is_file():
            convert(args.checkpoint, target, _BITS[name])


def convert(checkpoint: Path, target: Path, bits: int | None) -> None:
    """Export a model. bits: of its weights; None: unchanged."""
    quantization = None if bits is None else OVWeightQuantizationConfig(bits=bits)
    model = OVModelForCausalLM.from_pretrained(
        checkpoint,
        export=True,
        compile=False,
        load_in_8bit=False if bits is None else None,
        quantization_config=quantization,
    )
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    part.rename(target)


if __name__ == "__main__":
    main()
