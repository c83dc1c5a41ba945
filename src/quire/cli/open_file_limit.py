"""The limit of open files of a server: raised as far as allowed, and checked."""

from __future__ import annotations

import contextlib
import resource

from quire.errors import ConfigError

WANTED = 1 << 16  # a connection takes one
LEAST = 128  # sockets, libraries and pipes of a process, and some connections


def raise_open_file_limit() -> None:
    """Raise the soft limit of this process and its children. Raises ConfigError if it stays low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        raise ConfigError(
            f"the limit of open files is {soft}, and a server needs {LEAST} or more; raise it, as "
            f"with `ulimit -n {WANTED}`, LimitNOFILE in systemd, or --ulimit nofile in Docker"
        )
