"""Several decoder layers in one call of compiled code, for steps of few tokens.

Between two products of such a step Python takes a turn of some 60 us, with its code and objects out
of the caches through which weights have just gone, and the other threads fall asleep meanwhile: a
tenth of a step with four-bit weights. Every kernel is called as it would be from Python, so results
have the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from quire.kernels.cpu import linear, native, native_attention
from quire.kernels.cpu.structures import LayerArgs, LayersArgs, ProductArgs
from quire.kernels.cpu.tensors import DTYPES
from quire.kernels.layout import BatchLayout
from quire.kernels.operands import LayerOperands, Normed, Product

FEW_TOKENS = 64  # of a step, beside which turns of Python between products count
_TOGETHER = 8  # layers of a call: Python's turn between two is nothing beside them


def join(layers: Iterable[LayerOperands]) -> JoinedLayers | None:
    """Layers that are run together; None where a weight is not packed for compiled products."""
    operands = list(layers)
    rows = [_layer_args(layer) for layer in operands]
    args = [row for row in rows if row is not None]
    return JoinedLayers(operands, args) if len(args) == len(rows) else None


class JoinedLayers:
    """Decoder layers whose weights have been looked up."""

    def __init__(self, operands: list[LayerOperands], args: list[LayerArgs]) -> None:
        self._operands = operands  # whose memory the arguments point to
        self._args = (LayerArgs * len(args))(*args)

    def run(
        self,
        stream: Normed,
        rope: tuple[Tensor, Tensor],
        kv: Sequence[tuple[Tensor, Tensor]],
        layout: BatchLayout,
        beat: Callable[[], None],
    ) -> bool:
        """Take the residual stream [T, H] through as many layers as have a cache, in place.

        stream: before the first layer. rope: cos and sin [T, R]. beat: called now and then. False
        if there are many tokens, or shapes or types are not those that were compiled, and nothing
        has happened.
        """
        rows, residual = stream.rows, stream.residual
        if not (
            kv
            and isinstance(rows, Tensor)
            and len(rows) <= FEW_TOKENS
            and rows.is_contiguous()
            and residual.is_contiguous()
            and rope[0].dtype == residual.dtype
            and native_attention.serves(residual, self._operands[0].head_dim, kv[0][0])
        ):
            return False
        for own, (keys, values) in zip(self._args, kv, strict=False):
            own.k_cache, own.v_cache = keys.data_ptr(), values.data_ptr()
        cos, sin = (each.contiguous() for each in rope)
        args = self._step_args(rows, residual, cos, sin, kv[0][0], layout)
        for begin in range(0, len(kv), _TOGETHER):
            beat()
            args.layers = ctypes.addressof(self._args[begin])
            args.count = min(_TOGETHER, len(kv) - begin)
            native.compiled().quire_cpu_layers(ctypes.byref(args))
            args.rows = None  # of those behind the first, norms are to be made
        return True

    def _step_args(
        self,
        rows: Tensor,
        residual: Tensor,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        layout: BatchLayout,
    ) -> LayersArgs:
        """All but which layers. It points to the tensors' memory, which has to stay."""
        (tokens, hidden), kv_heads = residual.shape, k_cache.shape[2]
        dim = self._operands[0].head_dim
        return LayersArgs(
            rows.data_ptr(), residual.data_ptr(), 0,
            cos.data_ptr(), sin.data_ptr(), layout.slot_mapping.data_ptr(),
            layout.query_start_loc.data_ptr(), layout.seq_lens.data_ptr(),
            layout.block_table.data_ptr(),
            0, tokens, hidden, len(layout.seq_lens), layout.block_table.stride(0),
            k_cache.shape[1], self._args[0].qkv.outputs // dim - 2 * kv_heads, kv_heads, dim,
            cos.shape[1], DTYPES[residual.dtype], native_attention.KEPT[k_cache.dtype],
            native.num_threads(),
        )  # fmt: skip


def _layer_args(layer: LayerOperands) -> LayerArgs | None:
    found = [_product_args(each) for each in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    products = [each for each in found if each is not None]
    dtype, heads = layer.norm.dtype, layer.head_norms
    if len(products) < len(found) or not linear.goes_by_turns(dtype, products[2].outputs):
        return None
    args = LayerArgs(
        norm=layer.norm.data_ptr(),
        mlp_norm=layer.mlp_norm.data_ptr(),
        eps=layer.eps,
        scale=layer.scale,
        window=layer.sliding_window or 0,
    )
    args.qkv, args.o, args.gate_up, args.down = products
    if heads is not None:
        args.query_norm, args.key_norm = heads.query.data_ptr(), heads.key.data_ptr()
        args.head_eps = heads.eps
    return args


def _product_args(product: Product) -> ProductArgs | None:
    packed, bias = linear.packed_form(product.weight), product.bias
    if packed is None:
        return None
    return ProductArgs(
        packed.weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        packed.outputs,
        packed.group,
        packed.form,
    )
