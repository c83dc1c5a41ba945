"""`quire chat` with a scripted engine."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from child_process import run_to_end

SERVER_TESTS = Path(__file__).parents[1] / "server"
sys.path.insert(0, str(SERVER_TESTS))

from fake_engine import FakeEngine  # noqa: E402

from quire.cli import chat as chat_module  # noqa: E402
from quire.cli import main  # noqa: E402
from quire.cli.chat import Chat, Speed, dim, read_words  # noqa: E402
from quire.core.sampling_params import SamplingParams  # noqa: E402


def talk(engine: FakeEngine, *lines: str, system: str = "") -> tuple[int, Chat]:
    with asyncio.Runner() as runner:
        chat = Chat(engine, SamplingParams(max_tokens=None), runner.run, system=system)  # type: ignore[arg-type]
        return chat.run(iter(lines)), chat


def test_chat_keeps_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    status, chat = talk(FakeEngine(), "hi\n", "\n", "more\n", system="be kind")
    assert status == 0
    assert chat.messages == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "Hello!"},
    ]
    out, err = capsys.readouterr()
    assert out == "Hello!\nHello!\n"
    assert re.search(r"\[6 tokens, [\d.]+ tokens/s, first token after \d+ ms\]", err)


@pytest.mark.parametrize(
    ("opened", "answer", "stored"),
    [
        ("", "<think>\nhm\n</think>\n\nHello!", "Hello!"),
        ("<think>\n", "hm</think>Hello!", "Hello!"),
        ("", "Hello!", "Hello!"),
        ("", "Write </think> at its end.", "Write </think> at its end."),
        ("", "<think>hm", "<think>hm"),  # cut off
    ],
)
def test_reasoning_is_no_part_of_later_prompts(
    opened: str, answer: str, stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(script=answer)
    engine.tokenizer.chat_template_text = "</think>"
    engine.tokenizer.chat_prompt = lambda *_, **__: f"hi{opened}"  # type: ignore[method-assign]
    _, chat = talk(engine, "hi")
    assert chat.messages[1] == {"role": "assistant", "content": stored}
    assert capsys.readouterr().out == f"{answer}\n"


def test_a_chats_template_gets_its_variables() -> None:
    engine, seen = FakeEngine(), list[dict[str, object]]()

    def chat_prompt(_messages: object, **variables: object) -> str:
        seen.append(variables)
        return "hi"

    engine.tokenizer.chat_prompt = chat_prompt  # type: ignore[method-assign]
    with asyncio.Runner() as runner:
        params = SamplingParams(max_tokens=None)
        variables = {"enable_thinking": False}
        chat = Chat(engine, params, runner.run, variables=variables)  # type: ignore[arg-type]
        assert chat.run(iter(["hi\n"])) == 0
    assert seen == [{"enable_thinking": False}]


def test_chat_without_a_template_is_refused_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine()
    engine.tokenizer.has_chat_template = False

    async def start(_config: object) -> FakeEngine:
        return engine

    monkeypatch.setattr("quire.engine.frontend.async_engine.AsyncEngine.start", start)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert main(["chat"]) == 2
    assert capsys.readouterr().err.count("no chat template") == 1
    assert engine.closed


@pytest.mark.parametrize(
    ("words", "data", "content"),
    [
        (["quire-tiny", "hello you"], b"", "hello you"),
        (["quire-tiny", "hello", "--top-k", "2", "you"], b"", "hello you"),
        (["hello you"], b"", "hello you"),
        (["quire-tiny", "hello you"], None, "hello you"),
        (["quire-tiny", "sum it up"], b"one\ntwo\n", "one\ntwo\nsum it up"),
        (["quire-tiny", "-"], b"one\ntwo\n", "one\ntwo"),
        (["quire-tiny", "-e", r"a\tb"], b"", "a\tb"),
    ],
)
def test_a_message_of_the_command_line_is_answered_and_ends_it(
    words: list[str],
    data: bytes | None,  # None: the writer writes nothing, and stays
    content: str,
    piped: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine, seen = FakeEngine(), list[object]()

    async def start(_config: object) -> FakeEngine:
        return engine

    def chat_prompt(messages: object, **_: object) -> str:
        seen.append(messages)
        return "hi"

    engine.tokenizer.chat_prompt = chat_prompt  # type: ignore[method-assign]
    monkeypatch.setattr("quire.engine.frontend.async_engine.AsyncEngine.start", start)
    monkeypatch.setattr("quire.cli.prompt_texts.FIRST_SECONDS", 0.01)
    piped(data or b"", is_open=data is None)
    assert main(["chat", *words]) == 0
    assert seen == [[{"role": "user", "content": content}]]
    out, err = capsys.readouterr()
    assert out == "Hello!\n"
    assert "/help" not in err
    assert engine.closed


def test_an_empty_message_is_refused_before_a_model_is_loaded(
    piped: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    piped(b"\n")
    assert main(["chat", "/nowhere", " "]) == 2
    assert "the message is empty; write it, or leave it out" in capsys.readouterr().err


def test_a_constraint_is_for_what_follows_the_reasoning() -> None:
    engine = FakeEngine()
    engine.tokenizer.chat_template_text = "</think>"
    params = SamplingParams(max_tokens=None, structured_outputs={"choice": ["a"]})  # type: ignore[arg-type]
    with asyncio.Runner() as runner:
        chat = Chat(engine, params, runner.run)  # type: ignore[arg-type]
        assert chat.run(iter(["hi"])) == 0
    constraint = engine.calls[-1]["sampling"].structured_outputs
    assert (constraint.kind, constraint.thought_mark) == ("grammar", "<think>")


def test_a_budget_of_reasoning_has_the_templates_marks(capsys: pytest.CaptureFixture[str]) -> None:
    args = chat_module.make_parser().parse(["m", "--thinking-token-budget", "-1"])
    assert args.thinking_token_budget == -1
    for template, refused in (("</think>", False), ("", True)):
        engine = FakeEngine()
        engine.tokenizer.chat_template_text = template
        with asyncio.Runner() as runner:
            chat = Chat(engine, SamplingParams(thinking_token_budget=5), runner.run)  # type: ignore[arg-type]
            chat.run(iter(["hi"]))
        problem = "use a model or a chat_template that shows it"
        assert (problem in capsys.readouterr().err) == refused
        assert refused or engine.calls[-1]["sampling"].reasoning_marks is not None


def test_chat_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("/help", "/nonsense", "hi", "/system be brief", "/reset", "/quit", "never read")
    status, chat = talk(FakeEngine(), *lines)
    assert status == 0
    assert chat.messages == [{"role": "system", "content": "be brief"}]
    out, err = capsys.readouterr()
    assert out == "Hello!\n"
    assert "/system TEXT" in err
    assert "unknown command /nonsense" in err


def test_a_message_may_begin_as_a_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    status, chat = talk(FakeEngine(), "/etc/hosts is what?", " /etc/hosts is what?", "\n/b\nc")
    assert status == 1, "a line of piped input was not answered"
    asked = [each["content"] for each in chat.messages if each["role"] == "user"]
    assert asked == ["/etc/hosts is what?", "/b\nc"]
    assert "a space before it makes it a message" in capsys.readouterr().err


def test_chat_goes_on_after_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    status, chat = talk(FakeEngine(), "x" * 2000, "hi")
    assert status == 1
    assert [message["content"] for message in chat.messages] == ["hi", "Hello!"]
    assert "error: prompt: " in capsys.readouterr().err


def test_who_leaves_a_chat_has_seen_its_errors() -> None:
    assert talk(FakeEngine(), "x" * 2000, "/quit")[0] == 0


@pytest.mark.parametrize("text", ["hello friend", "hello\nfriend"])
def test_several_words_are_a_message(text: str) -> None:
    args = Namespace(model=text)
    read_words(args)
    assert vars(args) == {"text": [text]}


def test_a_word_that_is_hardly_a_model_has_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    read_words(Namespace(model="it's"))
    assert """`quire chat quire-tiny 'it'"'"'s'`""" in capsys.readouterr().err
    for given in ({"model": "a/b"}, {"model": "quire-tiny"}, {"model": "hi", "text": ["you"]}):
        read_words(Namespace(**given))
    assert capsys.readouterr().err == ""


def test_chat_stopped_by_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(fail_at=2, failure=KeyboardInterrupt())  # type: ignore[arg-type]
    status, chat = talk(engine, "hi")
    assert status == 0
    assert chat.messages[-1] == {"role": "assistant", "content": "He"}
    assert "[stopped]" in capsys.readouterr().err


def test_speed_without_a_rate() -> None:
    speed = Speed()
    speed.count(1)
    assert "tokens/s" not in str(speed)


def test_commands_of_other_chats(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("hi", "/clear", "/?", "/set temperature 0", '/set system "be brief"')
    _, chat = talk(FakeEngine(), *lines, "/bye", "more")
    assert chat.messages == [{"role": "system", "content": "be brief"}]
    err = capsys.readouterr().err
    assert "/system TEXT" in err
    assert "there is no /set here; use options of `quire chat`" in err


@pytest.mark.parametrize(
    ("term", "no_color", "is_grey"),
    [("xterm", "", True), ("xterm", "1", False), ("dumb", "", False), ("", "", False)],
)
def test_figures_are_grey_where_a_terminal_has_it(
    monkeypatch: pytest.MonkeyPatch, term: str, no_color: str, is_grey: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    assert dim("3 tokens") == ("\x1b[2m3 tokens\x1b[0m" if is_grey else "3 tokens")


def test_what_has_no_effect_is_a_note() -> None:
    words = ["chat", "quire-tiny", "hi", "--think=false", "--max-tokens", "2"]
    done = run_to_end([sys.executable, "-m", "quire", *words], input="")
    assert done.stderr.startswith("note: chat_template_kwargs: 'enable_thinking' has no effect: ")
    assert "NoEffectWarning" not in done.stderr
