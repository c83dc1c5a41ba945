"""What a start asks of the GPU's driver, by a driver that is a stand-in."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from quire.engine.startup import gpu_driver
from quire.engine.startup.gpu_driver import driver_capability, retain_primary_context


class Driver:
    """Answers with a capability of 9.0; the call named `failing` returns an error."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append(name)
            if name == "cuDeviceGetAttribute":
                args[0]._obj.value = {75: 9, 76: 0}[args[1]]
            return 100 if name == self.failing else 0

        return call


@pytest.mark.parametrize(
    ("failing", "capability"),
    [("", (9, 0)), ("cuInit", None), ("cuDeviceGet", None), ("cuDeviceGetAttribute", None)],
)
def test_the_capability_is_the_drivers(
    failing: str, capability: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(failing)
    monkeypatch.setattr(gpu_driver, "gpu_driver", lambda: driver)
    assert driver_capability() == capability
    assert driver.calls[0] == "cuInit"
    retain_primary_context()
    has_device = failing not in ("cuInit", "cuDeviceGet")
    assert ("cuDevicePrimaryCtxRetain" in driver.calls) == has_device


def test_a_driver_that_is_not_there_has_no_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError

    gpu_driver.gpu_driver.cache_clear()
    with monkeypatch.context() as without:
        without.setattr(ctypes, "CDLL", missing)
        assert driver_capability() is None
        retain_primary_context()
    gpu_driver.gpu_driver.cache_clear()
