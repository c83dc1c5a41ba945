"""`quire serve` as a process: what it says, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from child_process import run_to_end

from quire.cli import main, serve
from quire.cli.serve import make_parser
from quire.cli.served_models import server_settings
from quire.server.http.listen_address import bind


@contextmanager
def serving(*options: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """`quire serve` without a model, which is quick to start."""
    command = [sys.executable, "-m", "quire", "serve", "--port", "0", "--load-format", "null"]
    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_ready(process: subprocess.Popen[str]) -> tuple[str, int]:
    """The text up to the curl example, and the port in it."""
    assert process.stdout is not None
    text = "".join(process.stdout.readline() for _ in range(5))
    found = re.search(r"ready at http://127\.0\.0\.1:(\d+)", text)
    assert found is not None, text
    return text, int(found[1])


@pytest.mark.parametrize(
    ("hosts", "key", "lines"),
    [
        (["127.0.0.1"], "", []),
        (["127.0.0.1", "::1"], "", ["also at http://[::1]:8000"]),
        (["0.0.0.0"], "sesame", []),
        (["0.0.0.0"], "", [serve._OPEN_TO_ALL]),
        (["127.0.0.1", "10.0.0.1"], "", ["also at http://10.0.0.1:8000", serve._OPEN_TO_ALL]),
    ],
)
def test_further_addresses_and_what_is_open_to_all_are_said(
    hosts: list[str], key: str, lines: list[str]
) -> None:
    """Of addresses at which no test listens."""

    def listener(host: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return cast(socket.socket, SimpleNamespace(family=family, getsockname=lambda: (host, 8000)))

    assert serve._notes([*map(listener, hosts)], key) == lines


@pytest.mark.parametrize(
    ("sent", "status", "key"),
    [(signal.SIGINT, 130, {}), (signal.SIGTERM, 0, {"QUIRE_API_KEY": "sesame"})],
    ids=["Ctrl-C", "key of the environment"],
)
def test_serve(sent: signal.Signals, status: int, key: dict[str, str]) -> None:
    with serving("--log-level", "warning", **key) as process:
        text, port = read_ready(process)
        assert "quire-tiny: null on null, context 4,096" in text
        assert "1,048,576 tokens: 65,536 blocks of 16, 0 MiB" in text
        assert f"curl http://127.0.0.1:{port}/v1/chat/completions -H" in text
        assert ("Authorization: Bearer" in text) == bool(key)
        assert "sesame" not in text
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5})
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", body, headers)
            reply = connection.getresponse()
            answer = json.load(reply)
        assert reply.status == (401 if key else 200)
        assert key or answer["usage"]["completion_tokens"] == 5
        process.send_signal(sent)
        assert process.wait(10) == status
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_keys_may_be_given_one_by_one() -> None:
    args = make_parser().parse(["--api-key", "first", "--api-key", "second,third"])
    assert server_settings(args).api_key == "first,second,third"
    origins = ["--allowed-origins", "http://a", "--allowed-origins", "http://b"]
    assert server_settings(make_parser().parse(origins)).origins == ["http://a", "http://b"]


def test_a_key_of_the_environment_is_reported_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "")
    assert main(["serve"]) == 2
    assert "error: $QUIRE_API_KEY has an empty key; " in capsys.readouterr().err


def test_a_signal_before_the_server_is_ready_is_no_failure() -> None:
    with serving() as process:
        assert process.stderr is not None
        assert "loading" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("is_unknown", [False, True], ids=["signal", "another model's error"])
def test_a_download_is_not_waited_for(is_unknown: bool) -> None:
    """The hub accepts connections, and answers nothing."""
    with bind("127.0.0.1", 0) as hub:
        hub.listen()
        slow = {"HF_HUB_ETAG_TIMEOUT": "600", "HF_HUB_DOWNLOAD_TIMEOUT": "600"}
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        models = ["--model", "a=owner/name", *(["--model", "b=./missing"] if is_unknown else [])]
        with serving(*models, HF_HUB_OFFLINE="0", HF_ENDPOINT=address, **slow) as process:
            if not is_unknown:
                hub.settimeout(60)
                with hub.accept()[0]:
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(60) == 0
            _, err = process.communicate(timeout=60)
            assert ("./missing" in err) == is_unknown
            assert process.returncode == (2 if is_unknown else 0)


def test_serve_that_cannot_load() -> None:
    with serving("./missing") as process:
        _, err = process.communicate(timeout=20)
        assert process.returncode == 2
        assert re.fullmatch("error: .*missing.*\n", err)


def test_port_in_use_is_said_before_loading(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as sock:
        assert main(["serve", "--port", str(sock.getsockname()[1])]) == 2
    assert "is in use" in capsys.readouterr().err


def test_the_parent_reads_no_web_framework_before_it_starts_the_others() -> None:
    heavy = [
        "starlette",
        "uvicorn",
        "numpy",
        "rich",
        "zmq",
        "quire.server.api.common.generation_request",
    ]
    code = f"import sys, quire.cli.serve; print([m for m in {heavy} if m in sys.modules])"
    done = run_to_end([sys.executable, "-c", code], check=True)
    assert done.stdout.strip() == "[]"


def test_a_chat_template_that_is_no_file_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where it is llama.cpp's name of a template, such as chatml."""
    assert main(["serve", "--dry-run", "--chat-template", "chatml"]) == 2
    assert "--chat-template 'chatml' is not supported: llama.cpp's" in capsys.readouterr().err
    assert main(["serve", "--dry-run", "--chat-template", "mine"]) == 2
    error = "--chat-template 'mine' cannot be read (No such file or directory); use a file, or"
    assert error in capsys.readouterr().err
