"""Replaces vllm.version: the version that the server has."""

from quire.version import __version__ as __version__


def _prev_minor_version() -> str:
    return "0.0"
