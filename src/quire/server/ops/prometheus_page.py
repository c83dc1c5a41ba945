"""The page that `GET /metrics` (metrics_route.py) answers, in the format that its reader accepts.

The metrics are those of metric_families.py, in the text formats of Prometheus and OpenMetrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.registry import Collector, CollectorRegistry

from quire.engine.processes.control_channel import ModelStatus
from quire.server.ops.metric_families import families
from quire.server.ops.metric_snapshots import Snapshot


def expose(
    total: Snapshot,
    gpu_hour_cost: float | None,
    accept: str,
    statuses: Sequence[ModelStatus] = (),
) -> tuple[bytes, str]:
    """The text and its content type, in the format that the Accept header asks for.

    statuses: the state of all models, loaded or not.
    """
    encode, media_type = _encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(families(total, gpu_hour_cost, statuses)))
    return _as_llama_cpp(encode(registry)), media_type


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """The encoder and the content type that an Accept header asks for.

    Where only names that are not legal are to be escaped, none is: all names are legal here, and
    the library's OpenMetrics would replace their colons, too, for Prometheus 2 and others.
    """
    try:
        encode, media_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the library expects a version to be numbers
        encode, media_type = choose_encoder("")
    if "escaping=" in media_type and not media_type.endswith(UNDERSCORES):
        return encode, media_type
    return _without_escapes(encode), media_type


def _without_escapes(encode: Callable[..., bytes]) -> Callable[[CollectorRegistry], bytes]:
    return partial(encode, escaping=ALLOWUTF8)


def _as_llama_cpp(page: bytes) -> bytes:
    """The page with llama.cpp's type of its high-water mark: a counter without _total.

    The library renames counters; OpenMetrics has none without _total.
    """
    name = b"# TYPE llamacpp:n_tokens_max "
    return page if page.endswith(b"# EOF\n") else page.replace(name + b"gauge", name + b"counter")


class _Scrape(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
