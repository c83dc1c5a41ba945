"""Tiny quantized checkpoints, packed here word by word from the documented layouts.

The oracle is transformers' model with the numbers that the codes stand for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from codebook_checkpoints import four_bits, llm_int8, mxfp4, nvfp4
from safetensors.torch import load_file, save_file
from torch import Tensor

SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

Stored = tuple[dict[str, Tensor], Tensor]  # tensors by their names in the module; the numbers
Pack = Callable[[Tensor], Stored]
# of the tensors, and of the config, before they are saved
Change = Callable[[dict[str, Tensor], dict[str, Any]], None]


def stored_in(file: Path, name: str) -> Stored:
    """What a library stored of a layer, and the numbers that it makes of it."""
    start = f"{name}."
    found = {k.removeprefix(start): v for k, v in load_file(file).items() if k.startswith(start)}
    return found, found.pop("numbers")


def grouped(weight: Tensor, bits: int, group: int, symmetric: bool) -> tuple[Tensor, ...]:
    """Codes [N, K], scales and zeros [N, groups] of a rounded weight, and its values.

    The last group may be partial, as GPTQ writes it.
    """
    half, most, k = 2 ** (bits - 1), 2**bits - 1, weight.shape[1]
    size = k if group == -1 else group
    groups = torch.nn.functional.pad(weight, (0, -k % size)).unflatten(1, (-1, size))
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    if symmetric:
        scale = (groups.abs().amax(2) / (half - 1)).half().float()
        zeros = torch.full_like(scale, half)
    else:
        scale = ((high - low) / most).half().float()
        zeros = (-low / scale).round().clamp(0, most)
    codes = ((groups / scale[:, :, None]).round() + zeros[:, :, None]).clamp(0, most)
    numbers = ((codes - zeros[:, :, None]) * scale[:, :, None]).flatten(1)[:, :k].contiguous()
    return codes.flatten(1)[:, :k].int(), scale, zeros.int(), numbers


def words(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Codes [N, K] as a stream of bits in int32 words [N, ceil(K · bits / 32)].

    order: of the codes in a word, where it holds whole ones.
    """
    values = codes.numpy()
    if order is not None:
        values = values.reshape(len(codes), -1, len(order))[:, :, order].reshape(values.shape)
    each = (values[:, :, None] >> np.arange(bits) & 1).reshape(len(codes), -1).astype(np.uint8)
    each = np.pad(each, ((0, 0), (0, -each.shape[1] % 32)))
    return torch.from_numpy(np.packbits(each, 1, "little").view(np.int32))


def awq(group: int, *, symmetric: bool = False) -> Pack:
    def pack(weight: Tensor) -> Stored:
        codes, scale, zeros, numbers = grouped(weight, 4, group, symmetric)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        qweight, qzeros = (words(each.t(), 4, order) for each in (codes, zeros))
        return {"qweight": qweight, "qzeros": qzeros, "scales": scale.t().half()}, numbers

    return pack


def gptq(bits: int, group: int, symmetric: bool, ordered: bool, version: int = 1) -> Pack:
    def pack(weight: Tensor) -> Stored:
        n, k = weight.shape
        size = k if group == -1 else group
        order = torch.randperm(k, generator=torch.Generator().manual_seed(k))
        order = order if ordered else torch.arange(k)
        sorted_codes, scale, zeros, sorted_numbers = grouped(
            weight[:, order], bits, size, symmetric
        )
        codes, numbers = torch.empty_like(sorted_codes), torch.empty_like(sorted_numbers)
        codes[:, order], numbers[:, order] = sorted_codes, sorted_numbers
        g_idx = torch.empty(k, dtype=torch.int32)
        g_idx[order] = torch.arange(k, dtype=torch.int32) // size
        stored = (zeros - int(version == 1)) & (2**bits - 1)
        return {
            "qweight": words(codes.contiguous(), bits).reshape(n, -1).t(),
            "qzeros": words(stored.t(), bits),
            "scales": scale.t().half(),
            "g_idx": g_idx,
        }, numbers

    return pack


def padded_words(codes: Tensor, bits: int) -> Tensor:
    """Codes [N, K] in int32 words [N, ceil(K / (32 // bits))], none of them in two words."""
    each = 32 // bits
    values = np.pad(codes.numpy().astype(np.uint32), ((0, 0), (0, -codes.shape[1] % each)))
    parts = (values[:, index::each] << np.uint32(bits * index) for index in range(each))
    return torch.from_numpy(np.bitwise_or.reduce(list(parts)).view(np.int32))


