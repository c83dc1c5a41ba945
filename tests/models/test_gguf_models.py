"""Models from GGUF files: the logits of transformers, and the tokens of dequantized weights."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkpoints import write_checkpoint as write_family
from child_process import run_to_end
from gguf_files import (
    WRITTEN,
    checkpoint_tensors,
    header_bytes,
    metadata_of,
    write_checkpoint,
    write_gguf,
)
from harness import PagedModel, load_folder
from safetensors.torch import save_file

import quire
from quire import LLM, SamplingParams, hub
from quire.cli import main
from quire.config import ModelSettings
from quire.errors import CheckpointError
from quire.gguf import gguf_folder
from quire.gguf.gguf_config import model_settings
from quire.gguf.gguf_header import read_gguf_header
from quire.locked_folder import remove_left_folders
from quire.models.checkpoint_formats.checkpoint_scheme import choose_formats
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from quire.models.checkpoints.open_checkpoint import open_checkpoint, weight_bytes
from quire.models.config.model_config import ModelConfig
from quire.models.loading.checkpoint_source import CheckpointSource
from quire.models.prepared.prepared_files import checkpoint_key

BUNDLED = Path(quire.__file__).parent / "bundled" / "quire-tiny"
PROMPT = torch.randint(3, 500, (70,), generator=torch.Generator().manual_seed(1)).tolist()
FAMILIES = [
    "llama", "llama_llama3", "llama_linear", "llama_biased", "llama_tied_mha", "llama_d96",
    "mistral_no_window", "qwen2", "qwen2_tied", "qwen3", "phi3", "phi3_partial", "phi3_longrope",
    "gemma2_d256",
]  # fmt: skip
WIDE = {
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    """Rows of queries and keys, norms, biases, factors of RoPE, windows, soft caps."""
    oracle = write_family(name, tmp_path / "hf")
    file = tmp_path / "model.gguf"
    write_checkpoint(tmp_path / "hf", file, "F32")
    model, model_config = load_folder(hub.resolve_model(str(file)), prepared_weights="none")
    ours = PagedModel(model, model_config).prefill(PROMPT)
    with torch.inference_mode():
        theirs = oracle(torch.tensor([PROMPT])).logits[0]
    assert (ours - theirs).norm() / theirs.norm() < 1e-5


def write_wide(family: str, folder: Path) -> None:
    config = getattr(transformers, f"{family}Config")(**WIDE)
    torch.manual_seed(0)
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)


def dequantize_into(folder: Path, gguf_folder: Path, original: Path) -> None:
    """A checkpoint in safetensors with the numbers of a GGUF file."""
    config = ModelConfig.from_folder(gguf_folder)
    source = CheckpointSource(open_checkpoint(gguf_folder), config, None)
    source._names = set(source._checkpoint.entries)
    weights = source.weights(torch.device("cpu"), torch.float32)
    folder.mkdir()
    numbers = {name: weight.float().contiguous() for name, weight, _ in weights}  # type: ignore[union-attr]
    save_file(numbers, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text((original / "config.json").read_text())


def greedy(model: Path, **settings: Any) -> list[list[int]]:
    llm = LLM(str(model), dtype="float32", skip_tokenizer_init=True, prepared_weights="none",
              **settings)  # fmt: skip
    prompts = [{"prompt_token_ids": [i % 300 for i in PROMPT[i : i + 12]]} for i in (0, 12)]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_tokens_are_those_of_the_dequantized_weights(family: str, tmp_path: Path) -> None:
    """For each block type that is written here."""
    write_wide(family, tmp_path / "hf")
    for kind in WRITTEN:
        file = tmp_path / f"{kind}.gguf"
        write_checkpoint(tmp_path / "hf", file, kind)
        plain = tmp_path / kind
        dequantize_into(plain, hub.resolve_model(str(file)), tmp_path / "hf")
        assert greedy(file, quantization="dequantized") == greedy(plain), kind


def test_the_bundled_model_answers_the_same_from_a_gguf_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tiny.gguf"
    write_checkpoint(BUNDLED, file, "F16")
    queries = ["red runing shoes", "megenta microphone", "hello, who are you?"]
    chats = [[{"role": "user", "content": query}] for query in queries]
    params = SamplingParams(temperature=0, max_tokens=24)
    answers = []
    for model in (str(BUNDLED), str(file), str(tmp_path)):  # the last: the folder that holds it
        llm = LLM(model, dtype="float32", quantization="none" if model == str(BUNDLED) else "gguf")
        outputs = llm.chat(chats, params, use_tqdm=False)
        assert model == str(BUNDLED) or llm.info.file_bytes == file.stat().st_size
        answers.append([output.outputs[0].text for output in outputs])
    assert answers[0][0] == "red running shoes"
    assert answers[1] == answers[2] == answers[0]
    assert not [each for each in caplog.records if "quantization" in each.msg]


def test_a_model_in_several_files_answers_as_from_one(tmp_path: Path) -> None:
    """Named by its folder, its first file, and another, behind links with other names."""
    config = json.loads((BUNDLED / "config.json").read_text())
    metadata, tensors = metadata_of(BUNDLED, config), checkpoint_tensors(BUNDLED, "Q8_0")
    whole, folder = tmp_path / "whole.gguf", tmp_path / "parts"
    write_gguf(whole, metadata, tensors)
    (tmp_path / "blobs").mkdir()
    folder.mkdir()
    names = sorted(tensors)
    for number in range(3):
        own = {"split.no": number, "split.count": 3, "split.tensors.count": len(names)}
        blob, file = tmp_path / "blobs" / f"{number}", f"m-{number + 1:05}-of-00003.gguf"
        part = {name: tensors[name] for name in names[number::3]}
        write_gguf(blob, (metadata if number == 0 else {}) | own, part)
        (folder / file).symlink_to(blob)  # as in the hub's cache
    expected = greedy(whole)
    for named in (folder, folder / "m-00001-of-00003.gguf", folder / "m-00003-of-00003.gguf"):
        assert greedy(named) == expected
    made = hub.resolve_model(str(folder))
    assert weight_bytes(made) == sum(blob.stat().st_size for blob in (tmp_path / "blobs").iterdir())
    settings = ModelSettings(prepared_weights=str(tmp_path))
    before = checkpoint_key(settings, made)
    os.utime(tmp_path / "blobs" / "2", (1_000_000, 1_000_000))
    assert checkpoint_key(settings, hub.resolve_model(str(folder))) != before


def test_prepared_weights_are_made_once_for_a_file(tmp_path: Path) -> None:
    """A folder and a prepared file by the file's path, size and time."""
    file, settings = tmp_path / "a.gguf", ModelSettings(prepared_weights=str(tmp_path))
    write_checkpoint(BUNDLED, file, "Q4_0")
    keys = []
    for seconds in (1_000_000, 1_000_000, 2_000_000):
        os.utime(file, (seconds, seconds))
        folder = hub.resolve_model(str(file))
        keys.append((folder, checkpoint_key(settings, folder)))
    assert keys[0] == keys[1]
    assert keys[0][0] != keys[2][0]
    assert keys[0][1] != keys[2][1]
    assert hub.resolve_model(str(keys[2][0])) == keys[2][0]  # which is the folder of a model, too


