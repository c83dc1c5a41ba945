"""Steps of a model taken apart, as `quire profile` does it, into a result file.

    python benchmarks/step_profile.py                               # the 1B shape, on this machine
    python benchmarks/step_profile.py --model llama-3.1-8b --device cuda --name step_profile_8b

Decode steps of each --batch-sizes with --context tokens, and the prefill of --prefill tokens.
"""

from __future__ import annotations

from pathlib import Path

import record
import torch
from rich.console import Console

from quire.cli.profile import WIDTH, show
from quire.config import EngineConfig
from quire.engine.profile.profile_result import StepShape
from quire.engine.profile.step_profile import profile_step


def main() -> None:
    parser = record.parser(__doc__, "step_profile")
    parser.add_argument("--model", default="llama-3.2-1b", help="a shape's name, or a folder")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch-sizes", default="1,16")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prefill", type=int, default=512)
    args = parser.parse_args()
    shape = Path(__file__).parent / "shapes" / args.model
    config = EngineConfig.from_options(
        model=shape if shape.is_dir() else args.model,
        load_format="dummy" if shape.is_dir() else "auto",
        dtype=args.dtype,
        device=args.device,
        quantization=args.quantization,
        max_model_len=max(args.context, args.prefill),
    )
    steps = [StepShape(int(size), 1, args.context) for size in args.batch_sizes.split(",")]
    steps.append(StepShape(1, args.prefill, args.prefill))
    profiles, is_on_gpu = [], torch.cuda.is_available() and args.device != "cpu"
    gpu = {"gpu": torch.cuda.get_device_name()} if is_on_gpu else {}
    for step in steps:
        profile = profile_step(config, step)
        show(profile, Console(highlight=False, width=WIDTH))
        row = {"model": args.model, "quantization": args.quantization}
        profiles.append(profile.as_json() | row)
        record.save(args.name, gpu | {"profiles": profiles}, args.out)


if __name__ == "__main__":
    main()
