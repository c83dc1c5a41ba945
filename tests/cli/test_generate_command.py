"""`quire generate` with a fake model."""

from __future__ import annotations

import io
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main
from quire.cli.generate import AnswerLine
from quire.core.request_output import CompletionOutput, RequestOutput, RequestTimes
from quire.core.sampling_params import SamplingParams
from quire.errors import ContextLengthError

TOO_LONG = ContextLengthError(
    "prompt: 9 tokens, but the limit here is 8; lower max_tokens", num_prompt_tokens=9, limit=8
)
ERROR = "9 tokens, but the limit here is 8; lower --max-tokens"


def answered(n: int, text: str = "", *, finished: bool = True) -> RequestOutput:
    """An output with n answers. text: of all, instead of one with its number."""
    return RequestOutput(
        request_id="x",
        prompt=None,
        prompt_token_ids=[1, 2],
        outputs=[
            CompletionOutput(i, text or f"Ünd {i}", [7], finish_reason="stop") for i in range(n)
        ],
        times=RequestTimes(0.0),
        finished=finished,
    )


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A fake quire.llm; returns the calls that it got."""
    asked: list[Any] = []

    class FakeLLM:
        def __init__(self, **options: Any) -> None:
            asked.append(options)

        def generate(
            self,
            prompts: list[Any],
            sampling: SamplingParams,
            *,
            use_tqdm: bool,
            raise_errors: bool,
            on_output: Callable[[RequestOutput], None] | None = None,
            on_answer: Callable[[RequestOutput], None] | None = None,
            chat_template_kwargs: Any = None,
        ) -> list[RequestOutput]:
            assert not raise_errors
            asked.append(chat_template_kwargs) if chat_template_kwargs else None
            asked.append((prompts, sampling, use_tqdm))
            if on_output is not None and "long" not in prompts:
                on_output(answered(1, text="Ün", finished=False))
                on_output(answered(1, text="d 0"))
            found = [
                answered(sampling.n)
                if "long" not in prompt
                else RequestOutput("x", None, [], [], RequestTimes(0.0), error=TOO_LONG)
                for prompt in prompts
            ]
            for output in found if on_answer is not None else ():
                on_answer(output)
            return found

        chat = generate
        tokenizer = types.SimpleNamespace(has_chat_template=True)
        info = types.SimpleNamespace(sampling_defaults={"top_k": 7, "max_tokens": 9})

    module = types.ModuleType("quire.llm")
    module.LLM = FakeLLM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quire.llm", module)
    return asked


def test_generate(llm: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "m", "--prompt", "a", "--seed", "5", "--stop", "x", "--stop=y"]) == 0
    assert capsys.readouterr().out == "Ünd 0\n"
    options, (prompts, sampling, use_tqdm) = llm
    assert options == {"model": "m", "seed": 5}
    assert (prompts, use_tqdm) == (["a"], False)
    assert sampling == SamplingParams(stop=["x", "y"], max_tokens=128, top_k=7)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["--override-generation-config", '{"max_new_tokens": 9}'], 9),
        (["--override-generation-config.max_new_tokens", "9"], 9),
        (["--override-generation-config", '{"max_new_tokens": 9}', "--max-tokens", "3"], 3),
        (["--override-generation-config", '{"top_k": 7}'], 128),
    ],
)
def test_an_override_of_the_models_limit_is_one(
    llm: list[Any], words: list[str], most: int
) -> None:
    assert main(["generate", "m", "a", *words]) == 0
    assert llm[1][1] == SamplingParams(max_tokens=most, top_k=7)


def test_a_part_is_printed_when_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    with AnswerLine() as line:
        line.take(answered(1, text="a b", finished=False))
        assert capsys.readouterr().out == "a b"
        line.take(answered(1, text=" c"))
        assert capsys.readouterr().out == " c"
    assert capsys.readouterr().out == "\n"


@pytest.mark.parametrize(("parts", "printed"), [(["a", " b"], "a b\n"), ([], "")])
def test_what_ends_an_answer_early_ends_its_line(
    parts: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        with AnswerLine() as line:
            for text in parts:
                line.take(answered(1, text=text, finished=False))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().out == printed


def test_generate_from_a_file(
    llm: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\ntwo\n")
    assert main(["generate", "--file", str(path), "--n", "2", "--max-tokens", "1K"]) == 0
    assert capsys.readouterr().out == "> one\nÜnd 0\nÜnd 1\n\n> two\nÜnd 0\nÜnd 1\n\n"
    assert llm[1][1].max_tokens == 1024


def test_a_system_message_asks_for_the_chat_template(llm: list[Any]) -> None:
    assert main(["generate", "-p", "hi", "-sys", "be brief"]) == 0
    system, user = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}
    assert llm[1][0] == [[system, user]]


@pytest.mark.parametrize(
    ("words", "prompt", "notes"),
    [
        (["-e"], "a\nb\t\"'\\ c\\q☃ \\xff", ""),
        (["--escape"], "a\nb\t\"'\\ c\\q☃ \\xff", ""),
        (["--no-escape"], None, ""),
        ([], None, "note: \\n in prompt is two characters; --escape makes it one\n"),
    ],
)
def test_escapes_are_read_where_they_are_asked_for(
    llm: list[Any],
    words: list[str],
    prompt: str | None,
    notes: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = r"""a\nb\t\"\'\\ c\q\xe2\x98\x83 \xff"""
    line = ["generate", *words, "-p", text, "-sys", r"x\ty", "--stop", r"\t", "--stop", "z"]
    assert main(line) == 0
    system, user = llm[1][0][0]
    assert user["content"] == (text if prompt is None else prompt)
    assert system["content"] == (r"x\ty" if prompt is None else "x\ty")
    assert llm[1][1].stop == ([r"\t", "z"] if prompt is None else ["\t", "z"])
    assert capsys.readouterr().err == notes


