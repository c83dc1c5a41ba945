"""What is named as a model and is none: the message says what it is, and what to do."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from child_process import run_to_end
from cpu_limit import cpu_limit

from quire import hub
from quire.config import EngineConfig
from quire.engine.startup.resolved_config import resolve
from quire.errors import CheckpointError
from quire.model_folder import BUNDLED_FOLDER, named_path, write_whole
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.config.model_config import ModelConfig

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4000000000\n"


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, "is empty; download the model into it"),
        ({"a.gguf": "GGUF", "README.md": "x"}, r"a\.gguf is damaged at byte 4: "),
        ({"a.gguf": "", "b.gguf": ""}, r"has 2 GGUF files \(a\.gguf, b\.gguf\); name one of them "
         r"as the model, such as .*/a\.gguf$"),
        ({"adapter_config.json": "{}", "adapter_model.safetensors": "x"}, "is a LoRA adapter, .*"
         "merge it .*, and name the merged folder"),
        ({"model_index.json": "{}"}, "is an image model"),
        ({"quire_quantize.json": "{}", "tokenizer.json": "{}"}, "that has not finished; run the "),
        ({"params.json": "{}", "consolidated.safetensors": "x"}, "its maker's own format"),
        ({"config.json": "{}", "model.safetensors": POINTER}, r"model\.safetensors is a Git-LFS "
         "pointer, not the file itself; run `git lfs pull` in "),
        ({"notes.txt": "x"}, "is not a model: it has no config.json; name the folder of a comp"),
        ({"qwen/config.json": "{}"}, "is not a model: it has no config.json; name .*/qwen$"),
        ({"config.json": POINTER}, r"config\.json is a Git-LFS pointer"),
        ({"config.json": "{}", "chat_template.jinja": POINTER}, r"jinja is a Git-LFS pointer"),
        ({"a.gguf": POINTER}, r"a\.gguf is a Git-LFS pointer"),
    ],
)  # fmt: skip
def test_folders(tmp_path: Path, files: dict[str, str], text: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=f"^{tmp_path}.*{text}"):
        hub.resolve_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("model.gguf", "", "is not a GGUF file; download it again"),
        ("model.gguf", POINTER, "is a Git-LFS pointer, not the file itself; run `git lfs pull` in"),
        ("model.bin", "GGUF...", "is damaged at byte 4: "),
        ("model.safetensors", "", "is one file of a model; use its folder, /"),
        ("notes.txt", "", "is a file; use the folder of a model, a GGUF file, or a hub name"),
    ],
)
def test_files(tmp_path: Path, name: str, content: str, text: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=f"{name} {text}"):
        hub.resolve_model(str(tmp_path / name))


def test_a_tokenizer_may_have_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert hub.resolve_model(str(tmp_path)) == tmp_path
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is a LoRA adapter"):
        hub.resolve_model(str(tmp_path))


def test_an_adapter_beside_a_model_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = shutil.copytree(BUNDLED_FOLDER / "quire-tiny-draft", tmp_path / "model")
    resolved = resolve(EngineConfig.from_options(model=str(model)), "cpu")
    resolved.log_weights()
    assert "adapter" not in caplog.text
    (model / "adapter_config.json").write_text("{}")
    resolved.log_weights()
    assert "are used without it; if it is not in them, merge it (peft: " in caplog.text


def test_a_file_is_on_its_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a system that goes down may leave the new name, and nothing of what was written."""
    done: list[tuple[str, int]] = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append(("sync", os.fstat(file).st_size)))
    monkeypatch.setattr(
        os, "replace", lambda a, b: (done.append(("name", a.stat().st_size)), replace(a, b))
    )
    (file := tmp_path / "config.json").write_text("before")
    write_whole(file, lambda part: part.write_text("afterwards"))
    assert (done, file.read_text()) == ([("sync", 10), ("name", 10)], "afterwards")


def test_files_that_are_not_read_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "logo.png").write_text(POINTER)
    os.mkfifo(tmp_path / "pipe")
    assert hub.resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_pipe_is_not_taken_for_a_file_that_is_missing(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name} must be a regular file, not a folder, pipe"):
        hub.resolve_model(str(tmp_path))


def test_a_pipe_or_device_is_not_waited_for(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    os.mkfifo(config)
    with pytest.raises(CheckpointError, match=r"config\.json must be a regular file"):
        ModelConfig.from_folder(tmp_path)
    config.unlink()
    config.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"config\.json must be a regular file"):
        ModelConfig.from_folder(tmp_path)
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"a\.safetensors must be a regular file"):
        Checkpoint.open(tmp_path)


def write_header(file: Path, num_tensors: int) -> None:
    tensors = {
        f"layer.{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i in range(num_tensors)
    }
    header = json.dumps(tensors).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(num_tensors))


def test_headers_with_very_many_tensors_are_refused_before_they_are_read(tmp_path: Path) -> None:
    write_header(tmp_path / "model.safetensors", 300_000)
    said = "more than 100,000 tensors"
    with cpu_limit(1.0, time.process_time), pytest.raises(CheckpointError, match=said):
        Checkpoint.open(tmp_path)


def test_headers_with_many_tensors_take_linear_time(tmp_path: Path) -> None:
    write_header(tmp_path / "model.safetensors", 60_000)
    with cpu_limit(5.0, time.process_time):  # far more if each name were searched for
        assert len(Checkpoint.open(tmp_path).entries) == 60_000


def test_an_unknown_family_gets_the_list_of_supported_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MixtralForCausalLM"]}')
    with pytest.raises(CheckpointError, match=r"names 'MixtralForCausalLM'; supported are Llama.*, "
                       "such as Qwen/Qwen3-0.6B"):  # fmt: skip
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["Qwen3ForSequenceClassification", "BertForTokenClassification", "Qwen2ForProcessRewardModel"],
)
def test_a_classifier_is_called_so_and_gets_what_would_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    with pytest.raises(CheckpointError, match=f"names '{name}', a classifier or reranker, .*; take "
                       "an embedding model, .* /v1/rerank, /v1/score"):  # fmt: skip
        ModelConfig.from_folder(tmp_path)


def test_messages_name_models_as_users_do() -> None:
    bundled = hub.BUNDLED_FOLDER / "quire-tiny"
    assert str(named_path(bundled)) == "quire-tiny"
    assert str(named_path(bundled / "config.json")) == "quire-tiny/config.json"
    snapshot = Path("/cache/models--owner--name/snapshots/0a1b/config.json")
    assert str(named_path(snapshot)) == "owner/name/config.json"
    assert named_path(Path("/models/quire-tiny")) == Path("/models/quire-tiny")


def test_a_path_that_the_system_does_not_read_has_a_name_too(tmp_path: Path) -> None:
    """`quire cache` shows the models of other users."""
    too_long = tmp_path / ("a" * 300)
    assert named_path(too_long) == too_long
    secret = tmp_path / "secret"
    (secret / "model").mkdir(parents=True)
    secret.chmod(0)
    code = (
        "import os, sys; from pathlib import Path; from quire.model_folder import named_path\n"
        "os.getuid() or os.setuid(65534)\n"
        "print(named_path(Path(sys.argv[1])))"
    )
    done = run_to_end([sys.executable, "-c", code, secret / "model"])
    assert done.stdout == f"{secret / 'model'}\n", done.stderr
