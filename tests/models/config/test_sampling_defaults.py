"""The sampling params that requests get which leave them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.models.config.sampling_defaults import read_sampling_defaults


def defaults(folder: Path, override: Any) -> dict[str, float]:
    (folder / "generation_config.json").write_text('{"temperature": 0.5, "max_new_tokens": 9}')
    config = EngineConfig.from_options(
        generation_config=folder, override_generation_config=override
    )
    return read_sampling_defaults(config)


@pytest.mark.parametrize("override", ['{"temperature": 0.2, "top_k": 3}', {"top_k": 3}, None])
def test_overrides_go_before_the_file(tmp_path: Path, override: Any) -> None:
    found = defaults(tmp_path, override)
    assert found["max_tokens"] == 9
    assert found["temperature"] == (0.2 if isinstance(override, str) else 0.5)
    assert found.get("top_k") == (None if override is None else 3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("[1]", "must be a JSON object"),
        ("{", "must be a JSON object"),
        ('{"tempratur": 1}', "has 'tempratur'; known: temperature,"),
        ('{"temperature": -1}', ": temperature: must be between"),
        ('{"top_k": "x"}', ": top_k: must be an integer"),
    ],
)
def test_overrides_that_no_request_could_have(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"^override_generation_config") as caught:
        defaults(tmp_path, override)
    assert words in str(caught.value)