def packed(
    bits: int,
    group: int,
    symmetric: bool,
    words: Callable[[Tensor, int], Tensor] = words,
    has_zeros_in_bytes: bool = False,
) -> Pack:
    def pack(weight: Tensor) -> Stored:
        codes, scale, zeros, numbers = grouped(weight, bits, group, symmetric)
        tensors = {
            "weight_packed": words(codes, bits),
            "weight_scale": scale.half(),
            "weight_shape": torch.tensor(weight.shape),
        }
        if has_zeros_in_bytes:
            tensors["weight_zero_point"] = (zeros - 2 ** (bits - 1)).to(torch.int8)
        elif not symmetric:
            tensors["weight_zero_point"] = words(zeros.t(), bits).t()
        return tensors, numbers

    return pack


def int8(weight: Tensor) -> Stored:
    codes, scale, _, numbers = grouped(weight, 8, -1, symmetric=True)
    return {"weight": (codes - 128).to(torch.int8), "weight_scale": scale}, numbers


def grouped_bytes(bits: int, group: int, symmetric: bool = True) -> Pack:
    def pack(weight: Tensor) -> Stored:
        codes, scale, zeros, numbers = grouped(weight, bits, group, symmetric)
        signed = [(each - 2 ** (bits - 1)).to(torch.int8) for each in (codes, zeros)]
        tensors = {"weight": signed[0], "weight_scale": scale}
        return tensors if symmetric else tensors | {"weight_zero_point": signed[1]}, numbers

    return pack


def fp8(
    blocks: tuple[int, int] | None,
    scale_name: str = "weight_scale",
    activation_scale: str | None = None,
    scale_dtype: torch.dtype = torch.float32,
) -> Pack:
    """Scales for blocks of this many rows and columns; (1, 0): per output; None: a single one."""

    def pack(weight: Tensor) -> Stored:
        n, k = weight.shape
        rows, columns = (n, k) if blocks is None else (blocks[0], blocks[1] or k)
        scale = torch.zeros(-(-n // rows), -(-k // columns))
        for i in range(len(scale)):
            for j in range(scale.shape[1]):
                block = weight[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
                scale[i, j] = block.abs().max() / 448.0
        if scale_dtype == torch.float8_e8m0fnu:
            scale = scale.log2().ceil().exp2()
        whole = scale.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
        codes = (weight / whole).to(torch.float8_e4m3fn)
        stored = scale.reshape(()) if blocks is None else scale
        tensors = {"weight": codes, scale_name: stored.to(scale_dtype)}
        if activation_scale is not None:
            tensors[activation_scale] = torch.tensor(0.5)
        return tensors, codes.float() * whole

    return pack


def mxfp8(weight: Tensor) -> Stored:
    """Exponents of compressed-tensors and ModelOpt, in bytes."""
    tensors, numbers = fp8((1, 32), scale_dtype=torch.float8_e8m0fnu)(weight)
    return tensors | {"weight_scale": tensors["weight_scale"].view(torch.uint8)}, numbers


def modelopt_block(weight: Tensor) -> Stored:
    tensors, numbers = fp8((128, 128))(weight)
    return tensors | {"weight_scale": tensors["weight_scale"][:, None, :, None]}, numbers


def reciprocal(blocks: tuple[int, int]) -> Pack:
    """FP8 that is divided by its scales, as GPTQModel stores it; powers of two, so exactly."""

    def pack(weight: Tensor) -> Stored:
        name = "weight_scale_inv"
        tensors, numbers = fp8(blocks, name, scale_dtype=torch.float8_e8m0fnu)(weight)
        return tensors | {name: 1 / tensors[name].float()}, numbers

    return pack


def group_config(stored_as: str, activations: Any = None, **weights: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*layers.1.mlp.down_proj"],
    }


@dataclass(frozen=True)
class Method:
    """A quantized checkpoint. kept: how codes run on a CPU; None where they become numbers.

    skipped: modules that are not quantized.
    """

    config: Mapping[str, Any]
    pack: Pack
    native_format: str | None = None
    skipped: tuple[str, ...] = ()


DOWN = "model.layers.1.mlp.down_proj"
AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "sym": True, "desc_act": False}
INT4 = {"type": "int", "num_bits": 4, "symmetric": True, "strategy": "group", "group_size": 32}
INT8 = {"type": "int", "num_bits": 8, "symmetric": True, "strategy": "channel"}
FP8 = {"type": "float", "num_bits": 8, "symmetric": True}
ROUND = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "bits": 4,
    "group_size": 32,
}
ROUND_FP8 = {"quant_method": "auto-round", "data_type": "fp", "bits": 8, "act_bits": 8}
_BITS16 = {"bits": 16, "act_bits": 16, "data_type": "fp"}
DIVIDED = {"quant_method": "fp8", "format": "float8_e4m3fn", "weight_scale_semantics": "inverse"}
TOKENS = {"type": "int", "num_bits": 8, "dynamic": True, "strategy": "token"}
FP8_TOKENS = TOKENS | {"type": "float"}

BITS4 = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_quant_storage": "uint8",
}
MX = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}

