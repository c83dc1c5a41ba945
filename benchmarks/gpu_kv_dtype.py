"""Times a GPU's attention by the data type of the KV cache, and checks it against the reference.

    python benchmarks/gpu_kv_dtype.py --name gpu_kv_dtype --seconds 90 --workers 12

Decodes by context and batch, prompts of 2,048 tokens over a cached prefix, and the QKV projection
with RoPE and the cache's write, each by the engine's own operation with keys and values in
bfloat16, FP8 and INT8, by turns. "int8_any" are INT8 decodes by the kernel of any GPU, "fp8_direct"
and "int8_direct" prompts without dequantizing keys first.
"""

from __future__ import annotations

import itertools
import unittest.mock
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpu_shapes import MODELS, Model
from gpu_timing import (
    DEVICE,
    DTYPE,
    Budget,
    copies_beyond_cache,
    gpu_parser,
    parse_on_gpu,
    precompile,
    read_bandwidth,
    save,
    time_interleaved,
)
from torch import Tensor

from quire.core.layer_spec import KVLayerSpec
from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import AttentionParams, KVScales, ResidualState, RopeWriteKV
from quire.kernels.triton.attention import kv_dequantization
from quire.kernels.triton.attention.attention_plan import make_plan
from quire.kernels.triton.launch.attention_config import decode_config, hopper_config
from quire.kernels.triton.ops import hopper_prompts, paged_attention
from quire.kvcache.kv_sizes import block_bytes
from quire.kvcache.kv_storage import allocate_kv

