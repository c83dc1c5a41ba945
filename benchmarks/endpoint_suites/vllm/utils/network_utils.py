"""Stand-in for vllm.utils.network_utils."""

from __future__ import annotations

import socket


def get_open_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
