"""Linear operations on a GPU, by type of weight; linear_table.py has all types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, NamedTuple, TypeGuard, TypeVar

import torch
import triton
from torch import Tensor

from quire.kernels.operands import (
    Fp8Weight,
    Int8Weight,
    ResidualState,
    RopeWriteKV,
    RoundedRows,
    Rows,
)
from quire.kernels.triton.gemm.gemm_tuning import rope_gemm_config, skinny_gemm_config
from quire.kernels.triton.gemm.int4_config import Int4Config
from quire.kernels.triton.launch.gemm_config import GemmConfig, RingConfig
from quire.kernels.triton.launch.row_memory import empty_rows
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, launches_early, workspace
from quire.kernels.triton.ops.gemm_launch import rope_operands, run_ring, run_skinny
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.ops.rounded_rows import has_aligned_sizes

MAX_ROWS = 64
FEW = 16  # rows, up to which the GEMM for few rows rounds them to bytes itself
Config = GemmConfig | Int4Config
Operand = tuple[Tensor, Tensor | None, str]
W = TypeVar("W")
B = TypeVar("B", Fp8Weight, Int8Weight)


class Results(NamedTuple):
    """Tensors that a launch stores: the result, and inputs of a norm that follows it."""

    out: Tensor
    normalized: Tensor | None = None  # out times the norm's weight
    squares: Tensor | None = None  # sums of out²


class GpuLinear(ABC, Generic[W]):
    """Linear operations with weights [N, K] of one type. It has no state.

    most: rows of x that its GEMM for few rows takes.
    """

    most: ClassVar[int] = MAX_ROWS

    @abstractmethod
    def operand(self, weight: W) -> Operand:
        """(the tensor that GEMMs for few rows read, its scales, their WEIGHT_FORMAT)."""

    @abstractmethod
    def linear(self, x: Rows, weight: W, bias: Tensor | None) -> Tensor:
        """Twin of `reference.linear`, by the kernel that is fastest for so many rows."""

    @abstractmethod
    def invariant_linear(self, x: Rows, weight: W, bias: Tensor | None) -> Tensor:
        """Twin of `reference.linear`, batch-invariant."""

    def most_few(self, dtype: torch.dtype, weight: W) -> int:  # noqa: ARG002
        """The number of rows up to which fused operations use `launch`."""
        return MAX_ROWS

    def is_few(self, x: Rows, weight: W) -> TypeGuard[Tensor]:
        """Whether `launch` serves these rows in fused operations; it is too slow in float32."""
        if not isinstance(x, Tensor) or x.dtype == torch.float32 or x.stride(1) != 1:
            return False
        return 0 < len(x) <= self.most_few(x.dtype, weight)

    def rows_of(self, weight: W, rows: int = 0) -> type[RoundedRows] | None:  # noqa: ARG002
        """The rows of eight bits that the weight is multiplied by, if there are so many rows."""
        return None

    def rounded(self, out: Tensor, weight: W) -> type[RoundedRows] | None:  # noqa: ARG002
        """The rounded rows that such a linear layer reads instead of numbers like out."""
        return None

    def rounds_next(self, out: Tensor, weight: W) -> type[RoundedRows] | None:  # noqa: ARG002
        """The rounded rows in which to store what is computed from a linear layer's result [T, N].

        The next linear layer's weight is not known here. Where one after a norm has other codes,
        `rows_for` makes rows of their own for it; `linear_silu` has an argument for it.
        """
        return None

    def normalizes(self, x: ResidualState, weight: W) -> bool:  # noqa: ARG002
        """Whether `launch` takes rows whose norm the linear layer before, of any format, left."""
        return True

    def inputs(
        self,
        x: Tensor | ResidualState,
        weight: W,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        """The rows that `run` takes, and their sums of squares where the norm is not done."""
        if not isinstance(x, ResidualState):
            return x, None
        assert isinstance(x.rows, Tensor)
        assert x.squares is not None
        return x.rows, x.squares

    def config(self, rows: Tensor, weight: W) -> Config:
        """The config of `launch` for these rows."""
        w = self.operand(weight)[0]
        num_sms, hopper = workspace(w.device).num_sms, has_hopper_gpu(w.device)
        return skinny_gemm_config(len(rows), *w.shape, w.itemsize, num_sms, hopper=hopper)

    def rope_config(self, x: ResidualState, weight: W, rope: RopeWriteKV) -> Config | None:
        """The config of `launch` with RoPE, whose tiles contain whole heads or pairs, or None."""
        w, heads = self.operand(weight)[0], (rope.k_cache.shape[2], rope.head_dim)
        shape = (len(x.residual), *w.shape, w.itemsize, workspace(w.device).num_sms)
        return rope_gemm_config(*shape, *heads, hopper=has_hopper_gpu(w.device))

    def run(
        self,
        config: Config,
        rows: Tensor,
        weight: W,
        behind: tuple[Any, ...],
        out: Tensor,
        flags: dict[str, Any],
    ) -> None:
        """Launch a kernel. behind: its arguments from `out` on, but for strides."""
        w, scale, weight_format = self.operand(weight)
        if isinstance(config, RingConfig):
            run_ring(config, rows, w, (scale, None, None, *behind), out, flags)
            return
        assert not isinstance(config, Int4Config)
        flags |= {"WEIGHT_FORMAT": weight_format, "GROUP": 0, "ONE_ROW": False}
        run_skinny(config, rows, w, (scale, None, None, None, *behind), out, flags)

    def launch(
        self,
        x: Tensor | ResidualState,
        weight: W,
        bias: Tensor | None = None,
        *,
        residual: Tensor | None = None,
        norm_weight: Tensor | None = None,
        eps: float = 0.0,
        silu: bool = False,
        rope: RopeWriteKV | None = None,
        config: Config | None = None,
        pdl: bool | None = None,
    ) -> Results:
        """The GEMM for few rows, see skinny_gemm."""
        w = self.operand(weight)[0]
        pdl = launches_early(w.device) if pdl is None else pdl
        rows, incoming = self.inputs(x, weight)
        config = config or self.config(rows, weight)
        (m, k), n = rows.shape, len(w)
        assert m <= self.most
        assert rows.stride(1) == w.stride(1) == 1
        assert residual is None or residual.is_contiguous()
        space = workspace(w.device)
        num_tiles = triton.cdiv(n, config.block_n)
        assert num_tiles <= NUM_COUNTERS
        operands, head_constants = rope_operands(rope)
        # columns that go to the caches
        stored = 2 * head_constants["KV_HEADS"] * head_constants["HEAD_DIM"]
        width = n // 2 if silu else n - stored
        out = empty_rows(m, width, dtype=rows.dtype, device=w.device)
        normalized = squares = None
        if norm_weight is not None:
            normalized = empty_rows(m, width, dtype=rows.dtype, device=w.device)
            squares = w.new_empty(num_tiles, m, dtype=torch.float32)
        behind = (
            out, bias, residual, norm_weight, normalized, squares, incoming, *operands[:9],
            space.partials, space.counters, m, n, k,
            0 if incoming is None else len(incoming),
            x.eps if isinstance(x, ResidualState) else eps, *operands[9:], rows.stride(0),
        )  # fmt: skip
        flags = {
            "HAS_BIAS": bias is not None, "HAS_RESIDUAL": residual is not None,
            "HAS_NORM": norm_weight is not None, "HAS_SQUARES": incoming is not None, "SILU": silu,
            "PDL": pdl, "num_warps": config.warps, "launch_pdl": pdl,
        } | head_constants  # fmt: skip
        assert not silu or residual is None
        self.run(config, rows, weight, behind, out, flags)
        return Results(out, normalized, squares)


class ByteLinear(GpuLinear[B]):
    """Weights whose codes are bytes, multiplied by rows that are rounded to the same codes."""

    def most_few(self, dtype: torch.dtype, weight: B) -> int:
        """See `GpuLinear`.

        `launch` rounds rows itself, with scales for some columns each. More rows are faster if the
        kernels before have rounded each row with one scale.
        """
        if dtype != torch.bfloat16:
            return MAX_ROWS
        by_rows = has_hopper_gpu(weight.codes.device) and has_aligned_sizes(weight.codes)
        return FEW if by_rows else MAX_ROWS