DTYPES = {"bf16": DTYPE, "fp8": reference.FP8, "int8": torch.int8}
NAMES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8"}
BLOCK = 16
KERNELS = kernels_for("cuda")
# relative errors against the reference, which does not round queries as short prompts in 8 bits do
LIMITS = {"bf16": 0.01, "fp8": 0.03, "int8": 0.01}
LONG_LIMIT = 0.005  # where most queries are of prompts long enough
PROMPTS = {  # queries, earlier keys of each
    "2048 tokens over 0": ([2048], 0),
    "2048 tokens over 6144": ([2048], 6144),
    "2048 tokens over 30720": ([2048], 30720),
    "512 tokens over 8192": ([512], 8192),
    "4 x 512 tokens over 3584": ([512] * 4, 3584),
    "1536 + 16 x 32 tokens over 4096": ([1536] + [32] * 16, 4096),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Queries over caches of several layers, together too large for the cache of a GPU."""

    query: Tensor
    layers: list[tuple[Tensor, ...]]
    layout: BatchLayout
    params: AttentionParams

    def calls(self) -> list[Callable[[], Tensor]]:
        """The engine's operation on each layer."""
        return [lambda layer=layer: self.attention(layer) for layer in self.layers]

    def attention(
        self, layer: tuple[Tensor, ...], op: Callable[..., Tensor] | None = None
    ) -> Tensor:
        """Attention of one layer."""
        keys, values, *scales = layer
        own = (KVScales(*scales),) if scales else ()
        return (op or KERNELS.attention)(self.query, keys, values, self.layout, self.params, *own)


def spec_of(model: Model) -> KVLayerSpec:
    """Keys and values of a layer in the KV cache."""
    return KVLayerSpec(num_heads=model.kv_heads, key_dim=model.head_dim, value_dim=model.head_dim)


def make_case(model: Model, queries: list[int], lens: list[int], kind: str) -> Case:
    """Random numbers in scattered blocks."""
    most = max(-(-n // BLOCK) for n in lens)
    table = torch.randperm(most * len(lens), dtype=torch.int32).view(len(lens), most)
    layout = BatchLayout.build(queries, lens, table.numpy(), BLOCK, DEVICE)
    layer_bytes = block_bytes([spec_of(model)], 1, NAMES[kind]) * sum(lens)
    layers = allocate_kv(
        [spec_of(model)] * copies_beyond_cache(layer_bytes),
        table.numel(),
        BLOCK,
        DTYPES[kind],
        DEVICE,
    )
    for layer in layers:
        for tensor in layer:
            fill(tensor)
    query = torch.randn(sum(queries), model.heads, model.head_dim, device=DEVICE, dtype=DTYPE)
    return Case(query, layers, layout, AttentionParams(model.head_dim**-0.5))


def fill(tensor: Tensor) -> None:
    """Random keys, values or scales, some blocks at a time."""
    for part in tensor.split(max(1, 2**27 // max(1, tensor[0].numel()))):
        if tensor.dtype == torch.int8:
            part.copy_(torch.randint(-127, 128, part.shape, device=DEVICE, dtype=torch.int8))
        elif tensor.dim() == 3:  # scales
            part.copy_(torch.rand(part.shape, device=DEVICE) * 0.02 + 0.005)
        else:
            part.copy_(torch.randn(part.shape, device=DEVICE, dtype=DTYPE))


def any_gpus_decode(case: Case, layer: tuple[Tensor, ...]) -> Tensor:
    """A decode by the kernel of any GPU."""
    keys, values, *scales = layer
    config, layout = decode_config(keys, len(case.query)), case.layout
    plan = layout.once(
        ("any GPU's", config),
        lambda: make_plan(layout, 0, config, 16, keys.shape[2]),
    )
    out = torch.empty_like(case.query)
    paged_attention.decode_attention(
        case.query, keys, values, layout, plan, case.params, out, config,
        scales=KVScales(*scales) if scales else None,
    )  # fmt: skip
    return out


def without_dequantization(case: Case, layer: tuple[Tensor, ...]) -> Tensor:
    """Prompts whose keys in 8 bits are converted for each tile of queries."""
    with unittest.mock.patch.object(hopper_prompts, "choose_dequantization", return_value=None):
        return case.attention(layer)


def time_dequantization(model: Model, num_keys: int, bandwidth: float) -> dict[str, Any]:
    """The conversion alone of a prompt's keys and values."""
    cases = {kind: make_case(model, [2048], [num_keys], kind) for kind in ("fp8", "int8")}
    calls = {}
    for kind, case in cases.items():
        config = hopper_config(case.layers[0][0], split=False)
        chosen = hopper_prompts.choose_dequantization(case.query, case.layers[0][0], config)
        assert chosen is not None
        plan = kv_dequantization.plan_dequantization(case.layout, 0, chosen)
        wide = kv_dequantization.scratch_caches(case.layers[0][0], config.tile)
        calls[kind] = [
            lambda keys=keys, values=values, scales=scales, case=case, plan=plan, wide=wide: (
                kv_dequantization.dequantize_kv(
                    keys, values, tuple(scales) or (None, None), case.layout, plan, wide
                )
            )
            for keys, values, *scales in case.layers
        ]
    us = time_interleaved(calls)
    floor = 6 * model.kv_heads * model.head_dim * num_keys / bandwidth * 1e6
    print(f"dequantization of {num_keys} keys: {us}, floor {floor:.1f} us", flush=True)
    return {"keys": num_keys, "us": us, "floor": floor}


def check(model: Model, kind: str) -> dict[str, Any]:
    """Errors of written numbers and of attention over them, for a mixed batch and for decodes."""
    found: dict[str, Any] = {"kind": kind, "model": model.head_dim}
    for label, queries, lens in (
        ("decodes", [1] * 5, [1, 63, 64, 1000, 4097]),
        ("mixed", [1, 1, 300, 70], [700, 129, 300, 2000]),
        ("long", [1, 1100, 600, 40], [700, 2111, 600, 2000]),
    ):
        case = make_case(model, queries, lens, kind)
        layer = tuple(torch.zeros_like(tensor) for tensor in case.layers[0])
        write_all(model, layer, case.layout, lens)
        ours, twin = case.attention(layer), case.attention(layer, reference.attention)
        found[label] = relative(ours, twin)
        if kind == "int8" and label == "decodes":
            found["decodes, any GPU"] = relative(any_gpus_decode(case, layer), twin)
    limits = dict.fromkeys(found, LIMITS[kind]) | {"long": LONG_LIMIT}
    errors = {key: error for key, error in found.items() if isinstance(error, float)}
    bad = [key for key, error in errors.items() if error > limits[key]]
    print(f"{'WRONG' if bad else 'right'} {found}", flush=True)
    return found


def write_all(
    model: Model, layer: tuple[Tensor, ...], layout: BatchLayout, lens: list[int]
) -> None:
    """Write random keys and values of all tokens by the operation, heads of different sizes."""
    slots = torch.cat(
        [
            (layout.block_table[row, : -(-n // BLOCK), None].long() * BLOCK
             + torch.arange(BLOCK, device=DEVICE)).flatten()[:n]
            for row, n in enumerate(lens)
        ]
    )  # fmt: skip
    heads = model.heads + 2 * model.kv_heads
    fused = torch.randn(len(slots), heads, model.head_dim, device=DEVICE, dtype=DTYPE)
    fused[:, model.heads :] *= torch.rand(len(slots), heads - model.heads, 1, device=DEVICE) + 0.2
    angles = torch.rand(len(slots), model.head_dim, device=DEVICE)
    cos, sin = angles.cos().to(DTYPE), angles.sin().to(DTYPE)
    keys, values, *scales = layer
    own = (KVScales(*scales),) if scales else ()
    KERNELS.rope_write_kv(fused, None, cos, sin, keys, values, slots, *own)
    twins = [torch.zeros_like(tensor) for tensor in layer]
    reference.rope_write_kv(
        fused, None, cos, sin, *twins[:2], slots, *((KVScales(*twins[2:]),) if scales else ())
    )
    for mine, twin in zip(numbers(layer), numbers(tuple(twins)), strict=True):
        error = relative(mine, twin)
        assert error < 0.03, (
            f"what is written is wrong: {error}"
        )  # FP8: the twin rotates in 16 bits


def numbers(layer: tuple[Tensor, ...]) -> list[Tensor]:
    """Keys and values in float32."""
    pairs = zip(layer[:2], layer[2:] or (None, None), strict=True)
    return [reference.dequantize_kv(codes, torch.float32, scales) for codes, scales in pairs]


def relative(ours: Tensor, twin: Tensor) -> float:
    """The relative error of a result."""
    return ((ours.float() - twin.float()).norm() / twin.float().norm()).item()


def time_attention(
    model: Model, queries: list[int], lens: list[int], label: str, bandwidth: float
) -> dict[str, Any]:
    """Microseconds of each type of the cache, and what share of the bandwidth it reads at."""
    cases = {kind: make_case(model, queries, lens, kind) for kind in DTYPES}
    calls = {kind: case.calls() for kind, case in cases.items()}
    if len(queries) == sum(queries):
        case = cases["int8"]
        calls["int8_any"] = [lambda own=own: any_gpus_decode(case, own) for own in case.layers]
    else:
        for kind in ("fp8", "int8"):
            calls[f"{kind}_direct"] = [
                lambda own=own, case=cases[kind]: without_dequantization(case, own)
                for own in cases[kind].layers
            ]
    us = time_interleaved(calls)
    shares = {
        kind: block_bytes([spec_of(model)], 1, NAMES[kind]) * sum(lens) / us[kind] * 1e6 / bandwidth
        for kind in DTYPES
    }
    shown = "  ".join(f"{kind} {each:.1f} ({us['bf16'] / each:.2f})" for kind, each in us.items())
    print(f"{label}: us {shown}; int8 at {shares['int8']:.0%}", flush=True)
    return {"case": label, "head_dim": model.head_dim, "us": us, "share_of_bandwidth": shares}


def time_projection(model: Model, rows: int) -> dict[str, Any]:
    """The QKV projection with RoPE and the cache's write."""
    n, k = model.linear_shapes()["qkv"]
    weights = [
        torch.randn(n, k, device=DEVICE, dtype=DTYPE) for _ in range(copies_beyond_cache(2 * n * k))
    ]
    residual = torch.randn(rows, k, device=DEVICE, dtype=DTYPE)
    ones = torch.ones(k, device=DEVICE, dtype=DTYPE)
    squares = residual.float().square().sum(-1)[None].contiguous()
    x = ResidualState(residual, residual, ones, 1e-5, squares if rows <= 64 else None)
    cos, sin = torch.rand(2, rows, model.head_dim, device=DEVICE).to(DTYPE)
    calls = {}
    for kind, dtype in DTYPES.items():
        keys, values, *scales = allocate_kv([spec_of(model)], 256, BLOCK, dtype, DEVICE)[0]
        slots = torch.randperm(256 * BLOCK, device=DEVICE)[:rows]
        own = KVScales(*scales) if scales else None
        rope = RopeWriteKV(model.head_dim, None, cos, sin, keys, values, slots, own)
        calls[kind] = [
            lambda w=w, rope=rope: KERNELS.qkv_rope_write_kv(x, w, None, rope) for w in weights
        ]
    us = time_interleaved(calls)
    print(f"qkv of {rows} rows: " + "  ".join(f"{kind} {t:.2f} us" for kind, t in us.items()))
    return {"rows": rows, "head_dim": model.head_dim, "us": us}


def compile_case(name: str, kind: str, queries: list[int], lens: list[int]) -> None:
    """Run one small case once."""
    case = make_case(MODELS[name], queries, lens, kind)
    case.attention(case.layers[0])
    without_dequantization(case, case.layers[0])
    if len(queries) == sum(queries) and kind == "int8":
        any_gpus_decode(case, case.layers[0])
    torch.cuda.synchronize()


def main() -> None:
    """Check, then time what the command line names."""
    parser = gpu_parser(__doc__, "gpu_kv_dtype", 90.0)
    parser.add_argument("--model", default="8b", choices=MODELS)
    parser.add_argument("--contexts", type=int, nargs="*", default=[1024, 8192, 32768])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16, 64])
    args = parse_on_gpu(parser)
    budget, model = Budget(args.seconds), MODELS[args.model]
    shapes = [([1] * batch, [64] * batch) for batch in (5, *args.batches)]
    shapes += [([300, 70], [300, 2000]), ([2048], [2048]), ([70], [2000]), ([512], [512])]
    cases = [(args.model, kind, *shape) for kind in DTYPES for shape in shapes]
    precompile(compile_case, cases, args.workers, budget)
    checks = [check(model, kind) for kind in DTYPES]
    bandwidth = read_bandwidth()
    rows: list[dict[str, Any]] = []
    for context, batch in itertools.product(args.contexts, args.batches):
        if budget.left > 10:
            label = f"{batch} decodes of {context}"
            rows.append(time_attention(model, [1] * batch, [context] * batch, label, bandwidth))
            torch.cuda.empty_cache()
    for label, (queries, prefix) in PROMPTS.items():
        if budget.left > 5:
            lens = [prefix + n for n in queries]
            rows.append(time_attention(model, queries, lens, label, bandwidth))
            torch.cuda.empty_cache()
    dequantized = [
        time_dequantization(model, n, bandwidth) for n in (2048, 8192, 32768) if budget.left > 4
    ]
    projections = [time_projection(model, m) for m in (1, 16, 64, 2048) if budget.left > 3]
    sizes = {kind: block_bytes([spec_of(model)], BLOCK, name) for kind, name in NAMES.items()}
    capacity = {kind: sizes["bf16"] / size for kind, size in sizes.items()}
    print(f"tokens in the same memory: {capacity}")
    save(args, read_bandwidth=bandwidth, checks=checks, attention=rows, dequantization=dequantized,
         projections=projections, capacity=capacity)  # fmt: skip


if __name__ == "__main__":
    main()
