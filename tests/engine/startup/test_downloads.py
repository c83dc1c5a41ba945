"""Weights of the hub are downloaded after all that the small files of a model decide."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import ModelInfo
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from quire import LLM, hub
from quire.cli.verification import folder_of
from quire.config import EngineConfig
from quire.engine.processes.fleet_model import _measured
from quire.engine.startup import footprint
from quire.engine.startup.memory_plan import DeviceMemory, plan_memory
from quire.errors import UserError
from quire.models.config.quality_report import QUALITY_FILE, write_report

NAME, COMMIT, WEIGHTS = "org/name", "0a" * 20, "model.safetensors"


class FakeHub:
    """One repository, with the files of a bundled model; a download copies them."""

    def __init__(self, files: Path, cache: Path) -> None:
        self.files, self.snapshot = files, cache / "models--org--name" / "snapshots" / COMMIT
        self.revisions: list[str | None] = []

    def change(self, **values: Any) -> None:
        """Change keys of config.json."""
        path = self.files / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    def download(self, name: str, *, revision: str | None = None, allow_patterns: list[str]) -> str:
        """Like snapshot_download."""
        assert name == NAME
        self.revisions.append(revision)
        self.snapshot.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in self.files.iterdir()]
        for each in filter_repo_objects(names, allow_patterns=allow_patterns):
            shutil.copy(self.files / each, self.snapshot / each)
        return str(self.snapshot)

    @property
    def has_weights(self) -> bool:
        """Whether they have been downloaded."""
        return (self.snapshot / WEIGHTS).exists()


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = tmp_path / "files"
    shutil.copytree(hub.resolve_model("quire-tiny-draft"), files)
    fake = FakeHub(files, tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", None)  # as if it were offline
    _forget()
    yield fake
    _forget()


def _forget() -> None:
    """What a process has asked the hub, it does not ask again."""
    hub._download.cache_clear()
    hub._listed_files.cache_clear()


def serve(**options: Any) -> object:
    return _measured(EngineConfig.from_options(model=NAME, **options), None)


def generate(**options: Any) -> object:
    with LLM(NAME, **options) as llm:
        return llm.info


def quantize(**_: Any) -> object:
    return folder_of(NAME)


@pytest.mark.parametrize(
    ("config", "options", "words", "starts"),
    [
        ({"architectures": ["NewForCausalLM"]}, {}, "NewForCausalLM", [serve, generate, quantize]),
        ({"quantization_config": {"quant_method": "new"}}, {}, "'new'", [serve, generate]),
        ({}, {"quantization": "gptq"}, "is not quantized", [serve, generate]),
        ({}, {"quantization_overrides": "nowhere=int8"}, "nowhere", [serve, generate]),
        ({}, {"max_model_len": 1 << 30}, "positions up to", [serve, generate]),
        ({}, {"override_generation_config": '{"top_p": 2}'}, "top_p", [serve, generate]),
    ],
)
def test_what_small_files_decide_is_refused_without_weights(
    config: dict[str, Any],
    options: dict[str, Any],
    words: str,
    starts: list[Callable[..., object]],
    fake_hub: FakeHub,
) -> None:
    fake_hub.change(**config)
    for start in starts:
        with pytest.raises(UserError, match=words) as error:
            start(**options)
        assert not fake_hub.has_weights, start
        assert "snapshots" not in str(error.value), "the repository is named instead"


def test_a_missing_tokenizer_is_refused_without_weights(fake_hub: FakeHub) -> None:
    (fake_hub.files / "tokenizer.json").unlink()
    for start in (serve, generate):
        with pytest.raises(UserError, match=f"^{NAME}/tokenizer.json: it does not exist"):
            start()
        assert not fake_hub.has_weights


def test_weights_that_the_machine_cannot_hold_are_not_downloaded(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "most_bytes", lambda: 1 << 10)
    for start in (serve, generate):
        with pytest.raises(UserError, match="but this machine has 1,024"):
            start(device="cpu")
        assert not fake_hub.has_weights


def test_a_config_without_a_data_type_has_that_of_the_weights(
    fake_hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    """Also to the memory plan and the footprint, which download them."""
    caplog.set_level("INFO")
    fake_hub.change(dtype=None, torch_dtype=None)
    weights = load_file(fake_hub.files / WEIGHTS)
    half = {name: weight.half() for name, weight in weights.items()}
    save_file(half, fake_hub.files / WEIGHTS)
    config = EngineConfig.from_options(model=NAME, device="cuda")
    plan = plan_memory(config, DeviceMemory("cuda", 1 << 33, 1 << 33))
    assert plan.weights == {"float16": sum(weight.nbytes for weight in half.values())}
    assert footprint.footprint_of(config).weights == sum(plan.weights.values())
    said = [each for each in caplog.messages if "no dtype; that of the weights is float16" in each]
    assert len(said) == 1


@pytest.mark.parametrize("start", [serve, generate, quantize])
def test_weights_come_from_the_commit_of_the_small_files(
    start: Callable[..., object], fake_hub: FakeHub
) -> None:
    start()
    assert fake_hub.has_weights
    assert fake_hub.revisions == [None, COMMIT]


@pytest.mark.parametrize("load_format", ["dummy", "null"])
def test_without_weights_none_are_downloaded(load_format: str, fake_hub: FakeHub) -> None:
    for start in (serve, generate):
        start(load_format=load_format)
        assert not fake_hub.has_weights


def test_the_report_of_the_weights_quality_is_downloaded(fake_hub: FakeHub) -> None:
    """Else no gate could refuse a model of the hub, or it would refuse each."""
    (fake_hub.files / QUALITY_FILE).write_text('{"failures": []}')
    for start in (serve, generate):
        with pytest.raises(UserError, match=QUALITY_FILE):
            start()


def test_weights_that_fail_the_quality_gate_are_not_downloaded(fake_hub: FakeHub) -> None:
    report = {"failures": ["perplexity rises by 9.00%"], "passed": False, "base": "org/base"}
    write_report(fake_hub.files, report)
    required = {"quantization": "int8", "quality_gate": "require"}
    for options in ({}, {"quality_gate": "cosine=0.9"}, required):
        for start in (serve, generate):
            with pytest.raises(UserError, match=f"{NAME} does not pass|weights of {NAME} as they"):
                start(**options)
            assert not fake_hub.has_weights, (start, options)
    write_report(fake_hub.files, report | {"failures": [], "passed": True})
    _forget()
    for start in (serve, generate):
        start()
    assert fake_hub.has_weights


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ["README.md", "b.gguf", "a-Q4_0.gguf", "mmproj-a.gguf"],
            f"{NAME} has GGUF files (a-Q4_0.gguf, b.gguf); download one (`hf download {NAME} "
            "FILE`, or all with -of- in their names) and name that file",
        ),
        (["a.gguf", "config.json"], f"{NAME} has GGUF files (a.gguf); download one"),
        (["a.gguf", "config.json", "tokenizer.json"], f"{NAME} has GGUF files (a.gguf); download"),
        (["adapter_config.json", "tokenizer.json"], f"{NAME} is a LoRA adapter, without the"),
        (["notes.txt"], f"{NAME} has no config.json; name a repository with a model's files"),
        (None, f"{NAME} has no config.json; name a repository with a model's files"),
    ],
)
def test_a_repository_that_lacks_files_is_refused_by_those_it_has(
    files: list[str] | None, words: str, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(_: object, name: str, *, revision: str | None, **_rest: object) -> ModelInfo:
        if files is None:
            raise ConnectionError("offline")
        assert (name, revision) == (NAME, COMMIT)
        return ModelInfo(id=name, siblings=[{"rfilename": each} for each in files])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    for path in fake_hub.files.iterdir():
        if path.name not in (files or []):
            path.unlink()
    for each in files or []:
        (fake_hub.files / each).touch()
    for start in (serve, generate, quantize):
        with pytest.raises(UserError, match=re.escape(words)):
            start()


def test_files_that_the_hub_did_not_list_are_asked_for_again(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in fake_hub.files.iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"has no config\.json"):
        serve()  # offline
    listed = ModelInfo(id=NAME, siblings=[{"rfilename": "a.gguf"}])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: listed)
    with pytest.raises(UserError, match=r"has GGUF files \(a.gguf\)"):
        serve()


def test_a_model_that_cannot_run_is_refused_before_its_tokenizer(fake_hub: FakeHub) -> None:
    fake_hub.change(architectures=["NewForCausalLM"])
    (fake_hub.files / "tokenizer.json").unlink()
    for start in (serve, generate):
        with pytest.raises(UserError, match="NewForCausalLM"):
            start()


def test_a_repository_with_a_tokenizer_alone_is_one_for_the_setting(fake_hub: FakeHub) -> None:
    (fake_hub.files / "config.json").unlink()
    config = EngineConfig.from_options(model="quire-tiny-draft", tokenizer=NAME)
    assert hub.tokenizer_folder(config) == fake_hub.snapshot
