"""Stand-in for vllm.envs: no variable is set."""

from __future__ import annotations


def __getattr__(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)
