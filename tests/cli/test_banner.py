"""The text that a ready server prints: its example is a command that can be pasted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from child_process import run_to_end

from quire.cli.banner import (
    CHAT,
    COMPLETION,
    TOKEN_IDS,
    example_request,
    key_in_shell,
    ready_text,
)
from quire.config import EngineConfig
from quire.core.request_limits import RequestLimits
from quire.engine.core.engine_info import EngineInfo
from quire.server.settings import ServerSettings
from quire.tokenizer.load_tokenizer import has_chat_template


def header(settings: ServerSettings, *, from_environment: bool, **variables: str) -> str:
    """What a shell makes of the example's header."""
    key = key_in_shell(settings, from_environment=from_environment)
    text = ready_text([], {"m": ""}, "http://127.0.0.1:1", 2.0, key=key)
    command = text[text.index("curl") :].replace("curl", "printf '%s|'", 1)
    done = run_to_end(["sh", "-c", command], env=variables, check=True)
    words = done.stdout.split("|")
    assert words[0] == "http://127.0.0.1:1/v1/chat/completions"
    return next((word for word in words if word.startswith("Authorization")), "")


def test_phases_add_up() -> None:
    """What is not the engine's time has a name, too."""
    limits = RequestLimits(max_model_len=1, max_kv_tokens=1, vocab_size=1, max_num_seqs=1)
    facts: dict[str, Any] = {
        "dtype": "",
        "device": "cpu",
        "num_blocks": 1,
        "block_size": 1,
        "kv_cache_bytes": 1,
    }
    spent = {"imports": 0.7, "device": 0.01, "weights": 0.49}  # what takes no time is not told
    info = EngineInfo(model_name="m", limits=limits, eos_token_ids=[], seconds=spent, **facts)
    text = ready_text([info], {}, "http://127.0.0.1:1", 2.0, key="")
    assert "after 2.0 s (processes 0.8 s, imports 0.7 s, weights 0.5 s)" in text


def test_the_admin_endpoints_are_listed_where_there_are_any() -> None:
    text = ready_text([], {"m": ""}, "http://127.0.0.1:1", 2.0, key="", admin="http://127.0.0.1:2")
    assert "\n  admin     http://127.0.0.1:2\n" in text
    assert "admin" not in ready_text([], {"m": ""}, "http://127.0.0.1:1", 2.0, key="")


def test_a_model_that_is_refused_is_listed_so() -> None:
    text = ready_text([], {"a": "", "b": "its weights failed"}, "http://127.0.0.1:1", 2.0, key="")
    assert "  model     a: loaded on demand\n" in text
    assert "  model     b: loaded on demand, but refused; the log says why\n" in text


@pytest.mark.parametrize("keys", ["sesame", "sesame,other", "a key with spaces", "$x`y"])
def test_a_key_of_the_environment(keys: str) -> None:
    settings = ServerSettings(api_key=keys)
    found = header(settings, from_environment=True, QUIRE_API_KEY=keys)
    assert found == f"Authorization: Bearer {keys.partition(',')[0]}"


def test_a_key_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys of mine"
    file.write_text("# keys\n\n  # more\nsesame\nother\n")
    settings = ServerSettings(api_key_file=str(file))
    assert header(settings, from_environment=False, PATH="/usr/bin:/bin").endswith("Bearer sesame")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"api_key": "sesame"}, "Authorization: Bearer YOUR_KEY"), ({}, "")],
)
def test_no_key_is_shown(settings: dict[str, Any], expected: str) -> None:
    assert header(ServerSettings(**settings), from_environment=False) == expected


def test_the_example_is_no_chat_where_the_model_has_no_template() -> None:
    text = ready_text([], {"m": ""}, "http://127.0.0.1:1", 2.0, key="", example=COMPLETION)
    assert "curl http://127.0.0.1:1/v1/completions -H" in text
    assert """-d '{"prompt": "Once upon a time"}'""" in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, CHAT), ({"tokenizer": "bare"}, COMPLETION), ({"skip_tokenizer_init": True}, TOKEN_IDS)],
)
def test_the_model_can_answer_the_example(
    options: dict[str, Any],
    expected: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "tokenizer.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    config = EngineConfig.from_options(model="quire-tiny", **options)
    assert example_request(config) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"skip_tokenizer_init": True}, False),
        ({"tokenizer": "bare"}, False),
        ({"tokenizer": "bare", "chat_template": "{{ messages }}"}, True),
    ],
)
def test_whether_a_model_has_a_chat_template(
    options: dict[str, Any], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "tokenizer.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    config = EngineConfig.from_options(model="quire-tiny", **options)
    assert has_chat_template(config) is expected


def test_a_unix_socket_in_the_example() -> None:
    text = ready_text([], {"m": ""}, "unix:/run/my api.sock", 2.0, key="")
    assert "is ready at unix:/run/my api.sock" in text
    assert "curl --unix-socket '/run/my api.sock' http://localhost/v1/chat/completions" in text
    assert "page" not in text
