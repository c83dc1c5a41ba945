"""The array types of this room, by what they hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]  # token ids, row numbers, counts
Tokens = npt.NDArray[np.int32]  # known tokens, as the engine stores them
Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]  # wishes, weights, uniform numbers
Flags = npt.NDArray[np.bool_]
