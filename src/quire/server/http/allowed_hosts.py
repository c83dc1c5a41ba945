"""AllowedHosts: which names a request's Host header may have, against DNS rebinding.

A web page can make its own domain resolve to this machine, and then its visitor's browser sends the
page's requests here as if they were the page's own. Such a request has the page's domain as Host.
An API key stops it, so without a key only names are served that no page of the internet can have:
IP addresses, names without a dot, those of this machine and, unless the server listens only to this
machine, those that are only resolved in a private network.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import threading
from collections.abc import Mapping, Sequence

from quire.errors import ConfigError, OverloadedError
from quire.processes import start_thread

logger = logging.getLogger(__name__)

ANY = "*"
LOOKUP_SECONDS = 10.0  # that the log line about the names waits for this machine's full name
MAX_REMEMBERED = 1024
_LOCAL = (".localhost",)
_PRIVATE = (".local", ".internal", ".home.arpa")
_IN_CONTAINERS = ("host.docker.internal", "host.containers.internal")  # this machine's names there
_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?\.?|\[[0-9a-f:.]+\]")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]{1,64}\]|[a-z0-9._-]{1,255})(:\d{0,5})?")


class AllowedHosts:
    """The names that a server is known by.

    listed: given by the user; "*" is any, "*.example.com" any below. bound: what the server listens
    on. needs_key: whether requests must send an API key.

    The full name of this machine, which DNS knows, is looked up in a thread and then served too.
    """

    def __init__(self, listed: Sequence[str], *, bound: Sequence[str], needs_key: bool) -> None:
        self._is_open = ANY in listed or (needs_key and not listed)
        self._names = {*map(str.lower, bound), socket.gethostname().lower(), *listed}
        self._names |= {*_IN_CONTAINERS}
        self._suffixes = (*_LOCAL, *(name[1:] for name in listed if name.startswith("*.")))
        is_local = all(map(_is_loopback, bound))
        if not is_local:
            self._suffixes += _PRIVATE
        self._known: set[bytes] = set()  # headers that were allowed before
        self.lookup: threading.Thread | None = None
        if not self._is_open and not is_local:
            self._look_up()

    def log_names(self) -> None:
        """Tell for which hosts requests are served; waits for the look-up of the full name."""
        if self._is_open:
            return
        if self.lookup is not None:
            self.lookup.join(LOOKUP_SECONDS)
        names = ", ".join(sorted({*self._names, *(f"*{suffix}" for suffix in self._suffixes)}))
        text = "without an API key requests are served for IP addresses, names without a dot and %s"
        logger.info("%s; others get 403 (--allowed-hosts)", text % names)

    def _look_up(self) -> None:
        try:
            self.lookup = start_thread(self._add_full_name, "quire-fqdn")
        except OverloadedError:
            text = "no thread could be started to look up this machine's full name, for which "
            logger.warning(text + "requests get 403; name it with --allowed-hosts")

    def _add_full_name(self) -> None:
        self._names = {*self._names, socket.getfqdn().lower().removesuffix(".")}

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises HttpError 403 for a foreign Host. Without one it is HTTP/1.0, not a browser."""
        host = headers.get(b"host")
        if self._is_open or host is None or host in self._known:
            return
        match = _HOST.fullmatch(host.decode("latin-1").strip().lower())
        name = match["name"].removesuffix(".") if match else ""
        if not self._is_allowed(name):
            raise _foreign(name)
        if len(self._known) < MAX_REMEMBERED:
            self._known.add(host)

    def _is_allowed(self, name: str) -> bool:
        if not name:
            return False
        has_no_domain = "." not in name or _is_address(name)
        return has_no_domain or name in self._names or name.endswith(self._suffixes)


def parse_hosts(text: str) -> list[str]:
    """The names of a comma-separated list, in lower case. Raises ConfigError."""
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name != ANY and not _NAME.fullmatch(name):
            raise ConfigError(
                f"allowed_hosts has {name!r}, which is not a host name; use names without a "
                "port, such as api.example.com or *.example.com, or * for all"
            )
    return [name.removesuffix(".") for name in names]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_loopback(bound: str) -> bool:
    if _is_address(bound):
        return ipaddress.ip_address(bound.strip("[]")).is_loopback
    return bound.lower() == "localhost"


def _foreign(name: str) -> Exception:
    from quire.server.http.http_errors import HttpError

    if not name:
        text = "the header Host names no host; send the server's name or address in it"
        return HttpError(403, text, code="unknown_host")
    shown = name[:64] if name.isascii() and name.isprintable() else "?"
    text = f"the server is not known by the name {shown!r} in the header Host; start it with "
    return HttpError(403, f"{text}--allowed-hosts {shown} or with an API key", code="unknown_host")
