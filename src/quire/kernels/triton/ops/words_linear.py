"""Linear operations on a GPU with weights in words: the ring of Hopper's GEMM for few rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeGuard, TypeVar

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from quire.kernels.byte_operands import ByteWords
from quire.kernels.operands import Int4Words, ResidualState, RopeWriteKV, Rows
from quire.kernels.triton.gemm.gemm_tuning import holds_whole_heads
from quire.kernels.triton.gemm.int4_config import Int4Config, block_rows, group_rows
from quire.kernels.triton.gemm.split_k_config import shares_of
from quire.kernels.triton.launch.row_memory import whole_boxes
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace
from quire.kernels.triton.ops.gpu_linear import MAX_ROWS, Config, GpuLinear, Operand
from quire.kernels.triton.ops.invariant_gemm import invariant_gemm
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu

SCALES_FIRST = 1  # rows of x, up to which programs ask for scales of integers before words
V = TypeVar("V", bound=Int4Words | ByteWords)


class WordsLinear(GpuLinear[V]):
    """Weights packed as words, which become numbers in registers."""

    @abstractmethod
    def ring_config(self, num_rows: int, weight: V, head_dim: int = 0) -> Int4Config | None:
        """The config of the ring, whose tiles hold whole heads of head_dim; None: too large."""

    @abstractmethod
    def ring_operands(self, weight: V, config: Int4Config) -> tuple[Any, Tensor | None, Any]:
        """(a TMA descriptor of the words, scales of outputs, the kernel's CODEBOOK)."""

    @abstractmethod
    def scales_numbers(self, num_rows: int, weight: V) -> bool:
        """Whether scales multiply numbers, not the sums of groups."""

    @abstractmethod
    def dequantize(self, weight: V, out: Tensor) -> Tensor:
        """Fill out [N, K] with the weight's numbers."""

    def operand(self, weight: V) -> Operand:
        """See `GpuLinear`."""
        return weight.words, None, "words"

    def numbers(self, weight: V, dtype: torch.dtype) -> Tensor:
        """The whole weight [N, K], columns in its order."""
        return self.dequantize(
            weight, weight.words.new_empty(len(weight.words), weight.inputs, dtype=dtype)
        )

    def invariant_linear(self, x: Rows, weight: V, bias: Tensor | None) -> Tensor:
        """See `GpuLinear`."""
        x = ordered(x if isinstance(x, Tensor) else x.dequantize(), weight)
        return invariant_gemm(x, None, self.numbers(weight, x.dtype), None, bias, x.dtype)

    def reads_words(self, x: Tensor, weight: V, rows: int) -> bool:
        """Whether the ring serves x, of at most so many rows."""
        if x.dtype != torch.bfloat16 or x.stride(1) != 1 or not 0 < len(x) <= rows:
            return False
        return has_hopper_gpu(x.device) and self.ring_config(len(x), weight) is not None

    def reads_plainly(self, x: Tensor, weight: V) -> bool:  # noqa: ARG002
        """Whether the plain Triton kernel serves x, which the ring does not."""
        return False

    def is_few(self, x: Rows, weight: V) -> TypeGuard[Tensor]:
        """See `GpuLinear`."""
        if not isinstance(x, Tensor):
            return False
        return self.reads_words(x, weight, MAX_ROWS) or self.reads_plainly(x, weight)

    def normalizes(self, x: ResidualState, weight: V) -> bool:
        """See `GpuLinear`."""
        if not isinstance(x.rows, Tensor):
            return False
        return self.reads_words(x.rows, weight, self.most) or self.reads_plainly(x.rows, weight)

    def inputs(self, x: Tensor | ResidualState, weight: V) -> tuple[Tensor, Tensor | None]:
        """See `GpuLinear`."""
        rows, squares = super().inputs(x, weight)
        return ordered(rows, weight), squares

    def config(self, rows: Tensor, weight: V) -> Config:
        """See `GpuLinear`."""
        found = self.ring_config(len(rows), weight)
        assert found is not None
        return found

    def rope_config(self, x: ResidualState, weight: V, rope: RopeWriteKV) -> Config | None:
        """See `GpuLinear`."""
        whole, kv_heads, head_dim = None, rope.k_cache.shape[2], rope.head_dim
        if head_dim in (64, 128):
            whole = self.ring_config(len(x.residual), weight, head_dim)
        is_whole = whole and holds_whole_heads(whole, len(weight.words), kv_heads, head_dim)
        return whole if is_whole else None

    def run(
        self,
        config: Config,
        rows: Tensor,
        weight: V,
        behind: tuple[Any, ...],
        out: Tensor,
        flags: dict[str, Any],
    ) -> None:
        """See `GpuLinear`."""
        from quire.kernels.triton.hopper.hopper_gemm import hopper_gemm_kernel
        from quire.kernels.triton.hopper.hopper_int4_ring import column_boxes, head_boxes

        assert isinstance(config, Int4Config)
        m, n, group = len(out), len(weight.words), weight.group
        block_m, x = block_rows(m), whole_steps(rows)
        tiles = triton.cdiv(n, config.block_n) * triton.cdiv(m, block_m)
        assert tiles <= NUM_COUNTERS
        assert config.split == 1 or tiles * config.split * config.block_n * block_m <= NUM_PARTIALS
        boxes, row_scale, codebook = self.ring_operands(weight, config)
        num_sms = workspace(x.device).num_sms
        if config.block_n < flags["HEAD_DIM"]:
            boxes = head_boxes(weight.words, config.parts, config.block_n, flags["HEAD_DIM"])
        hopper_gemm_kernel[(tiles * config.split,)](
            x, column_boxes(whole_boxes(x, block_m), config.parts, block_m), boxes, row_scale,
            weight.scale, weight.zeros, *behind, out.stride(0), BLOCK_M=block_m,
            BLOCK_N=config.block_n, STAGES=config.stages, SPLIT=config.split,
            SHARES=shares_of(config.split, block_m, triton.cdiv(m, block_m), num_sms, tokens=8),
            TILES=config.parts, CHUNK=0, maxnreg=config.registers, GROUP=group, CODEBOOK=codebook,
            SCALED=weight.scale is None or self.scales_numbers(m, weight),
            GROUP_ROWS=group_rows(weight.inputs, group, config),
            SCALES_FIRST=codebook is None and m <= SCALES_FIRST, **flags,
        )  # fmt: skip


def whole_steps(rows: Tensor) -> Tensor:
    """Rows as TMA addresses them, with columns up to a multiple of 256."""
    k = rows.shape[1]
    if k % 256 or (rows.stride(0) * rows.itemsize | rows.data_ptr()) % 16:
        return F.pad(rows, (0, -k % 256)).contiguous()
    return rows


def ordered(x: Tensor, weight: Int4Words | ByteWords) -> Tensor:
    """x with its columns in the order of the weight's inputs."""
    return x if weight.permutation is None else x[:, weight.permutation]
