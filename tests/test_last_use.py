"""The order of use of a cache's entries, whatever the clock says."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from quire.config import ModelSettings
from quire.errors import CheckpointError
from quire.gguf import gguf_folder
from quire.last_use import last_use, mark_used, user_cache
from quire.models.prepared.prepared_files import prepared_folder


def test_the_order_of_use_outlives_clocks_that_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, utime = random.Random(3), os.utime

    def by_a_clock_that_jumps(path: Path, ns: tuple[int, int] | None = None) -> None:
        anywhen = rng.randrange(4 * 10**18)
        utime(path, ns=(anywhen, anywhen) if ns is None else ns)

    monkeypatch.setattr(os, "utime", by_a_clock_that_jumps)
    order = [tmp_path / str(number) for number in range(8)]
    for entry in order:
        entry.touch()
        mark_used(entry, tmp_path.iterdir())
    for _ in range(100):
        order.append(order.pop(rng.randrange(8)))
        mark_used(order[-1], tmp_path.iterdir())
        assert sorted(tmp_path.iterdir(), key=last_use) == order


def test_an_entry_that_has_gone_is_no_error(tmp_path: Path) -> None:
    entry, gone = tmp_path / "a", tmp_path / "gone"
    entry.touch()
    mark_used(entry, [gone, entry])
    assert last_use(gone) == 0 < last_use(entry)


def test_a_new_folder_of_a_gguf_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_folder, "_MOST_FOLDERS", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "quire" / "gguf"
    for name in "ab":
        (cache / name).mkdir(parents=True)
        os.utime(cache / name, (5e9, 5e9))
    gguf_folder._write(cache / "c", [tmp_path / "file.gguf"], {"config.json": "{}"})
    assert "c" in {entry.name for entry in cache.iterdir()}
    assert len(list(cache.iterdir())) == 2


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user id that the system does not know, with an empty environment."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_has_no_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM("quire-tiny")
    assert llm.generate("a", SamplingParams(max_tokens=2), use_tqdm=False)[0].outputs[0].token_ids
    assert "prepared weights are not stored: there is no home folder; set HOME" in caplog.text
    assert prepared_folder(ModelSettings(prepared_weights="~nobody-here/x")) is not None
    with pytest.raises(CheckpointError, match=r"a.gguf cannot be stored: there is no home folder"):
        gguf_folder.gguf_folder(tmp_path / "a.gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache("gguf") == tmp_path / "quire" / "gguf"


def test_a_relative_cache_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its standard says: each folder that a command is run in would have a cache of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("cache", "./cache", "~/cache", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert user_cache("gguf") == tmp_path / ".cache" / "quire" / "gguf"