def test_formats_follow_the_types_of_blocks(tmp_path: Path) -> None:
    """Codes of Q4_0 are kept; where parts of a weight differ, and for other types, INT8."""
    file = tmp_path / "a.gguf"
    write_checkpoint(BUNDLED, file, "Q4_0", {"attn_v": "Q6_K", "1.ffn_down": "F16"})
    config = ModelConfig.from_folder(hub.resolve_model(str(file)))
    formats = {"cpu": ("int8", "int4", None, "int8"), "cuda": (None, "int4", None, None)}
    for device, expected in formats.items():
        scheme = choose_formats(ModelSettings(), config.checkpoint_format, config.spec, device)
        assert scheme is not None
        linears = dict(config.spec.named_linears)
        modules = ("self_attn.qkv_proj", "mlp.gate_up_proj", "mlp.down_proj")
        names = [*(f"model.layers.1.{module}" for module in modules), "lm_head"]
        found = [
            scheme.format_for(name, linears[name].role, linears[name].n, linears[name].k)
            for name in names
        ]
        assert tuple(each and each.name for each in found) == expected


def llama(**changes: Any) -> dict[str, Any]:
    config = json.loads((BUNDLED / "config.json").read_text())
    return metadata_of(BUNDLED, config) | {key.replace("__", "."): v for key, v in changes.items()}


