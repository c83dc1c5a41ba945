"""Reading a model's folder: each file, each damage, each fix."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from quire.config import EngineConfig
from quire.errors import CheckpointError
from quire.tokenizer.load_tokenizer import check_tokenizer, load_tokenizer
from quire.tokenizer.tokenizer import Tokenizer

WriteFolder = Callable[..., Path]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such folder; name one"):
        Tokenizer.from_folder(tmp_path / "nothing")


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"exist; copy it from the model's page$"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("load", [check_tokenizer, load_tokenizer])
def test_no_tokenizer_for_an_engine_which_has_settings(
    tmp_path: Path, load: Callable[[EngineConfig], object]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = EngineConfig.from_options(model="quire-tiny", tokenizer=str(tmp_path))
    fix = "copy it .*, or run the model with tokenizer='FOLDER', or with skip_tokenizer_init"
    with pytest.raises(CheckpointError, match=fix):
        load(config)


def test_only_a_sentencepiece_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    with pytest.raises(CheckpointError, match=r"convert tokenizer\.model once: pip install"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_file_that_may_not_be_read_is_not_damaged(
    write: WriteFolder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = write(chat_template="{{ messages }}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    open_file = io.open

    def denied(path: Any, *rest: Any, **options: Any) -> Any:
        if str(path).endswith(name):
            raise PermissionError(13, "Permission denied")
        return open_file(path, *rest, **options)

    monkeypatch.setattr(io, "open", denied)
    words = rf"{name}:? cannot be read \(Permission denied\); check its permissions"
    with pytest.raises(CheckpointError, match=words):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": 5}', b"\xff\xfe", b"null"])
def test_damaged_tokenizer(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: damaged .*; download it again"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        *(b"{", b"[1]", b"\xff", b"[" * 99_999, b'{"a": ' + b"9" * 5000 + b"}"),
        b'{"eos_token": "\\ud800"}',
    ],
    ids=["open", "list", "bytes", "nested", "number", "surrogate"],
)
@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer_config.json", "special_tokens_map.json"),
        *("added_tokens.json", "chat_template.json"),
    ],
)
def test_damaged_settings(write: WriteFolder, name: str, content: bytes) -> None:
    folder = write()
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} must be .*download it again"):
        Tokenizer.from_folder(folder)


def test_settings_may_be_absent(write: WriteFolder) -> None:
    folder = write()
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_token_id is None
    assert tokenizer.bos_token_id is None
    assert not tokenizer.has_chat_template


def test_older_folders_name_tokens_in_the_map(write: WriteFolder) -> None:
    folder = write(eos_token="<|end|>")
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>", "lstrip": False}, "pad_token": None})
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_token_id == tokenizer.encode("<|im_end|>", parse_special=True)[0]
    assert tokenizer.eos_token_id == PreTrainedTokenizerFast.from_pretrained(folder).eos_token_id


def test_a_named_token_becomes_a_control_token(write: WriteFolder) -> None:
    folder = write(eos_token="fox")  # an ordinary word of the vocabulary
    tokenizer, oracle = (
        Tokenizer.from_folder(folder),
        PreTrainedTokenizerFast.from_pretrained(folder),
    )
    assert tokenizer.eos_token_id == oracle.eos_token_id
    assert oracle.eos_token_id in tokenizer.special_ids
    assert tokenizer.encode("a fox", parse_special=True) == oracle.encode("a fox")


@pytest.mark.parametrize("is_special", [True, False], ids=["special", "plain"])
@pytest.mark.parametrize(
    "settings",
    [
        {"eos_token": "<|im_end|>"},
        {"eos_token": {"content": "<|im_end|>", "rstrip": True, "__type": "AddedToken"}},
        {"additional_special_tokens": ["fox", "<|im_end|>"]},
        {"extra_special_tokens": {"image": "fox"}},
        {"image_token": "fox"},
    ],
)
def test_special_tokens_of_the_settings_are_those_of_transformers(
    settings: dict[str, Any], is_special: bool, write: WriteFolder
) -> None:
    """is_special: of <|im_end|> in tokenizer.json, where fox is an ordinary token."""
    folder = write(**settings)
    spec = json.loads((folder / "tokenizer.json").read_text())
    (end,) = [each for each in spec["added_tokens"] if each["content"] == "<|im_end|>"]
    end["special"] = is_special
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = Tokenizer.from_folder(folder)
    oracle = PreTrainedTokenizerFast.from_pretrained(folder)
    text = "afox  b <|im_end|>  c"
    ids = oracle.encode(text)
    assert tokenizer.encode(text, parse_special=True) == ids
    assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
    is_control = tokenizer.control_token_id("<|im_end|>") is not None
    assert is_control == (is_special or "<|im_end|>" in json.dumps(settings.get("eos_token", "")))
    assert (tokenizer.token_to_id("<|im_end|>") in tokenizer.encode(text)) != is_control


def test_lists_of_special_tokens_that_are_none_are_left_out(write: WriteFolder) -> None:
    folder = write(additional_special_tokens=3, extra_special_tokens=[None, 4, "[NONE]"])
    assert Tokenizer.from_folder(folder).control_token_id("</s>") is not None


def test_a_named_token_without_an_id_is_left_out(write: WriteFolder) -> None:
    tokenizer = Tokenizer.from_folder(write(pad_token="[PAD]", eos_token="[EOS]"))
    assert tokenizer.eos_token_id is None
    assert tokenizer.decode(tokenizer.encode("[PAD]", parse_special=True)) == "[PAD]"


def test_tokens_that_only_the_settings_list(write: WriteFolder) -> None:
    size = Tokenizer.from_folder(write()).vocab_size
    flags = {"lstrip": False, "rstrip": True, "normalized": False, "single_word": False}
    listed = {
        str(size + 1): {"content": "<tool>", "special": False, **flags},
        str(size): {"content": "<image>", "special": True, **flags},
    }
    folder = write(added_tokens_decoder=listed)
    tokenizer, oracle = (
        Tokenizer.from_folder(folder),
        PreTrainedTokenizerFast.from_pretrained(folder),
    )
    assert tokenizer.encode("a<image> b<tool> c", parse_special=True) == oracle.encode(
        "a<image> b<tool> c"
    )
    assert size in tokenizer.special_ids
    assert size + 1 not in tokenizer.special_ids


def test_older_folders_list_added_tokens_in_a_file(write: WriteFolder) -> None:
    size = Tokenizer.from_folder(write()).vocab_size
    folder = write(eos_token="<stop>")
    (folder / "added_tokens.json").write_text(json.dumps({"<tool>": size + 1, "<stop>": size}))
    tokenizer, oracle = (
        Tokenizer.from_folder(folder),
        PreTrainedTokenizerFast.from_pretrained(folder),
    )
    text = "a<stop> b<tool> c"
    assert tokenizer.encode(text, parse_special=True) == oracle.encode(text)
    assert tokenizer.eos_token_id == oracle.eos_token_id == size
    assert [size + number in tokenizer.special_ids for number in (0, 1)] == [True, False]


def test_an_older_list_of_added_tokens_does_not_change_tokenizer_json(
    write: WriteFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers says nothing; it gives <c> the id of another row, which is left out here."""
    size = Tokenizer.from_folder(write()).vocab_size
    folder = write()
    listed = {"<b>": size, "<c>": size + 7, "fox": size + 8, "<|im_end|>": 0}
    (folder / "added_tokens.json").write_text(json.dumps(listed))
    tokenizer, oracle = (
        Tokenizer.from_folder(folder),
        PreTrainedTokenizerFast.from_pretrained(folder),
    )
    for text in ("a<b>c", "a fox<|im_end|>", "afox"):
        assert tokenizer.encode(text, parse_special=True) == oracle.encode(text)
    assert tokenizer.decode(tokenizer.encode("a<c>")) == "a<c>"
    assert tokenizer.token_to_id("<c>") is None
    assert [each.split("'")[1] for each in caplog.messages] == ["<|im_end|>", "<c>", "fox"]
    own = tokenizer.token_to_id("<|im_end|>")
    assert caplog.messages[0].endswith(f"0 of '<|im_end|>' is ignored, as tokenizer.json has {own}")
    assert caplog.messages[1].endswith("as tokenizer.json has no such token, so it stays text")


