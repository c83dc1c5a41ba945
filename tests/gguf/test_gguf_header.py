"""GGUF headers: what is written is read, and whatever is damaged is one clear error."""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_limit import cpu_limit
from gguf_files import header_bytes, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import CheckpointError
from quire.gguf.gguf_header import GgufHeader, read_gguf_header

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 500000.0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": ["a", "ü", "", "<|end|>"],
    "tokenizer.ggml.scores": [0.5, -1.0, 2.0, 0.0],
    "empty": [],
}
ROWS = np.arange(3 * 64, dtype=np.float32).reshape(3, 64)
TENSORS = {"token_embd.weight": ("Q8_0", ROWS), "norm.weight": ("F32", ROWS[0])}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write_gguf(file, METADATA, TENSORS)
    return file.read_bytes()


def read(folder: Path, content: bytes) -> GgufHeader:
    file = folder / "a.gguf"
    file.write_bytes(content)
    return read_gguf_header(file)


def test_what_is_written_is_read(tmp_path: Path, content: bytes) -> None:
    header = read(tmp_path, content)
    found = header.metadata.values
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()} == METADATA
    table, norm = header.tensors["token_embd.weight"], header.tensors["norm.weight"]
    assert (table.kind.name, table.shape, table.num_bytes) == ("Q8_0", (3, 64), 3 * 2 * 34)
    begin = norm.offset
    assert norm.shape == (64,)
    assert content[begin : begin + norm.num_bytes] == ROWS[0].tobytes()


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_other_versions_are_refused(tmp_path: Path, content: bytes, version: int) -> None:
    text = "big-endian" if version > 4 else f"version {version}"
    with pytest.raises(CheckpointError, match=f"is GGUF .*{text}.*convert the model again"):
        read(tmp_path, content[:4] + struct.pack("<I", version) + content[8:])


def test_types_that_are_not_read_are_named(tmp_path: Path, content: bytes) -> None:
    """The type Q8_0 (8) at the end of the tensor's description is replaced."""
    at = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    for number, text in ((21, "has the type IQ3_S, which is not read; take"), (77, "unknown type")):
        wrong = content[:at] + struct.pack("<I", number) + content[at + 4 :]
        with pytest.raises(CheckpointError, match=f"token_embd.weight {text}|{text}"):
            read(tmp_path, wrong)


def test_a_file_that_is_cut_off_names_the_tensor(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"is cut off: norm.weight ends at byte \d+, but"):
        read(tmp_path, content[:-4])


def test_huge_claims_cost_nothing(tmp_path: Path) -> None:
    """Counts and lengths of terabytes in a file of a few bytes."""
    huge, key = struct.pack("<Q", 2**40), struct.pack("<Q", 1) + b"k"
    start, one, none = b"GGUF" + struct.pack("<I", 3), struct.pack("<Q", 1), bytes(8)
    texts, bytes_ = struct.pack("<II", 9, 8), struct.pack("<II", 9, 0)
    with cpu_limit(1.0, time.process_time):
        for wrong in (
            start + huge + one,
            start + none + huge,
            start + none + one + huge,
            start + none + one + key + texts + huge,
            start + none + one + key + bytes_ + huge + bytes(100),
            start + none + one + key + struct.pack("<I", 8) + huge,
        ):
            with pytest.raises(CheckpointError, match="is damaged at byte"):
                read(tmp_path, wrong)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (56, r"at byte 16: 56 tensors are to follow, but only \d+ bytes do; download"),
        (2**40, r"at byte 16: it says that there are 1,099,511,627,776 tensors, more than 1\S+;"),
    ],
)
def test_a_count_that_cannot_be_says_why(tmp_path: Path, count: int, said: str) -> None:
    start = b"GGUF" + struct.pack("<I", 3) + struct.pack("<Q", count)
    with pytest.raises(CheckpointError, match=said):
        read(tmp_path, start + bytes(100))


def test_tensors_may_not_overlap(tmp_path: Path) -> None:
    twice = header_bytes(METADATA, {"a": ("F32", (64,)), "b": ("F32", (64,))})
    wrong = twice[: twice.rindex(struct.pack("<IQ", 0, 256))]
    rest = twice[len(wrong) + 12 :]
    with pytest.raises(CheckpointError, match="b overlaps the tensor before"):
        read(tmp_path, wrong + struct.pack("<IQ", 0, 32) + rest + bytes(1024))


@settings(max_examples=300)
@given(data=st.data())
def test_no_damage_does_more_than_raise(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    """Any byte changed, and any end cut off: read, or refused as a checkpoint's error."""
    folder = tmp_path_factory.getbasetemp()
    wrong = bytearray(content)
    for _ in range(data.draw(st.integers(0, 3))):
        wrong[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    with suppress(CheckpointError):
        header = read(folder, bytes(wrong[:cut]))
        assert all(each.offset + each.num_bytes <= cut for each in header.tensors.values())
