"""Types of NumPy arrays by their dtype, for all rooms. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.uint16]  # numbers of bfloat16, which NumPy lacks
Shorts = npt.NDArray[np.int16]
Int32s = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer]  # of any size
Words = npt.NDArray[np.uint64]
Singles = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

Tokens = Int32s  # token ids as the engine stores them
Logits = Singles
