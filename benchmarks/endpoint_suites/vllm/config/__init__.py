"""Stand-in for vllm.config: what a test asks of a model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vllm import Reply


class ModelConfig(Reply):
    """The configuration of the suite's model, whatever the name."""

    def get_vocab_size(self) -> int:
        """The number of its token ids."""
        config = json.loads((Path(os.environ["SUITE_MODEL"]) / "config.json").read_text())
        return int(config["vocab_size"])


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Reply