@pytest.mark.parametrize(
    "content", [{"<tool>": "1"}, {"<tool>": None}, {"<tool>": True}, {"<a>": 9999, "<b>": 9999}]
)
def test_malformed_added_tokens(write: WriteFolder, content: object) -> None:
    folder = write()
    (folder / "added_tokens.json").write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=r"added_tokens\.json must be a map of tokens to different ids"
    ):
        Tokenizer.from_folder(folder)


def test_a_listed_token_with_another_id(write: WriteFolder) -> None:
    with pytest.raises(CheckpointError, match=r"'<tool>' has id 9999 there, but \d+"):
        Tokenizer.from_folder(write(added_tokens_decoder={"9999": {"content": "<tool>"}}))


@pytest.mark.parametrize(
    "listed", [[1], {"x": {"content": "a"}}, {"1": "a"}, {"1": {"content": 2}}]
)
def test_malformed_listed_tokens(write: WriteFolder, listed: object) -> None:
    with pytest.raises(CheckpointError, match="added_tokens_decoder is not a map"):
        Tokenizer.from_folder(write(added_tokens_decoder=listed))


def test_truncation_and_padding_are_off(write: WriteFolder) -> None:
    folder = write()
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode("1 2 3 4 5 6 7 8")) == "1 2 3 4 5 6 7 8"


