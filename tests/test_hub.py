"""Model names: bundled, local, on the hub; and what to do when there is nothing."""

from __future__ import annotations

import os
import re
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from child_process import run_to_end
from huggingface_hub import errors

from quire import hub
from quire.config import EngineConfig
from quire.errors import CheckpointError


@pytest.fixture(autouse=True)
def _nothing_is_fetched_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    hub._download.cache_clear()
    monkeypatch.setattr(hub, "_files_of", lambda *_: ())


def with_config(folder: Path) -> Path:
    """A folder that has a config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").touch()
    return folder


def test_a_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert hub.resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="leave revision out"):
        hub.resolve_model(str(tmp_path), "main")


@pytest.mark.parametrize(
    "name", ["/nowhere/model", "./nowhere", "~nobody-at-all/x", "a/b/c", "", "  "]
)
def test_what_can_only_be_a_folder_is_not_asked_from_the_hub(name: str) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        hub.resolve_model(name)


def test_what_cannot_be_looked_at_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read \(File name too long\); check"):
        hub.resolve_model("x" * 5000)

    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\); check its"):
        hub.resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["nope.gguf", "models/Nope-Q4_K_M.GGUF", "a.safetensors"])
def test_what_can_only_be_a_file_is_not_asked_from_the_hub(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"there is no file '{name}'; use a file"):
        hub.resolve_model(name)


def test_bundled_names_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "BUNDLED_FOLDER", tmp_path)
    with pytest.raises(CheckpointError, match="not in this installation"):
        hub.resolve_model("quire-tiny")
    (tmp_path / "quire-tiny").mkdir()
    (tmp_path / "quire-tiny" / "config.json").write_text("{}")
    assert hub.resolve_model("quire-tiny") == tmp_path / "quire-tiny"


def test_a_snapshot_is_fetched_without_pickles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert hub.resolve_model("org/model", "v2") == tmp_path
    assert (asked["name"], asked["revision"]) == ("org/model", "v2")
    assert not any(pattern.endswith((".bin", ".pt", "*")) for pattern in asked["allow_patterns"]
                   if not pattern.startswith(("tokenizer", "chat_template")))  # fmt: skip
    autogptq = "gptq_model-4bit-128g.safetensors.index.json"
    assert any(fnmatch(autogptq, pattern) for pattern in asked["allow_patterns"])


RESPONSE = httpx.Response(404, request=httpx.Request("GET", "https://hub.test"))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (errors.RepositoryNotFoundError("no", response=RESPONSE), "check the spelling"),
        (errors.GatedRepoError("no", response=RESPONSE), "needs its owner's permission; ask for"),
        (errors.RevisionNotFoundError("no", response=RESPONSE), "has no revision 'v2'"),
        (errors.LocalEntryNotFoundError("no"), "HF_HUB_OFFLINE"),
        (errors.HFValidationError("no"), "neither a folder nor a name"),
        (errors.HfHubHTTPError("no", response=RESPONSE), "try again"),
        (OSError("disk full"), "disk full"),
        (RuntimeError("Could not determine home directory."), "set HF_HOME to a folder"),
        (ImportError("Using SOCKS proxy, but"), "proxy, but\\); check HF_ENDPOINT and the proxies"),
        (httpx.UnsupportedProtocol("no protocol"), "no protocol\\); check HF_ENDPOINT"),
        (RuntimeError("Data processing error: CAS service error"), "service error\\); try again"),
    ],
)
def test_failures_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, words: str
) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match=words):
        hub.resolve_model("org/model", "v2")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HF_ENDPOINT", "http://[hub"),
        ("HF_ENDPOINT", "http://hub:99999"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "ten"),
    ],
)
def test_variables_that_the_client_cannot_read_are_named(variable: str, value: str) -> None:
    found = run_to_end(
        [sys.executable, "-m", "quire", "generate", "org/model", "--prompt", "a"],
        env=os.environ | {variable: value},
    )
    assert "Traceback" not in found.stderr
    assert re.search("(?m)^error: the hub's client .*correct HF_ENDPOINT, or", found.stderr)


def test_offline_without_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real client in offline mode."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="was not downloaded before"):
        hub.resolve_model("org/model")


@pytest.mark.parametrize(
    ("page", "revision"),
    [
        ("https://huggingface.co/a/b", None),
        ("hf.co/a/b", None),
        ("huggingface.co/a/b/", None),
        ("https://huggingface.co/a/b?library=vllm", None),
        ("https://huggingface.co/a/b/tree/main", "main"),
        ("https://huggingface.co/a/b/blob/v2/config.json", "v2"),
        ("https://huggingface.co/a/b/tree/refs%2Fpr%2F1/sub#x", "refs/pr/1"),
    ],
)
def test_a_page_of_the_hub_is_its_model(
    page: str, revision: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def snapshot_download(name: str, revision: str | None, **_: object) -> str:
        return str(with_config(tmp_path / f"{name}@{revision}"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert hub.resolve_model(page) == tmp_path / f"a/b@{revision}"
    assert hub.resolve_model(page, "v1") == tmp_path / "a/b@v1"


def test_processes_that_start_later_get_the_same_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that has died must not come back with what was uploaded meanwhile."""
    commits = {"main": "1" * 40, "v1": "2" * 40}

    def snapshot_download(name: str, revision: str | None, **_: object) -> str:
        commit = commits.get(revision or "main", revision)
        return str(with_config(tmp_path / name / "snapshots" / str(commit)))

    def files_of(config: EngineConfig) -> tuple[Path, Path]:
        hub._download.cache_clear()  # as in another process
        model = config.model
        return hub.resolve_model(model.model, model.revision), hub.tokenizer_folder(config)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    given = [
        {"model": "a/b"},
        {"model": "https://huggingface.co/a/b/tree/v1"},
        {"model": "a/b", "revision": "v1", "tokenizer": "c/d"},
    ]
    first = [hub.pinned(EngineConfig.from_options(**options)) for options in given]
    (tmp_path / "c/d/snapshots" / commits["main"] / "tokenizer.json").touch()
    before = [files_of(config) for config in first]
    commits |= {"main": "3" * 40, "v1": "4" * 40}
    assert [files_of(config) for config in first] == before
    assert [config.model.public_name for config in first] == [each["model"] for each in given]
    for name in ("quire-tiny", str(hub.BUNDLED_FOLDER / "quire-tiny")):
        config = EngineConfig.from_options(model=name)
        assert hub.pinned(config) == config


def test_a_page_of_a_file() -> None:
    page = "https://huggingface.co/a/b/blob/main/c.gguf"
    with pytest.raises(CheckpointError, match=f"there is no file '{page}'"):
        hub.resolve_model(page)


def test_other_pages_get_no_advice_on_tags() -> None:
    with pytest.raises(CheckpointError, match="there is no folder 'https://ollama"):
        hub.resolve_model("https://ollama.com/library/llama3:1b")


def test_a_local_folder_comes_before_a_page_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("hf.co/a/b")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert hub.resolve_model("hf.co/a/b") == folder


def test_names_of_ollama(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"'llama3\.2:1b' is not a name on the hub, .*tags"):
        hub.resolve_model("llama3.2:1b")

    def unreachable(*_: object, **__: object) -> None:
        raise errors.LocalEntryNotFoundError("no")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(CheckpointError, match="begins with its owner, as in meta-llama/"):
        hub.resolve_model("llama3.2")