METHODS = {
    "awq": Method(
        AWQ | {"group_size": 32, "modules_to_not_convert": [DOWN]}, awq(32), "INT4_ZEROS", (DOWN,)
    ),
    "awq_g128": Method(AWQ | {"group_size": 128}, awq(128), "INT4_ZEROS"),
    "awq_channel": Method(AWQ | {"group_size": -1}, awq(-1), "INT4_ZEROS"),
    "awq_symmetric": Method(  # as AutoRound and GPTQModel write it, with zero points all the same
        AWQ | {"group_size": 64, "zero_point": False}, awq(64, symmetric=True), "INT4_ZEROS"
    ),
    "gptq": Method(GPTQ | {"group_size": 32}, gptq(4, 32, True, False), "INT4"),
    "gptq_channel": Method(GPTQ | {"group_size": -1}, gptq(4, -1, True, False), "INT4"),
    "gptq_order": Method(
        GPTQ | {"group_size": 32, "desc_act": True}, gptq(4, 32, True, True), "INT4"
    ),
    "gptq_zeros_order": Method(
        GPTQ | {"group_size": 64, "desc_act": True, "sym": False},
        gptq(4, 64, False, True),
        "INT4_ZEROS",
    ),
    "gptq_v2": Method(
        GPTQ | {"group_size": 64, "sym": False, "checkpoint_format": "gptq_v2"},
        gptq(4, 64, False, False, 2),
        "INT4_ZEROS",
    ),
    "gptq_8": Method(GPTQ | {"bits": 8, "group_size": 32}, gptq(8, 32, True, False)),
    "gptq_8_order": Method(
        GPTQ | {"bits": 8, "group_size": 32, "desc_act": True, "sym": False},
        gptq(8, 32, False, True),
    ),
    "gptq_g16": Method(GPTQ | {"group_size": 16}, gptq(4, 16, True, False)),
    "gptq_partial": Method(GPTQ | {"group_size": 96}, gptq(4, 96, True, False), "INT4"),
    "gptq_partial_order": Method(
        GPTQ | {"group_size": 96, "desc_act": True, "sym": False},
        gptq(4, 96, False, True),
        "INT4_ZEROS",
    ),
    "gptq_2": Method(GPTQ | {"bits": 2, "group_size": 32}, gptq(2, 32, True, False), "INT4"),
    "gptq_3_order": Method(
        GPTQ | {"bits": 3, "group_size": 64, "desc_act": True, "sym": False},
        gptq(3, 64, False, True),
        "INT4_ZEROS",
    ),
    "gptq_8_partial": Method(GPTQ | {"bits": 8, "group_size": 96}, gptq(8, 96, True, False)),
    "gptq_rules": Method(
        GPTQ | {"group_size": 32, "dynamic": {r"-:.*layers\.1\.mlp\.down_proj": {}}},
        gptq(4, 32, True, False),
        "INT4",
        (DOWN,),
    ),
    "packed": Method(group_config("pack-quantized", **INT4), packed(4, 32, True), "INT4", (DOWN,)),
    "packed_zeros": Method(
        group_config("pack-quantized", **INT4 | {"group_size": 64, "symmetric": False}),
        packed(4, 64, False),
        "INT4_ZEROS",
        (DOWN,),
    ),
    "packed_partial": Method(
        group_config("pack-quantized", **INT4 | {"group_size": 48}),
        packed(4, 48, True),
        None,
        (DOWN,),
    ),
    "packed_channel": Method(
        group_config("pack-quantized", **INT4 | {"strategy": "channel", "group_size": None}),
        packed(4, -1, True),
        "INT4",
        (DOWN,),
    ),
    "packed_8": Method(group_config("pack-quantized", **INT8), packed(8, -1, True), None, (DOWN,)),
    "packed_3": Method(
        group_config("pack-quantized", **INT4 | {"num_bits": 3, "symmetric": False}),
        packed(3, 32, False),
        "INT4_ZEROS",
        (DOWN,),
    ),
    "packed_5": Method(
        group_config("pack-quantized", **INT8 | {"num_bits": 5}), packed(5, -1, True), None, (DOWN,)
    ),
    "packed_3_padded": Method(
        group_config("pack-quantized", **INT4 | {"num_bits": 3, "symmetric": False}),
        packed(3, 32, False, padded_words),
        "INT4_ZEROS",
        (DOWN,),
    ),
    "packed_4_zeros_in_bytes": Method(  # before 0.9.4
        group_config("pack-quantized", **INT4 | {"group_size": 64, "symmetric": False}),
        packed(4, 64, False, padded_words, True),
        "INT4_ZEROS",
        (DOWN,),
    ),
    "packed_3_zeros_in_bytes": Method(
        group_config("pack-quantized", **INT4 | {"num_bits": 3, "symmetric": False}),
        packed(3, 32, False, padded_words, True),
        "INT4_ZEROS",
        (DOWN,),
    ),
    "packed_8_zeros_in_bytes": Method(
        group_config("pack-quantized", **INT8 | {"symmetric": False}),
        packed(8, -1, False, padded_words, True),
        None,
        (DOWN,),
    ),
    "packed_7_padded": Method(
        group_config("pack-quantized", **INT8 | {"num_bits": 7}),
        packed(7, -1, True, padded_words),
        None,
        (DOWN,),
    ),
    "int8": Method(group_config("int-quantized", TOKENS, **INT8), int8, "INT8", (DOWN,)),
    "int4_bytes": Method(
        group_config("int-quantized", TOKENS, **INT4), grouped_bytes(4, 32), "INT4", (DOWN,)
    ),
    "int4_bytes_channel": Method(
        group_config("int-quantized", TOKENS, **INT4 | {"strategy": "channel"}),
        grouped_bytes(4, -1),
        "INT4",
        (DOWN,),
    ),
    "int8_bytes": Method(
        group_config("int-quantized", **INT8 | {"strategy": "group", "group_size": 64}),
        grouped_bytes(8, 64),
        None,
        (DOWN,),
    ),
    "int8_bytes_zeros": Method(
        group_config("int-quantized", TOKENS, **INT8 | {"symmetric": False}),
        grouped_bytes(8, -1, symmetric=False),
        None,
        (DOWN,),
    ),
    "int4_naive": Method(
        group_config("naive-quantized", **INT4 | {"symmetric": False}),
        grouped_bytes(4, 32, symmetric=False),
        "INT4_ZEROS",
        (DOWN,),
    ),
    "int8_weights": Method(group_config("int-quantized", **INT8), int8, None, (DOWN,)),
    "float_tensor": Method(
        group_config("float-quantized", **FP8, strategy="tensor"), fp8(None), None, (DOWN,)
    ),
    "float_channel": Method(
        group_config("float-quantized", **FP8, strategy="channel"), fp8((1, 0)), None, (DOWN,)
    ),
    "float_tokens": Method(
        group_config("float-quantized", FP8_TOKENS, **FP8, strategy="channel"),
        fp8((1, 0)),
        None,
        (DOWN,),
    ),
    "float_block": Method(
        group_config("float-quantized", **FP8, strategy="block", block_structure=[48, 64]),
        fp8((48, 64)),
        None,
        (DOWN,),
    ),
    "float_group": Method(
        group_config("naive-quantized", **FP8, strategy="group", group_size=64),
        fp8((1, 64)),
        None,
        (DOWN,),
    ),
    "mxfp8": Method(
        group_config("mxfp8-quantized", **FP8, strategy="group", group_size=32),
        mxfp8,
        None,
        (DOWN,),
    ),
    "nvfp4": Method(
        group_config("nvfp4-pack-quantized", **MX | {"strategy": "tensor_group", "group_size": 16}),
        nvfp4("weight_packed", "weight_global_scale", reciprocal=True),
        None,
        (DOWN,),
    ),
    "auto_round": Method(
        ROUND | {"sym": True, "extra_config": {DOWN: {"bits": 16}}},
        gptq(4, 32, True, False),
        "INT4",
        (DOWN,),
    ),
    "auto_round_zeros": Method(ROUND | {"sym": False}, gptq(4, 32, False, False), "INT4_ZEROS"),
    "auto_round_v2": Method(
        ROUND | {"sym": False, "packing_format": "auto_round:gptqmodel"},
        gptq(4, 32, False, False, 2),
        "INT4_ZEROS",
    ),
    "auto_round_awq": Method(
        ROUND | {"sym": False, "packing_format": "auto_round:auto_awq"}, awq(32), "INT4_ZEROS"
    ),
    "auto_round_fp8": Method(
        ROUND_FP8 | {"packing_format": "auto_round:fp8_static", "extra_config": {DOWN: _BITS16}},
        fp8((1, 0), activation_scale="input_scale"),
        None,
        (DOWN,),
    ),
    "auto_round_fp8_tensor": Method(ROUND_FP8 | {"group_size": 0, "act_bits": None}, fp8(None)),
    "auto_round_fp8_block": Method(
        ROUND_FP8 | {"group_size": [128, 128], "weight_block_size": [128, 128]},
        fp8((128, 128), "weight_scale_inv"),
    ),
    "auto_round_mxfp4": Method(
        ROUND | {"data_type": "mx_fp", "act_bits": 4, "packing_format": "auto_round:x"},
        mxfp4,
        "MXFP4",
    ),
    "auto_round_mxfp8": Method(ROUND | {"data_type": "mx_fp", "bits": 8, "act_bits": 8}, mxfp8),
    "auto_round_nvfp4": Method(
        ROUND | {"data_type": "nv_fp", "group_size": 16, "act_bits": 4},
        nvfp4("weight_packed", "weight_global_scale", reciprocal=True),
    ),
    "modelopt": Method(
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*1.mlp.down*"]},
        fp8(None),
        None,
        (DOWN,),
    ),
    "modelopt_block": Method(
        {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo", "ignore": ["lm_head"]},
        modelopt_block,
    ),
    "modelopt_mxfp8": Method(
        {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]}, mxfp8
    ),
    "modelopt_nvfp4": Method(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*1.mlp.down*"]},
        nvfp4("weight", "weight_scale_2", reciprocal=False),
        None,
        (DOWN,),
    ),
    "nf4": Method(
        BITS4 | {"llm_int8_skip_modules": ["lm_head", DOWN]}, four_bits(False), "NF4", (DOWN,)
    ),
    "nf4_nested": Method(BITS4 | {"bnb_4bit_use_double_quant": True}, four_bits(True), "NF4"),
    "llm_int8": Method(
        {"quant_method": "bitsandbytes", "load_in_8bit": True}, llm_int8, "INT8_HADAMARD"
    ),
    "mxfp4": Method(group_config("mxfp4-pack-quantized", **MX), mxfp4, "MXFP4", (DOWN,)),
    "fp8": Method({"quant_method": "fp8", "activation_scheme": "dynamic"}, fp8(None)),
    "fp8_tensor_inv": Method(
        {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"},
        fp8(None, "weight_scale_inv", "activation_scale"),
    ),
    "fp8_reciprocal": Method(DIVIDED, reciprocal((1, 0))),
    "fp8_reciprocal_block": Method(
        DIVIDED | {"weight_scale_method": "block", "weight_block_size": [48, 64]},
        reciprocal((48, 64)),
    ),
    "fp8_block_exponents": Method(
        {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
        fp8((128, 128), "weight_scale_inv", scale_dtype=torch.float8_e8m0fnu),
    ),
    "fp8_block": Method(
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
        fp8((128, 128), "weight_scale_inv"),
    ),
}


def write_quantized(
    name: str, folder: Path, change: Change | None = None
) -> transformers.PreTrainedModel:
    """Save the named checkpoint; returns transformers' model with the numbers of its codes.

    change: harms the tensors or the config before they are saved.
    """
    method = METHODS[name]
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.LlamaForCausalLM(config).eval()
    tensors = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for module, linear in model.named_modules():
        is_layer = isinstance(linear, torch.nn.Linear) and module != "lm_head"
        if not is_layer or module in method.skipped:
            continue
        del tensors[f"{module}.weight"]
        stored, numbers = method.pack(linear.weight.detach())
        tensors |= {f"{module}.{leaf}": tensor.contiguous() for leaf, tensor in stored.items()}
        linear.weight.data = numbers
    values = config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "float16"}
    values["quantization_config"] = dict(method.config)
    if change is not None:
        change(tensors, values)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(values))
    return model