def behind_fuse(**step: Any) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": [{"type": "Fuse"}, step]}


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "CTC", "pad_token": "p", "word_delimiter_token": "|", "cleanup": True},
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "Strip", "content": " ", "start": 0, "stop": 1},
        behind_fuse(type="BPEDecoder", suffix="w"),
        behind_fuse(type="Replace", pattern={"String": " ,"}, content=","),
        behind_fuse(type="Replace", pattern={"Regex": " +"}, content=" "),
        behind_fuse(type="Strip", content=" ", start=2, stop=0),
    ],
)
def test_decoders_that_rewrite_are_refused(write: WriteFolder, decoder: object) -> None:
    folder = write()
    spec = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(spec | {"decoder": decoder}))
    with pytest.raises(CheckpointError, match=r"cannot give text token by token; use"):
        Tokenizer.from_folder(folder)


def render(folder: Path, **tools: object) -> str:
    return Tokenizer.from_folder(folder).render_chat([{"role": "user", "content": "hi"}], **tools)


def test_templates_by_precedence(write: WriteFolder) -> None:
    folder = write(chat_template="config")
    assert render(folder) == "config"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "legacy"}))
    assert render(folder) == "legacy"
    (folder / "chat_template.jinja").write_text("file")
    assert render(folder) == "file"


def test_templates_by_name(write: WriteFolder) -> None:
    with_tools = "{{ tools | length }} tools"
    entries = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": with_tools},
    ]
    folder = write(chat_template=entries)
    oracle = PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [{"role": "user", "content": "hi"}]
    for tools in (None, [], [{"type": "function"}]):
        expected = oracle.apply_chat_template(messages, tools=tools, tokenize=False)
        assert render(folder, tools=tools) == expected


def test_additional_template_files(write: WriteFolder) -> None:
    folder = write()
    (folder / "additional_chat_templates").mkdir()
    (folder / "chat_template.jinja").write_text("plain")
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert render(folder) == "plain"
    assert render(folder, tools=[]) == "tools"


@pytest.mark.parametrize("value", [5, [], [{"name": "default"}], ["x"], {"default": "x"}])
def test_malformed_templates(write: WriteFolder, value: object) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat_template must be"):
        Tokenizer.from_folder(write(chat_template=value))


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{{ x|nofilter }}", "{% include 'a' %}{%"])
def test_templates_that_do_not_compile(write: WriteFolder, source: str) -> None:
    folder = write()
    (folder / "chat_template.jinja").write_text(source)
    with pytest.raises(
        CheckpointError, match=r"chat_template\.jinja: the chat template cannot be used"
    ):
        Tokenizer.from_folder(folder)
