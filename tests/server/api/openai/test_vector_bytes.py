"""Vectors as bytes: the bits are PyTorch's for each data type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.server.api.openai.vector_bytes import vector_bytes

TYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def numbers() -> torch.Tensor:
    """Of many sizes, with ties, zeros and the largest of each type."""
    generator = torch.Generator().manual_seed(0)
    scaled = torch.randn(4000, generator=generator) * torch.logspace(-9, 2, 4000)
    ties = torch.arange(1, 64) / 64 + 1
    return torch.cat([scaled, ties, torch.tensor([0.0, -0.0, 1e-9, 448.0, -448.0])])


@pytest.mark.parametrize("dtype", TYPES)
def test_bits_are_pytorchs(dtype: str) -> None:
    values = numbers().clamp(-448, 448)
    wanted = values.to(TYPES[dtype]).view(torch.uint8).numpy().tobytes()
    assert vector_bytes(values.numpy().tobytes(), dtype, "little") == wanted


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_byte_orders_are_mirrored(dtype: str) -> None:
    data = numbers().numpy().tobytes()
    size = TYPES[dtype].itemsize
    little = np.frombuffer(vector_bytes(data, dtype, "little"), f"V{size}")
    big = vector_bytes(data, dtype, "big")
    mirrored = little.view(np.uint8).reshape(-1, size)[:, ::-1]
    assert big == mirrored.tobytes()


def test_fp8_stays_finite() -> None:
    """Beyond the range, where PyTorch has NaN or infinity, it is the largest number."""
    data = np.array([1e9, -1e9], "<f4").tobytes()
    assert vector_bytes(data, "fp8_e4m3", "little") == b"\x7e\xfe"
    assert vector_bytes(data, "fp8_e5m2", "little") == b"\x7b\xfb"