def test_texts_are_utf8_in_any_locale(
    llm: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
    text = "gr\u00fcn".encode().decode("ascii", "surrogateescape")  # as Python reads a word there
    assert main(["generate", "--prompt", text, "--stop", text, "--choice", text]) == 0
    assert llm[1][0] == ["gr\u00fcn"]
    assert llm[1][1].stop == llm[1][1].structured_outputs.choice == ["gr\u00fcn"]
    assert main(["generate", text]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("note: 'gr\u00fcn' is the prompt")
    for option in ("--prompt", "--system", "--stop", "--bad-words", "--regex"):
        assert main(["generate", "--prompt", "x", option, "caf\udce9"]) == 2
        assert capsys.readouterr().err == f"error: {option} is not UTF-8 text; convert it\n"
    assert main(["generate", "caf\udce9"]) == 2
    assert capsys.readouterr().err.endswith("error: TEXT is not UTF-8 text; convert it\n")


def test_a_chat_template_asks_for_a_chat(llm: list[Any]) -> None:
    assert main(["generate", "-p", "hi", "--chat-template", "{{ messages }}"]) == 0
    assert llm[1][0] == [[{"role": "user", "content": "hi"}]]


@pytest.mark.parametrize(
    "words", ["-n -1", "-n -2", "--n-predict=-1", "--max-tokens -1", "--max-tokens none"]
)
def test_an_answer_without_a_limit_goes_on_until_it_ends(llm: list[Any], words: str) -> None:
    assert main(["generate", "-p", "hi", *words.split()]) == 0
    assert llm[1][1].max_tokens is None


@pytest.mark.parametrize(
    "words",
    [
        ["--chat-template-kwargs", '{"enable_thinking": false}'],
        ["--think=false"],
        ["--reasoning-budget", "0"],
        ["--reasoning", "off"],
    ],
)
def test_variables_of_the_template_have_the_names_of_other_engines(
    llm: list[Any], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "-p", "hi", *words]) == 0
    assert llm[1] == {"enable_thinking": False}
    assert llm[2][0] == [[{"role": "user", "content": "hi"}]]
    assert main(["generate", "-p", "hi", "--chat-template-kwargs", "{"]) == 2
    assert "error: --chat-template-kwargs must be a JSON object, such as" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "times"), [([], 1), (["-cnv"], 0)])
def test_a_note_in_a_terminal_names_the_chat_template(
    llm: list[Any],
    words: list[str],
    times: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["generate", "-p", "hi", *words]) == 0
    assert isinstance(llm[1][0][0], list) is bool(words), "messages, as llama-cli asks for them"
    assert capsys.readouterr().err.count("note: prompts are plain text; --chat sends them") == times


def test_ollamas_format_is_a_schema(llm: list[Any]) -> None:
    assert main(["generate", "-p", "hi", "--format", "json", "--nowordwrap"]) == 0
    outputs = llm[1][1].structured_outputs
    assert (outputs.kind, outputs.text) == ("json", '{"type": "object"}')


def test_generate_json_through_the_chat_template(
    llm: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    assert main(["generate", "--file", "-", "--chat", "--json"]) == 0
    assert llm[1][0] == [[{"role": "user", "content": "hi"}]]
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "prompt": "hi",
        "outputs": [
            {"text": "Ünd 0", "token_ids": [7], "finish_reason": "stop", "stop_reason": None}
        ],
        "num_prompt_tokens": 2,
        "num_cached_tokens": 0,
    }


