"""The page in a headless Chromium, on the real server with the bundled model and a key."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from child_process import run_to_end
from chromium import Chromium, find_chromium
from server_process import end_server, running_server

from quire.hub import resolve_model

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium on the PATH")

KEY = "sesame"
BUNDLED = resolve_model("quire-tiny")
VIEWS = ["chat", "engine"]

# A request that the model would soon end goes on for long, as one to a larger model does.
GO_ON = """{
  const plain = window.fetch;
  window.fetch = (path, options) => options?.body
    ? plain(path, {...options, body: JSON.stringify({...JSON.parse(options.body),
        ignore_eos: true, max_tokens: 3000})})
    : plain(path, options);
}"""

# Every text on the page with the contrast to what is painted behind it.
FAINT_TEXTS = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const [low, high] = [parse(getComputedStyle(element).color), ground(element)]
      .map(luminance).sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) faint.push(walker.currentNode.data.trim());
  }
  return faint;
})()"""


# what can be pressed, other than within text, and is less than 24 pixels wide or high
SMALL_TARGETS = """[...document.querySelectorAll('button, a, input, select, textarea, summary')]
    .filter((e) => e.checkVisibility() && getComputedStyle(e).display !== 'inline')
    .map((e) => [e.outerHTML.slice(0, 80), e.getBoundingClientRect()])
    .filter(([, box]) => box.width < 24 || box.height < 24).map(([name]) => name)"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as url:
        yield url


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """A server's URL."""
    with running_server("--api-key", KEY, "--num-blocks", "1024", *options) as (process, url):
        yield url
        end_server(process)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    assert CHROMIUM is not None
    browser = Chromium(CHROMIUM)
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Chromium, url: str) -> Iterator[Chromium]:
    """The page as one sees it who gave the key before; it must leave no complaint behind."""
    browser.resize(1280, 900)
    browser.prefer(prefers_color_scheme="light")
    if browser.run("location.origin") != url:
        browser.open(f"{url}/version")  # any page of this origin, to reach its storage
    browser.run(f"sessionStorage.clear(), sessionStorage.setItem('quire-api-key', '{KEY}')")
    browser.problems.clear()
    browser.open(url)
    browser.wait("document.querySelector('#set-model').value === 'quire-tiny'")
    yield browser
    assert browser.problems == []


def say(page: Chromium, text: str) -> None:
    page.run("document.querySelector('#prompt').focus()")
    page.type(text)
    page.press("Enter")


def answered(number: int) -> str:
    return f"document.querySelectorAll('.again').length === {number}"


