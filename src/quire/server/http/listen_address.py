"""The addresses that a server listens on: bound before a model is loaded, and shown to users.

Light to import: the parent process needs it before it starts the others.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from quire.errors import ConfigError

_BRACKETS = re.compile(r"\A\[(.*:.*)\]\Z")
BACKLOG = 2048  # connections that wait to be accepted
PROBE_SECONDS = 1.0  # that a server has to answer, to be asked whether it is there
MAX_PATH_BYTES = 103 if sys.platform == "darwin" else 107  # of a Unix socket
UNSENT_BYTES = 16 << 10  # that the kernel buffers for a connection before it can send them


def bind(host: str, port: int) -> socket.socket:
    """Bind the address, so that a port in use is reported before any work. Raises ConfigError."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(_not_ours(host)) from None
    except OSError as error:
        raise ConfigError(_why_not(error, host, port)) from None
    if sys.platform == "linux":  # so that unread data waits in this process
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return sock


@contextmanager
def bind_api(host: str, port: int, uds: str | None) -> Iterator[list[socket.socket]]:
    """The API's sockets: a port of each address of `host`, or a Unix socket at a path.

    The latter has the permissions of the umask, and its file is deleted at the end of the context.
    Port 0 is one that is free at the first address. Raises ConfigError.
    """
    if uds is None:
        with ExitStack() as stack:
            socks: list[socket.socket] = []
            for address in addresses(host):
                socks.append(stack.enter_context(bind(address, port)))
                port = port or socks[0].getsockname()[1]
            yield socks
        return
    try:
        sock = _bind_file(uds)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"cannot listen on uds {uds!r} ({why}); use another --uds") from None
    with _deleted_at_end(sock, uds):
        yield [sock]


def addresses(host: str) -> list[str]:
    """The addresses of a setting, which commas separate and URLs put in brackets."""
    found = [_BRACKETS.sub(r"\1", part.strip()) for part in host.split(",")]
    return [name for name in found if name] or [host]


def base_url(sock: socket.socket) -> str:
    """The address for clients on this machine: "http://127.0.0.1:8000" or "unix:/run/api.sock"."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def admin_address(sock: socket.socket) -> str:
    """The URL or the socket path of the admin endpoints."""
    name = sock.getsockname()
    return name if isinstance(name, str) else base_url(sock)


def is_loopback(sock: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    if sock.family == socket.AF_UNIX:
        return True
    return ipaddress.ip_address(sock.getsockname()[0]).is_loopback


@contextmanager
def bind_admin(port: int | None, path: str | None) -> Iterator[socket.socket | None]:
    """The admin endpoints' socket: a port of 127.0.0.1, or a Unix socket only its owner can open.

    The Unix socket's file is deleted at the end of the context. Yields None where neither is
    given. Raises ConfigError.
    """
    if port is None and path is None:
        yield None
        return
    try:
        if path is None:
            sock = socket.create_server(("127.0.0.1", port))
        else:
            sock = _bind_file(path, is_private=True)
    except OSError as error:
        where = f"127.0.0.1:{port}" if path is None else repr(path)
        why = (error.strerror or str(error)).partition(" (while")[0]
        text = f"cannot listen for admin requests on {where} ({why}); use another "
        raise ConfigError(text + "admin_port or admin_uds") from None
    with _deleted_at_end(sock, path):
        yield sock


@contextmanager
def _deleted_at_end(sock: socket.socket, path: str | None) -> Iterator[None]:
    with sock:
        try:
            yield
        finally:
            if path is not None:  # while it listens: later it may be another server's
                Path(path).unlink(missing_ok=True)


def _bind_file(path: str, *, is_private: bool = False) -> socket.socket:
    """Bind a Unix socket. A dead server's socket is replaced; any other file is an error.

    is_private: only its owner can connect, whatever the umask. Raises OSError.
    """
    _check_path(path)
    file = Path(path)
    if file.is_socket():
        if not _is_answered(path):
            file.unlink(missing_ok=True)
    elif os.path.lexists(file):  # a link to nothing, too
        raise FileExistsError(errno.EEXIST, f"it is a {'folder' if file.is_dir() else 'file'}")
    sock = socket.socket(socket.AF_UNIX)
    mask = stat.S_IRWXG | stat.S_IRWXO | stat.S_IXUSR
    try:
        with _umask(mask) if is_private else nullcontext():
            sock.bind(path)
        sock.listen(BACKLOG)  # at once, or another server's start would take it for a dead one
    except BaseException:
        sock.close()
        raise
    return sock


def _check_path(path: str) -> None:
    """A zero byte would end the path early, or be a socket without a file."""
    if not path or "\0" in path:
        raise OSError(errno.EINVAL, "it is not a path of a file")
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, f"it has more than {MAX_PATH_BYTES} bytes")


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _is_answered(path: str) -> bool:
    """Whether a server may listen there: also one that is busy, or another user's."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


def _not_ours(host: str) -> str:
    try:
        url = urlsplit(host if "://" in host else f"//{host}")
        name, port = url.hostname, url.port
    except ValueError:  # no brackets, or no port, as URLs have them
        name = port = None
    if name is not None and name != host.lower():
        fix = f"--host {name}" + f" --port {port}" * (port is not None)
        return f"host {host!r} is more than an address; use {fix}"
    return f"host {host!r} is not an address of this machine; use 127.0.0.1 or 0.0.0.0"


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use; stop the program that uses it, or use another --port"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this user has; use a --port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return _not_ours(host)
    return f"cannot listen on {host}:{port} ({error.strerror}); use another --host or --port"