def test_generate_refuses_what_is_not_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.bin"
    path.write_bytes(b"\xff\xfe")
    assert main(["generate", "--file", str(path)]) == 2
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.usefixtures("llm")
def test_a_refused_line_is_reported_and_the_others_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\x0cpage\n\nlong\ntwo\n")
    assert main(["generate", "--prompt", "a", "--file", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == "> a\nÜnd 0\n\n> one\x0cpage\nÜnd 0\n\n> long\n\n> two\nÜnd 0\n\n"
    assert err == f"error: {path}, line 3: {ERROR}\n"


@pytest.mark.usefixtures("llm")
def test_nothing_but_refused_prompts_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "long", "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == f"error: --prompt: {ERROR}\n"
    record = json.loads(out)
    assert (record["outputs"], record["error"]) == ([], ERROR.replace("--max-tokens", "max_tokens"))


@pytest.mark.parametrize("command", [["generate"], ["generate", "--chat"], ["chat"]])
def test_a_budget_of_reasoning_that_a_model_lacks(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one error, whose fix is an option: also for `quire chat`, before its first message."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert main([*command, "quire-tiny", "hello", "--thinking-token-budget", "5"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: --thinking-token-budget: how this model marks its reasoning")
    assert err.endswith("; leave it out, or use a model or a --chat-template that shows it\n")


@pytest.mark.parametrize(
    ("words", "model", "prompts"),
    [
        (["hello you"], None, ["hello you"]),
        (["gpt"], None, ["gpt"]),
        (["a/b", "hello"], "a/b", ["hello"]),
        (["quire-tiny", "hello", "--prompt", "b"], "quire-tiny", ["hello", "b"]),
        (["gpt", "--prompt", "b"], "gpt", ["b"]),
        (["a/b", "--max-tokens", "3", "hello"], "a/b", ["hello"]),
        (["--seed", "1", "a/b", "--no-escape", "hello", "--top-k=2"], "a/b", ["hello"]),
        (["-m", "a/b", "-n", "3", "hello"], "a/b", ["hello"]),
        (["hello", "-hf", "a/b"], "a/b", ["hello"]),
        (["a/b", "--", "--hello"], "a/b", ["--hello"]),
        (["--max-tokens", "3", "--", "-e llo"], None, ["-e llo"]),
    ],
)
def test_words_without_an_option(
    llm: list[Any], words: list[str], model: str | None, prompts: list[str]
) -> None:
    assert main(["generate", *words]) == 0
    assert (llm[0].get("model"), llm[1][0]) == (model, prompts)


@pytest.mark.parametrize("words", [["-m", "a/b", "-m", "c/d"], ["-m=a/b", "-hf", "c/d"]])
def test_a_model_that_is_named_twice_is_no_prompt(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *words, "--prompt", "x"]) == 2
    text = "error: 'a/b' and 'c/d' are named as the model; name one of them\n"
    assert capsys.readouterr().err == text


BOM_AND_CRLF = b"\xef\xbb\xbf\xc3\xa9\r\ntwo\r\n"


@pytest.mark.parametrize(
    ("words", "data", "prompts"),
    [
        (["sum it up"], BOM_AND_CRLF, ["é\ntwo\nsum it up"]),
        (["-p", "a", "-p", "b"], b"x\n", ["x\na", "x\nb"]),
        (["m/m", "-"], BOM_AND_CRLF, ["é\ntwo"]),
        (["-"], b"one\ntwo\n", ["one\ntwo"]),
        (["sum it up"], b"", ["sum it up"]),
        (["--file", "-"], BOM_AND_CRLF, ["é", "two"]),
    ],
)
def test_what_is_piped_in_comes_before_a_prompt(
    llm: list[Any],
    words: list[str],
    data: bytes,
    prompts: list[str],
    piped: Callable[..., None],
) -> None:
    piped(data)
    assert main(["generate", *words]) == 0
    assert llm[1][0] == prompts


def test_a_pipe_that_stays_empty_is_left_out_with_a_note(
    llm: list[Any],
    piped: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("quire.cli.prompt_texts.FIRST_SECONDS", 0.01)
    piped(b"", is_open=True)
    assert main(["generate", "hi you"]) == 0
    assert llm[1][0] == ["hi you"]
    assert "nothing is piped in yet, so it is left out" in capsys.readouterr().err


def test_a_file_whose_lines_a_loop_reads_is_left_alone(
    llm: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    for offset, prompt in ((0, "one\ntwo\nhi you"), (4, "hi you")):
        llm.clear()
        with path.open() as stdin:
            os.lseek(stdin.fileno(), offset, os.SEEK_SET)
            monkeypatch.setattr("sys.stdin", stdin)
            assert main(["generate", "hi you"]) == 0
        assert llm[1][0] == [prompt]


@pytest.mark.parametrize(("words", "data"), [(["-"], b" \n"), (["--file", "-"], b"\xff")])
def test_standard_input_that_is_no_prompt(
    words: list[str],
    data: bytes,
    piped: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    piped(data)
    assert main(["generate", *words]) == 2
    assert "standard input is " in capsys.readouterr().err


@pytest.mark.usefixtures("llm")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_escaped(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(buffer, encoding=encoding))
    assert main(["generate", "-p", "☃", "-p", "b"]) == 0
    assert b"> \\u2603\n" in buffer.getvalue()
    assert main(["generate", "-p", "☃", "--json"]) == 0
    assert json.loads(buffer.getvalue().splitlines()[-1])["prompt"] == "☃"


@pytest.mark.parametrize("word", ["a/b", "quire-tiny", "."])
def test_a_model_alone_is_no_prompt(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", word]) == 2
    assert "no prompt is given; use `quire generate MODEL TEXT`" in capsys.readouterr().err
