"""Files of texts and questions for `quire quantize` and `quire verify`."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from cpu_limit import cpu_limit
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from quire.compress import parquet_text, text_samples
from quire.compress.hub_text import text_file
from quire.compress.task_answers import read_tasks
from quire.compress.text_samples import read_samples
from quire.errors import ConfigError
from quire.model_folder import BUNDLED_FOLDER
from quire.tokenizer.tokenizer import Tokenizer

# U+2028, U+0085 and others end a line for str.splitlines, but not for JSON
TEXT = "one\u2028two\u2029three\x85four " * 40


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(BUNDLED_FOLDER / "quire-tiny")


def write_lines(path: Path, values: dict) -> Path:
    line = json.dumps(values, ensure_ascii=False)
    path.write_text(f"{line}\n\n{line}\n", encoding="utf-8")
    return path


def test_line_separators_inside_texts_end_no_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": TEXT})
    assert read_samples(tokenizer, file, 4, 16).verification
    messages = [{"role": "user", "content": TEXT}]
    file = write_lines(tmp_path / "b.jsonl", {"messages": messages, "expected": TEXT})
    assert len(read_tasks(tokenizer, file)) == 2


def test_a_long_file_is_cut_between_lines(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": TEXT})
    text = file.read_text(encoding="utf-8")
    whole = len(text)
    for most in (whole - 1, whole // 2 + 9):
        monkeypatch.setattr(text_samples, "_MOST_CHARACTERS", most)
        assert read_samples(tokenizer, file, 4, 16).verification
        assert text_samples._read(file) == text[: whole // 2 + 1]
    monkeypatch.setattr(text_samples, "_MOST_CHARACTERS", whole)
    assert text_samples._read(file) == text


def test_windows_of_a_long_text_take_time_in_proportion(tmp_path: Path) -> None:
    """Each window once copied all tokens after it: 16 MB of text took minutes."""

    class Numbers:
        bos_token_id = None

        def encode(self, text: str, **_: bool) -> list[int]:
            return list(range(len(text)))

    file, count = tmp_path / "a.txt", 600_000
    file.write_text("x" * count)
    with cpu_limit(8, time.process_time):
        found = read_samples(Numbers(), file, count, 8)  # type: ignore[arg-type]
    windows = sorted(found.calibration + found.verification)
    assert windows == [list(range(at, at + 8)) for at in range(0, count, 8)][: len(windows)]
    assert len(found.calibration) == count // 8 - count // 40


def test_lines_in_gzip_are_those_of_the_plain_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plain = write_lines(tmp_path / "a.json", {"text": TEXT})
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_samples(tokenizer, packed, 4, 16).digest == (
        read_samples(tokenizer, plain, 4, 16).digest
    )
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_samples(tokenizer, packed, 4, 16)


CHATS = [{"messages": [{"role": "user", "content": f"shoes {i}, {TEXT}"}]} for i in range(4)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps(CHATS)),
        ("a.json", json.dumps(CHATS, indent=2)),
        ("a.JSONL", "\n".join(map(json.dumps, CHATS))),
        ("chats", "\ufeff" + "\r\n".join(map(json.dumps, CHATS))),
        ("chats.txt", json.dumps(CHATS)),
    ],
)
def test_json_is_read_as_its_texts_in_lists_and_under_any_name(
    name: str, text: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, CHATS)))
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    expected, found = (
        read_samples(tokenizer, tmp_path / each, 8, 16) for each in ("lines.jsonl", name)
    )
    assert found.digest == expected.digest


def test_strings_of_json_are_texts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([TEXT, TEXT]))
    expected = write_lines(tmp_path / "a.jsonl", {"text": TEXT})
    found = read_samples(tokenizer, tmp_path / "a.json", 8, 16)
    assert found.digest == read_samples(tokenizer, expected, 8, 16).digest


@pytest.mark.parametrize("text", ["[Chapter one]\n" + TEXT * 4, '{"level": 1}\n' + TEXT * 4])
def test_a_text_that_begins_with_a_bracket_is_one(
    text: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text(text)
    samples = read_samples(tokenizer, tmp_path / "a.txt", 99, 16)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert samples.calibration[0][-8:] in [ids[at : at + 8] for at in range(16)]


def test_a_list_that_is_cut_off_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(CHATS)[:-9])
    with pytest.raises(ConfigError, match=r"a\.json is not a JSON list, .* as JSON lines"):
        read_samples(tokenizer, tmp_path / "a.json", 4, 16)


def test_a_damaged_gzip_file_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole, broken = gzip.compress(TEXT.encode()), tmp_path / "a.txt.gz"
    for data in (whole[:10] + b"\xff" * 30, whole[:40], whole[:-8] + bytes(8), b"plain"):
        broken.write_bytes(data)
        with pytest.raises(ConfigError, match=r"a\.txt\.gz cannot be read \(.+\); name a text"):
            read_samples(tokenizer, broken, 4, 16)


def test_a_data_set_of_the_hub_gives_its_first_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = ["README.md", "data/test.jsonl", "data/train-1.jsonl.gz", "data/train-0.parquet"]
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: listed)
    asked = []

    def download(*args: str, **_: str) -> str:
        asked.append(args)
        return str(tmp_path / "found")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert text_file("owner/chats") == tmp_path / "found"
    text_file("owner/chats:data/test.jsonl")
    assert asked == [
        ("owner/chats", "data/train-1.jsonl.gz"),
        ("owner/chats", "data/test.jsonl"),
    ]
    (tmp_path / "chats.txt").touch()
    monkeypatch.chdir(tmp_path.parent)
    here = f"{tmp_path.name}/chats.txt"  # looks like a name of the hub, but is a file
    assert text_file(here) == Path(here)
    listed[1:3] = []
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"owner/chats:data/train-0\.parquet is parquet, which"):
        text_file("owner/chats")
    assert len(asked) == 2  # nothing is downloaded
    monkeypatch.setattr(parquet_text, "pyarrow_for", lambda _: None)
    text_file("owner/chats")
    assert asked[-1] == ("owner/chats", "data/train-0.parquet")
    listed[1:] = []
    with pytest.raises(ConfigError, match="has no file of JSON lines, text or parquet"):
        text_file("owner/chats")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OfflineModeIsEnabled(), "the hub cannot be reached; check the network"),
        (
            HfHubHTTPError.__mro__[1]("Name or service not known"),
            "cannot be downloaded .*check the netw",
        ),
    ],
    ids=["offline", "unreachable"],
)
def test_without_the_hub_the_fix_is_named(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", fail)
    with pytest.raises(ConfigError, match=message):
        text_file("owner/text")


@pytest.mark.parametrize("has_template", [True, False], ids=["template", "no_template"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"messages": ["a"]}, r"line 1: messages\[0\]: must be an object"),
        ({"messages": [{"role": "user"}]}, r"line 1: messages\[0\]\.content: it is missing"),
        ({"messages": [{"role": "x", "content": TEXT}]}, r"line 1: messages\[0\]\.role"),
        ({"messages": [{"role": "user", "content": 5}]}, r"line 1: messages\[0\]\.content"),
        ({"messages": []}, "line 1 must be a JSON object with"),
        ({"text": None}, "line 1 must be a JSON object with"),
    ],
)
def test_a_line_that_no_model_can_be_given_is_named(
    values: dict[str, Any],
    message: str,
    has_template: bool,
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tokenizer, "has_chat_template", has_template)
    file = write_lines(tmp_path / "a.jsonl", values)
    with pytest.raises(ConfigError, match=rf"calibration: .*a\.jsonl, {message}"):
        read_samples(tokenizer, file, 4, 16)


def test_a_question_that_no_model_can_be_given_is_named(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"messages": [5], "expected": "a"})
    with pytest.raises(ConfigError, match=r"tasks: .*a\.jsonl, line 1: messages\[0\]"):
        read_tasks(tokenizer, file)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({"prompt": "a", "expected": "b"}, r'%s 2: must be an object with a list of "messages"'),
        ({"messages": "a", "expected": "b"}, "%s 2: must be an object with a list"),
        (["a"], "%s 2: must be an object with a list"),
        ({"messages": [{"role": "user", "content": "a"}], "expected": 5}, "%s 2: .*a string"),
    ],
)
@pytest.mark.parametrize("kind", ["line", "object"])
def test_a_task_that_is_none_is_named(
    tokenizer: Tokenizer, tmp_path: Path, second: object, problem: str, kind: str
) -> None:
    first = {"messages": [{"role": "user", "content": "a"}], "expected": "b"}
    lines = [json.dumps(first), json.dumps(second)]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(lines) if kind == "line" else f"[{','.join(lines)}]")
    with pytest.raises(ConfigError, match=problem % kind):
        read_tasks(tokenizer, file)


def test_a_line_of_tasks_that_is_no_json_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The error once said "line 1 column 1" of any line."""
    first = {"messages": [{"role": "user", "content": "a"}], "expected": "b"}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(first)}\n\nno JSON\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 3: must be an object with a list"):
        read_tasks(tokenizer, tmp_path / "a.jsonl")
    (tmp_path / "b.json").write_text(f"[{json.dumps(first)}, ]")
    with pytest.raises(ConfigError, match=r"b\.json cannot be read as JSON \(.*name a file with"):
        read_tasks(tokenizer, tmp_path / "b.json")