def test_sizes_may_be_listed_for_each_layer(tmp_path: Path) -> None:
    """Config and tensors are those of a file with one number."""
    matrix = ("F32", np.arange(256 * 256, dtype=np.float32).reshape(256, 256))
    names = ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight"]
    found = []
    for listed in (False, True):
        metadata, file = llama(), tmp_path / f"{listed}.gguf"
        for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
            if listed:
                metadata[f"llama.{key}"] = [metadata[f"llama.{key}"]] * 2
        write_gguf(file, metadata, dict.fromkeys(names, matrix))
        checkpoint = GgufCheckpoint(tmp_path, [file])
        tensors = {entry.name: t for entry, t in checkpoint.tensors(set(checkpoint.entries))}
        found.append((model_settings(read_gguf_header(file), [2]), tensors))
    assert found[0][0] == found[1][0]
    assert len(found[0][1]) == len(names)
    for name, tensor in found[0][1].items():
        assert torch.equal(tensor, found[1][1][name]), name


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (llama(general__architecture="mamba"), "architecture is 'mamba', which is not supported"),
        (llama(llama__expert_count=8), "expert_count is not 0; take a model without experts"),
        (llama(llama__feed_forward_length=[1, 2]), "feed_forward_length differs between layers"),
        (
            llama(llama__attention__head_count_kv=[0, 0]),
            "kv is 0, not an integer between 1",
        ),
        (llama(llama__attention__head_count=[]), "head_count differs between layers"),
        (llama(llama__attention__value_length=8), "value_length is 8, not 32 as of keys"),
        (llama(llama__context_length="long"), "context_length is 'long', not an integer"),
        (llama(llama__rope__scaling__type="mystery"), "type is 'mystery' here, which is not"),
        ({}, "general.architecture is missing"),
    ],
)
def test_models_that_are_not_supported_are_refused(
    metadata: dict[str, Any], text: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.gguf"
    table = {"token_embd.weight": ("F16", (64, 256))}
    file.write_bytes(header_bytes(metadata, table) + bytes(64 * 512))
    with pytest.raises(CheckpointError, match=f"a.gguf: .*{text}"):
        hub.resolve_model(str(file))


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (llama(llama__attention__head_count=7), "num_key_value_heads is 2, which "),
        (llama(llama__rope__dimension_count=16), "partial_rotary_factor rotates 16 of 32 dim"),
    ],
)
def test_errors_in_a_models_config_name_the_file_it_was_made_of(
    metadata: dict[str, Any], text: str, tmp_path: Path
) -> None:
    file, table = tmp_path / "a.gguf", {"token_embd.weight": ("F16", (64, 256))}
    file.write_bytes(header_bytes(metadata, table) + bytes(64 * 512))
    with pytest.raises(CheckpointError, match=f"/a\\.gguf: {text}"):
        ModelConfig.from_folder(hub.resolve_model(str(file)))


def zeros_of_all_tensors(file: Path) -> dict[str, Any]:
    """Tensors like those of the bundled model, which is written to the file."""
    write_checkpoint(BUNDLED, file, "F16")
    found = read_gguf_header(file).tensors.values()
    return {each.name: ("F16", np.zeros(each.shape, np.float32)) for each in found}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("blk.0.attn_mystery.weight", "left over: blk.0.attn_mystery.weight"),
        ("blk.0.ffn_up.weight", r"mlp.up_proj.weight at byte \d+: its shape is \[256, 2\]"),
    ],
    ids=["unknown", "shape"],
)
def test_tensors_that_do_not_fit_are_named(name: str, text: str, tmp_path: Path) -> None:
    file, zeros = tmp_path / "a.gguf", np.zeros((256, 2), np.float32)
    tensors = zeros_of_all_tensors(tmp_path / "whole.gguf")
    write_gguf(file, llama(), tensors | {name: ("F16", zeros)})
    with pytest.raises(CheckpointError, match=text):
        load_folder(hub.resolve_model(str(file)), prepared_weights="none")


def test_a_missing_tensor_is_named_as_in_the_file(tmp_path: Path) -> None:
    file, tensors = tmp_path / "a.gguf", zeros_of_all_tensors(tmp_path / "whole.gguf")
    config = json.loads((BUNDLED / "config.json").read_text())
    del tensors["blk.1.ffn_up.weight"], tensors["output_norm.weight"]
    write_gguf(file, metadata_of(BUNDLED, config), tensors)
    text = r"a\.gguf: its .*missing: blk\.1\.ffn_up\.weight, output_norm\.weight; take a file with"
    with pytest.raises(CheckpointError, match=text):
        load_folder(hub.resolve_model(str(file)), prepared_weights="none")


def test_what_needs_safetensors_files_says_so_of_a_gguf_file(tmp_path: Path) -> None:
    write_checkpoint(BUNDLED, tmp_path / "a.gguf", "F16")
    folder = hub.resolve_model(str(tmp_path / "a.gguf"))
    with pytest.raises(CheckpointError, match=r"/a\.gguf is a GGUF file, which cannot be used for"):
        Checkpoint.open(folder)


def test_messages_name_the_gguf_file_not_the_folder_made_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "a.gguf", "quire-tiny-draft"
    write_checkpoint(BUNDLED, file, "Q8_0")
    for pair in ((other, str(file)), (str(file), other)):
        assert main(["verify", *pair, "--no-speed"]) == 2
        assert capsys.readouterr().err.startswith(f"error: {file} is a GGUF file, which cannot be")


