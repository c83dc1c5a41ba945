"""AWQ checkpoints that are wrong: refused by name."""

from __future__ import annotations

import torch
from harmed_checkpoints import cast, configure, drop, refusals, spoil
from quantized_checkpoints import DOWN

test_what_does_not_fit_awq_is_refused_by_name = refusals(
    ("awq", drop("scales"), r"quantized by awq; missing: model.layers.0.mlp.up_proj.scales;"),
    ("awq", cast("scales", torch.int64), r"up_proj.scales .* its data type is I64, not the F16"),
    ("awq", configure(group_size=64), r"is \[(4|8), \d+\], not the \[(2|4), \d+\] of quanti"),
    ("awq", configure(group_size=48), r"is \[(4|8), \d+\], not the \[(3|6), \d+\] of quanti"),
    ("awq", configure(group_size=0), r"group_size is 0; correct quantization_config"),
    ("awq", configure(bits=3), r"quantization_config.bits is 3, but AWQ is read with 4"),
    ("awq", configure(version="gemv"), r"version is 'gemv'; take a checkpoint in AWQ's 'gemm'"),
    (
        "awq",
        configure(quant_method="gptq", desc_act=False),
        r"quantized by gptq; missing: .*qweight",
    ),
    ("awq", configure(quant_method="aqlm"), r"quant_method is 'aqlm', which is not read; take"),
    ("awq", configure(modules_to_not_convert=[]), rf"missing: {DOWN}.qweight"),
    ("awq", configure(modules_to_not_convert="x"), r"set it to a list of strings"),
    ("awq", spoil("scales"), r"up_proj: its scales has a number that is not finite; download"),
)
