"""Stand-in for tests/conftest.py of vLLM."""

from __future__ import annotations

from typing import Any

import pytest


class LocalAssetServer:
    """The server of vLLM's test images; there are none here."""


@pytest.fixture(scope="session")
def local_asset_server() -> LocalAssetServer:
    """No images: a test that asks for one is not applicable."""
    pytest.skip("needs images")


class HfRunner:
    """vLLM's runner of a reference model; there are no weights of one here."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        pytest.skip("compares with another model's weights")


@pytest.fixture(scope="session")
def hf_runner() -> type[HfRunner]:
    """No reference model: a test that compares with one is not applicable."""
    pytest.skip("compares with another model's weights")