def test_tasks_without_any_answer_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": "a"}]})
    with pytest.raises(ConfigError, match='has no "expected"; name a file'):
        read_tasks(tokenizer, file)


def test_parquet_without_its_library_names_the_fix(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"needs pyarrow; pip install pyarrow, or"):
        read_samples(tokenizer, tmp_path / "a.parquet", 4, 16)


def test_rows_of_parquet_are_those_of_json_lines(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Null fields, which objects of a column have in common, do not count."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    chat = {"messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "x"}]}
    expected = write_lines(tmp_path / "a.jsonl", chat)
    wide = [{**message, "tool_calls": None} for message in chat["messages"]]
    rows = [{"id": 1, "text": None, "messages": wide}, {"id": 2}, {"id": 3, "messages": wide}]
    types = {"role": pyarrow.string(), "content": pyarrow.string(), "tool_calls": pyarrow.string()}
    messages = pyarrow.list_(pyarrow.struct(types.items()))
    known = {"id": pyarrow.int64(), "text": pyarrow.string(), "messages": messages}
    table = pyarrow.Table.from_pylist(rows, pyarrow.schema(known.items()))
    parquet.write_table(table, file := tmp_path / "a.parquet")
    found = read_samples(tokenizer, file, 4, 16)
    assert found.digest == read_samples(tokenizer, expected, 4, 16).digest
    parquet.write_table(table.select(["id"]), file)
    with pytest.raises(ConfigError, match="has the columns id, but a column text or messages is"):
        read_samples(tokenizer, file, 4, 16)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ConfigError, match=r"cannot be read as parquet .*; download it again"):
        read_samples(tokenizer, file, 4, 16)