def test_a_template_that_cannot_be_used_may_be_replaced(tmp_path: Path) -> None:
    write_checkpoint(BUNDLED, tmp_path / "whole.gguf", "F16")
    content = (tmp_path / "whole.gguf").read_bytes()
    file = tmp_path / "a.gguf"
    file.write_bytes(content.replace(b"{%", b"{{"))
    text = r"(?s)/a\.gguf: tokenizer\.chat_template: .*set chat_template to another"
    with pytest.raises(CheckpointError, match=text):
        LLM(str(file))
    assert LLM(str(file), chat_template="{{ messages[0].content }}")


def test_a_tokenizer_that_is_not_read_may_be_replaced(tmp_path: Path) -> None:
    write_checkpoint(BUNDLED, tmp_path / "whole.gguf", "F16")
    content = (tmp_path / "whole.gguf").read_bytes()
    file = tmp_path / "a.gguf"
    file.write_bytes(content.replace(b"smollm", b"mystic"))
    with pytest.raises(
        CheckpointError, match=r"pre is 'mystic', .*; name .*\(tokenizer='FOLDER'\)"
    ):
        LLM(str(file))
    assert LLM(str(file), tokenizer=str(BUNDLED)).generate(
        "red", SamplingParams(max_tokens=1), use_tqdm=False
    )


def test_folders_with_several_files_name_them(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf", "mmproj-c.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"2 GGUF files \(a.gguf, b.gguf\); .*/a.gguf$"):
        hub.resolve_model(str(tmp_path))


def test_a_removal_that_is_cut_short_leaves_no_part_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("a.gguf", "b.gguf")]
    for file in files:
        write_checkpoint(BUNDLED, file, "F16")
    monkeypatch.setattr(gguf_folder, "_MOST_FOLDERS", 1)
    with monkeypatch.context() as killed:
        removed = "quire.gguf.gguf_folder.shutil.rmtree"
        killed.setattr(
            removed, lambda folder, **_: (folder / "config.json").unlink(missing_ok=True)
        )
        first, _ = map(hub.resolve_model, map(str, files))
        assert not first.exists()
    for file in files:
        assert ModelConfig.from_folder(hub.resolve_model(str(file))).num_layers
    assert len(list(first.parent.iterdir())) == 1, "what was left is removed, too"


def test_config_files_are_on_their_disk_before_others_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system that goes down keeps the folder's name, and may lose what is in its files."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    file = tmp_path / "model.gguf"
    write_family("llama", tmp_path / "hf")
    write_checkpoint(tmp_path / "hf", file, "F32")
    made = [path for path in hub.resolve_model(str(file)).iterdir() if not path.is_symlink()]
    assert {path.stat().st_ino for path in made} == {*synced}


def test_a_cache_of_another_user_is_one_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after `sudo quire serve a.gguf`: nothing in it may be looked at, which root always may."""
    file, look_at = tmp_path / "a.gguf", os.stat
    write_checkpoint(BUNDLED, file, "F16")

    def denied(path: Any, *rest: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "theirs" / "quire")):
            raise PermissionError(13, "Permission denied", str(path))
        return look_at(path, *rest, **options)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    monkeypatch.setattr(os, "stat", denied)
    monkeypatch.setattr(gguf_folder, "_write", refuse)
    folder = hub.resolve_model(str(file))
    assert "cannot be written (Permission denied)" in caplog.text
    gguf_folder._remove(folder, os.getpid())


def test_without_a_cache_config_files_are_in_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.gguf"
    write_checkpoint(BUNDLED, file, "F16")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match=r"cannot be written .*set XDG_CACHE_HOME"):
        hub.resolve_model(str(file))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    killed = "import os, sys; from quire import hub; hub.resolve_model(sys.argv[1]); os.kill(0, 9)"
    command = [sys.executable, "-c", killed, str(file)]
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    run_to_end(command, env=environment)
    (left,) = (tmp_path / "temporary").iterdir()
    folder = hub.resolve_model(str(file))
    assert folder.parent == tmp_path / "temporary"
    assert not left.exists()
    remove_left_folders("quire-gguf-", folder.parent)
    assert folder.exists(), "another process leaves it"
    assert (folder / "model.gguf").resolve() == file
    assert hub.resolve_model(str(file)) == folder, "one for all that reads it"
    (record,) = caplog.records
    assert "a.gguf are in a temporary folder" in record.getMessage()
    gguf_folder._remove(folder, os.getpid() + 1)
    assert folder.exists(), "a fork leaves it"
    gguf_folder._remove(folder, os.getpid())
    assert not folder.exists()