def set_field(page: Chromium, name: str, value: str) -> None:
    page.run(
        f"(() => {{ const field = document.querySelector('#set-{name}');"
        f" field.value = {json.dumps(value)};"
        " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def show(page: Chromium, view: str) -> None:
    page.run(f"location.hash = '{view}'")
    page.wait(f"!document.querySelector('#{view}-view').hidden")


def focused(page: Chromium) -> str:
    found: str = page.run("document.activeElement.id || document.activeElement.textContent.trim()")
    return found


def test_it_asks_for_the_key_and_forgets_it_with_the_tab(browser: Chromium, url: str) -> None:
    browser.open(f"{url}/version")
    browser.run("sessionStorage.clear()")
    browser.open(url)
    for key in ("wrong", KEY):
        browser.wait("document.querySelector('#key-dialog').open")
        assert focused(browser) == "key"
        browser.type(key)
        browser.press("Enter")
        browser.wait(f"sessionStorage.getItem('quire-api-key') === '{key}'")
    browser.wait("document.querySelector('#set-model').value === 'quire-tiny'")
    browser.wait("document.querySelector('#pulse').dataset.state === 'idle'")
    assert browser.run("Object.keys(localStorage).length + document.cookie.length") == 0
    assert KEY not in browser.run("location.href")


def test_an_answer_is_streamed_and_measured(page: Chromium) -> None:
    set_field(page, "temperature", "0")
    say(page, "red runing shoes for wimen")
    page.wait(answered(1))
    assert page.text(".answer .text") == "red running shoes for women"
    figures = page.text(".numbers")  # tokens that all came in one read have no rate
    assert re.search(r"\d (ms|s) to first token( · [\d,.]+ tokens/s)? · 10 tokens$", figures)
    assert page.text("#announcer") == "Answer: red running shoes for women"
    assert focused(page) == "prompt"


def test_a_conversation_goes_on_and_can_be_answered_again(page: Chromium) -> None:
    set_field(page, "temperature", "0")
    for number, text in enumerate(["hello there", "who are you?"], 1):
        say(page, text)
        page.wait(answered(number))
    sent = page.run("""new Promise((resolve) => {
        const plain = window.fetch;
        window.fetch = (path, options) => {
            if (options?.body) resolve(JSON.parse(options.body));
            return plain(path, options);
        };
        document.querySelector('.again').click();
    })""")
    assert [message["content"] for message in sent["messages"]] == ["hello there"]
    page.wait(answered(1))
    page.run("document.querySelector('#clear').click()")
    assert page.run("document.querySelectorAll('.turn').length") == 0
    assert page.text("#blank h2") == "A blank page"
    assert focused(page) == "prompt"


@pytest.mark.parametrize("closed_by", ["button", "Escape"])
def test_an_answer_can_be_stopped(page: Chromium, closed_by: str) -> None:
    page.run(GO_ON)
    say(page, "tell me a joke")
    page.wait("document.querySelector('.answer .text').textContent.length > 20")
    assert page.run("document.querySelector('.answer').ariaBusy") == "true"
    if closed_by == "button":
        page.run("document.querySelector('#stop').focus()")
        page.press("Enter")
    else:
        page.press("Escape")
    page.wait(answered(1))
    assert page.text(".numbers").endswith("stopped by you")
    assert focused(page) == "prompt"
    live = f"fetch('live', {{headers: {{Authorization: 'Bearer {KEY}'}}}})"
    page.wait(f"{live}.then((reply) => reply.json()).then(({{ running }}) => running === 0)")


def test_text_grows_as_it_comes(page: Chromium) -> None:
    page.run(GO_ON)
    say(page, "hello")
    text = "document.querySelector('.answer .text').textContent"
    page.wait(f"{text}.length > 1")
    first = page.run(text)
    page.wait(f"{text}.length > {len(first)}")
    assert page.run(text).startswith(first[:20])
    page.press("Escape")
    page.wait(answered(1))


def test_markup_in_a_message_stays_text(page: Chromium) -> None:
    text = "<img src=x onerror=alert(1)> <b>bold</b>"
    say(page, text)
    page.wait(answered(1))
    assert page.text(".user .text") == text
    assert page.run("document.querySelectorAll('.turn img, .turn b:not(.numbers b)').length") == 0


def test_an_answer_is_formatted_or_shown_as_it_was_written(page: Chromium) -> None:
    answer = "**bold** and\n\n```py\nx = 1\n```"
    event = {"choices": [{"delta": {"content": answer}}]}
    stream = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
    page.run(f"window.fetch = async () => new Response({json.dumps(stream)})")
    say(page, "hello")
    page.wait(answered(1))
    assert page.text(".answer strong") == "bold"
    copied = page.run("""new Promise((resolve) => {
        const clipboard = {writeText: async (text) => resolve(text)};
        Object.defineProperty(navigator, 'clipboard', {value: clipboard});
        document.querySelector('.copy-code').click();
    })""")
    assert copied == "x = 1"
    press = (
        "[...document.querySelectorAll('.tools button')].find((b) => b.innerText === '{}').click()"
    )
    page.run(press.format("Plain text"))
    assert page.text(".answer .text") == answer
    page.run(press.format("Formatted"))
    assert page.text(".answer strong") == "bold"


ROWS = """[...document.querySelectorAll('.tools, .actions')].filter((row) => row.checkVisibility())
    .flatMap((row) => [...row.children].filter((button) =>
        button.offsetTop !== row.children[0].offsetTop || button.offsetHeight > 34
        || button.getBoundingClientRect().right > innerWidth).map((b) => b.innerText))"""


def test_rows_of_actions_do_not_wrap(page: Chromium) -> None:
    set_field(page, "temperature", "0")
    say(page, "hello there")
    page.wait(answered(1))
    for mode, width in itertools.product(["chat", "completion"], [320, 390, 640, 901, 1280]):
        set_field(page, "mode", mode)
        page.resize(width, 800, phone=width < 700)
        assert page.run(ROWS) == [], (mode, width)


def test_a_text_is_continued_and_taken_back(page: Chromium) -> None:
    set_field(page, "mode", "completion")
    set_field(page, "temperature", "0")
    set_field(page, "max_tokens", "8")
    text = "document.querySelector('#text').value"
    page.run("document.querySelector('#text').focus()")
    page.type("red shoes")
    page.run("document.querySelector('#continue').click()")
    page.wait("document.querySelector('#text-figures').innerText.includes('8 tokens')")
    page.wait("document.querySelector('#halt').hidden")
    once = page.run(text)
    assert once.startswith("red shoes")
    assert len(once) > len("red shoes")
    page.run("document.querySelector('#continue').click()")
    page.wait("document.querySelector('#halt').hidden")
    assert page.run(text).startswith(once)
    for expected in (once, "red shoes"):
        page.run("document.querySelector('#undo').click()")
        assert page.run(text) == expected
    assert page.run("document.querySelector('#undo').disabled") is True


def test_a_continuation_can_be_stopped_and_its_refusal_is_shown(page: Chromium) -> None:
    set_field(page, "mode", "completion")
    page.run(GO_ON)
    page.run("document.querySelector('#text').focus()")
    page.type("once")
    page.run("document.querySelector('#continue').click()")
    page.wait("document.querySelector('#text').value.length > 20")
    page.press("Escape")
    page.wait("document.querySelector('#text-figures').innerText.includes('stopped by you')")
    set_field(page, "top_p", "7")
    page.run("document.querySelector('#continue').click()")
    page.wait("document.querySelector('#text-failure .failure')")
    assert "top_p" in page.text("#text-failure")


def test_a_refused_field_is_named_and_marked(page: Chromium) -> None:
    set_field(page, "top_p", "1.5")
    say(page, "hello")
    page.wait("document.querySelector('.failure')")
    failure = page.text(".failure")
    assert "top_p" in failure
    assert "400" in failure
    assert page.run("document.querySelector('#set-top_p').ariaInvalid") == "true"
    set_field(page, "top_p", "")
    page.run("document.querySelector('.again').click()")
    page.wait("!document.querySelector('.failure') && document.querySelector('.again')")
    assert page.run("document.querySelector('#set-top_p').ariaInvalid") is None


def test_an_answer_can_be_given_a_response_format(page: Chromium) -> None:
    assert page.run("document.querySelector('#set-schema').checkVisibility()") is False
    set_field(page, "temperature", "0")
    set_field(page, "response_format", "json_object")
    say(page, "hello")
    page.wait(answered(1))
    assert isinstance(json.loads(page.text(".answer .text")), dict)
    schema = {"type": "object", "properties": {"a": {"const": "x"}}, "required": ["a"]}
    set_field(page, "response_format", "json_schema")
    assert page.run("document.querySelector('#set-schema').checkVisibility()") is True
    set_field(page, "schema", json.dumps(schema | {"additionalProperties": False}))
    page.run("document.querySelector('.again').click()")
    page.wait(f"{answered(1)} && document.querySelector('.answer .text').innerText.includes('x')")
    assert json.loads(page.text(".answer .text")) == {"a": "x"}


def test_an_invalid_schema_is_reported_while_it_is_written_and_when_it_is_sent(
    page: Chromium,
) -> None:
    set_field(page, "response_format", "json_schema")
    set_field(page, "schema", '{"type": ')
    assert "not JSON yet" in page.text("#set-schema-note")
    say(page, "hello")
    page.wait("document.querySelector('.failure')")
    assert "response_format.json_schema.schema" in page.text(".failure")
    assert page.run("document.querySelector('#set-schema').ariaInvalid") == "true"
    assert page.run("document.querySelector('#set-response_format').ariaInvalid") is None
    set_field(page, "schema", "{}")
    assert "not JSON yet" not in page.text("#set-schema-note")


def test_a_server_that_is_gone_is_reported(page: Chromium) -> None:
    page.run("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    say(page, "hello")
    page.wait("document.querySelector('.failure')")
    assert "check that it still runs" in page.text(".failure")
    page.run("location.hash = 'engine'")
    page.wait("document.querySelector('#pulse').dataset.state === 'lost'")
    page.wait("!document.querySelector('#engine-notice').hidden")


def test_a_full_queue_says_when_to_come_back(page: Chromium) -> None:
    page.run("""window.fetch = async () => new Response(
        JSON.stringify({error: {message: 'the queue is full; wait', code: 'server_is_overloaded'}}),
        {status: 429, headers: {'retry-after': '7'}})""")
    say(page, "hello")
    page.wait("document.querySelector('.failure')")
    failure = page.text(".failure")
    assert failure.startswith("The queue is full; wait. Try again in 7 seconds.")
    assert "429 · server_is_overloaded" in failure


def test_curl_is_the_same_request_without_the_key(page: Chromium) -> None:
    set_field(page, "system", "it's a shop")
    set_field(page, "stop", "\n##\n")
    copied = page.run("""new Promise((resolve) => {
        const clipboard = {writeText: async (text) => resolve(text)};
        Object.defineProperty(navigator, 'clipboard', {value: clipboard});
        document.querySelector('#copy-curl').click();
    })""")
    assert KEY not in copied
    assert '"Authorization: Bearer $QUIRE_API_KEY"' in copied
    command = copied.replace("$QUIRE_API_KEY", KEY)
    done = run_to_end(["sh", "-c", command], check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_everything_is_reached_with_the_keyboard(page: Chromium) -> None:
    page.run("document.querySelector('.skip').focus()")
    seen = [focused(page)]
    for _ in range(12):
        page.press("Tab")
        seen.append(focused(page))
    assert seen[:4] == ["Skip to the content", "Quire", "chat-link", "engine-link"]
    assert {"turns", "prompt", "send"} <= set(seen)
    page.run("document.querySelector('#engine-link').focus()")
    page.press("Enter")
    page.wait("!document.querySelector('#engine-view').hidden")
    assert page.run("document.querySelector('#engine-link').ariaCurrent") == "page"
    page.wait("document.querySelector('.about').textContent.startsWith('Each cell')")
    page.run("document.querySelector('canvas[tabindex]').focus()")
    page.press("ArrowRight")
    assert re.match(r"Block 0: ", page.text(".readout"))
    page.press("End")
    assert re.match(r"Block 1,023: ", page.text(".readout"))


def test_the_live_view_shows_what_ran(page: Chromium) -> None:
    page.run(GO_ON)
    say(page, "hello")
    page.wait("document.querySelector('.answer .text').textContent.length > 20")
    page.run("location.hash = 'engine'")
    tile = "[...document.querySelectorAll('.tile .value')].map((value) => value.textContent)"
    page.wait(f"{tile}[2] === '1' && {tile}[0] !== '0'")
    page.run("document.querySelectorAll('.panel details').forEach((fold) => (fold.open = true))")
    rows = "document.querySelectorAll('.panel')[{}].querySelectorAll('tbody tr')"
    page.wait(f"{rows.format(2)}.length > 20")
    states = page.run(f"[...{rows.format(0)}].map((row) => row.innerText)")
    assert [state.split()[0] for state in states] == ["free", "cached", "used", "shared"]
    counts = [int(state.split()[1].replace(",", "")) for state in states]
    assert sum(counts) == 1024
    assert counts[2] > 0
    for index in (3, 4):  # both histograms have counted
        page.wait(f"document.querySelectorAll('.panel')[{index}].innerText.includes('p99')")
    page.run("document.querySelector('#pause').click()")
    paused = page.text("#tiles")
    page.run("new Promise((resolve) => setTimeout(resolve, 1200))")
    assert page.text("#tiles") == paused
    page.run("location.hash = 'chat'")
    page.press("Escape")


def test_text_has_contrast_and_nothing_moves(page: Chromium) -> None:
    set_field(page, "top_p", "7")
    say(page, "hello")
    page.wait(answered(1))
    for scheme, view in itertools.product(["light", "dark"], VIEWS):
        page.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        show(page, view)
        ground = page.run("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) > 384) == (scheme == "light")
        assert page.run(FAINT_TEXTS) == []
        # the browser sets both preferences one by one, and a transition may begin in between
        page.wait("document.getAnimations().length === 0")


def test_everything_operable_has_a_name(page: Chromium) -> None:
    roles = {"button", "link", "textbox", "combobox", "slider", "spinbutton", "application", "img"}
    for view in VIEWS:
        show(page, view)
        nodes = page.send("Accessibility.getFullAXTree")["nodes"]
        found = [
            (node["role"]["value"], node["name"]["value"])
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in roles
        ]
        assert len(found) > 5
        assert [role for role, name in found if not name.strip()] == []


def test_what_is_pressed_is_large_enough_for_a_finger(page: Chromium, url: str) -> None:
    """24 pixels, as WCAG 2.2 asks for (2.5.8)."""
    page.resize(320, 700, phone=True)
    for view in VIEWS:
        show(page, view)
        assert page.run(SMALL_TARGETS) == []
    page.open(f"{url}/docs")
    assert page.run(SMALL_TARGETS) == []


def test_nothing_sticks_out_on_small_screens(page: Chromium) -> None:
    for width, view in itertools.product([320, 390, 768], VIEWS):
        page.resize(width, 700, phone=True)
        show(page, view)
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run(f"document.querySelector('#{view}-view').scrollWidth") <= width


def test_events_are_cut_anywhere_and_quantiles_interpolate(page: Chromium) -> None:
    page.run("""(async () => {
        const script = document.querySelector('script').src;
        const { EventReader } = await import(script.replace('main.js', 'sse.js'));
        const two = 'data: x\\ndata:  y';
        const events = [': hello', 'data: {"a":1}', two, 'event: z', 'data: [DONE]'];
        const text = events.map((event) => event + '\\n\\n').join('');
        const whole = JSON.stringify(new EventReader().push(text));
        if (whole !== JSON.stringify(['{"a":1}', 'x\\n y', '[DONE]'])) throw new Error(whole);
        for (let first = 0; first <= text.length; first++)
            for (let second = first; second <= text.length; second++) {
                const reader = new EventReader();
                const parts = [text.slice(0, first), text.slice(first, second), text.slice(second)];
                const found = JSON.stringify(parts.flatMap((part) => reader.push(part)));
                if (found !== whole) throw new Error(`cut at ${first}, ${second}: ${found}`);
            }
    })()""")
    found = page.run("""(async () => {
        const script = document.querySelector('script').src;
        const { quantile } = await import(script.replace('main.js', 'histogram.js'));
        const bounds = [1, 2, 4];
        return [quantile(bounds, [0, 0, 0, 0], 0.5), quantile(bounds, [0, 10, 0, 0], 0.5),
                quantile(bounds, [5, 5, 0, 0], 0.99), quantile(bounds, [0, 0, 0, 3], 0.5)];
    })()""")
    assert found == [None, 1.5, pytest.approx(1.98), 4]


def test_an_answer_has_a_rate_if_its_tokens_came_at_several_times(page: Chromium) -> None:
    found = page.run("""(async () => {
        const script = document.querySelector('script').src;
        const { Answer } = await import(script.replace('main.js', 'answer.js'));
        return [[5, 5, 5], [5, 6, 9]].map((times) => {
            const answer = new Answer(0);
            for (const now of times) answer.push({ choices: [{ text: 'a' }] }, now);
            return answer.tokensPerSecond;
        });
    })()""")
    assert found == [None, 500]


NAMES_OF = "[...document.querySelectorAll('{} option')].map((option) => option.value)"


def test_a_base_model_is_completed_and_the_live_view_follows(
    browser: Chromium, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(BUNDLED, base)
    settings = json.loads((base / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (base / "tokenizer_config.json").write_text(json.dumps(settings))
    with serving("--model", "chat=quire-tiny", "--model", f"base={base}") as url:
        browser.open(f"{url}/version")
        browser.run(f"sessionStorage.clear(), sessionStorage.setItem('quire-api-key', '{KEY}')")
        browser.open(url)
        browser.wait("document.querySelector('#set-model').value === 'chat'")
        assert browser.run("document.querySelector('#composer').checkVisibility()") is True
        for name, visible, disabled in (
            ("base", "writing", True), ("chat", "composer", False), ("base", "writing", True),
        ):  # fmt: skip
            set_field(browser, "model", name)
            assert browser.run(f"document.querySelector('#{visible}').checkVisibility()") is True
            assert browser.run("document.querySelector('#set-mode').disabled") is disabled
        browser.run("document.querySelector('#text').focus()")
        browser.type("red shoes")
        browser.run("document.querySelector('#continue').click()")
        browser.wait("document.querySelector('#text-figures').innerText.includes('tokens')")
        show(browser, "engine")
        browser.wait("document.querySelector('#engine-facts').innerText.startsWith('base')")
        assert browser.run("document.querySelector('#live-model').value") == "base"
    browser.problems.clear()


def test_a_model_can_be_picked_and_stays_picked(browser: Chromium) -> None:
    models = ("--model", "chat=quire-tiny", "--model", "small=quire-tiny-draft")
    with serving(*models, "--load-format", "null") as url:
        browser.open(f"{url}/version")
        browser.run(f"sessionStorage.clear(), sessionStorage.setItem('quire-api-key', '{KEY}')")
        browser.open(url)
        browser.wait("document.querySelector('#set-model').value === 'chat'")
        assert browser.run(NAMES_OF.format("#set-model")) == ["chat", "small"]
        browser.run(
            "window.asked = []; const plain = window.fetch; window.fetch = (path, options) => {"
            " if (options?.body) window.asked.push(JSON.parse(options.body).model);"
            " return plain(path, options); }"
        )
        for number, name in enumerate(["chat", "small"], 1):
            set_field(browser, "model", name)
            set_field(browser, "max_tokens", "4")
            say(browser, "hello")
            browser.wait(answered(number))
        assert browser.run("window.asked") == ["chat", "small"]
        browser.open(url)
        browser.wait("document.querySelector('#set-model').value === 'small'")
        show(browser, "engine")
        browser.wait("!document.querySelector('#live-model-label').hidden")
        assert browser.run(NAMES_OF.format("#live-model")) == ["chat", "small"]
        for width in (280, 320, 390):
            browser.resize(width, 700, phone=True)
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run("document.querySelector('#live-model').offsetWidth") >= 90
        browser.run("location.hash = 'chat'")
    browser.problems.clear()


def test_the_api_is_shown_at_docs(browser: Chromium, url: str) -> None:
    browser.problems.clear()
    for width in (320, 390, 1280):
        browser.resize(width, 800, phone=width < 700)
        browser.open(f"{url}/docs")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelector('.contents').offsetHeight") > 200
    browser.run("document.querySelector('a[href=\"#post_v1_embeddings\"]').click()")
    assert browser.run("document.querySelector(':target h2').innerText") == "POST /v1/embeddings"
    assert browser.run(FAINT_TEXTS) == []
    assert browser.problems == []


def test_settings_are_above_the_conversation_where_there_is_no_space_beside_it(
    page: Chromium,
) -> None:
    fold = "document.querySelector('#settings-fold').open"
    assert page.run(fold)
    page.resize(390, 844, phone=True)
    page.wait(f"!{fold}")
    page.resize(1280, 900)
    page.wait(fold)


def test_the_bar_of_a_phone_is_one_line_whatever_runs(page: Chromium) -> None:
    page.resize(390, 844, phone=True)
    height = "document.querySelector('.bar').offsetHeight"
    idle = page.run(height)
    page.run("document.querySelector('#pulse-text').textContent = '28 running'")
    assert page.run(height) == idle
