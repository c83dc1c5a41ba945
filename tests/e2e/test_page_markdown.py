"""The page's Markdown in a headless Chromium: what it makes, that it is safe, and its time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from chromium import Chromium, find_chromium
from test_page_browser import serving

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium on the PATH")

# Elements that an answer may become, each with its attributes.
ALLOWED = {
    "A": {"href", "target", "rel"}, "BLOCKQUOTE": set(), "BUTTON": {"class", "type"},
    "CODE": set(), "DEL": set(), "DIV": {"class"}, "EM": set(), "H3": set(), "H4": set(),
    "H5": set(), "H6": set(), "HR": set(), "LI": set(), "OL": {"start"}, "P": set(),
    "PRE": {"tabindex"}, "SPAN": set(), "STRONG": set(), "TABLE": set(), "TBODY": set(),
    "TD": {"class"}, "TH": {"class"}, "THEAD": set(), "TR": set(), "UL": set(),
}  # fmt: skip

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x]( javascript:alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](vbscript:x) [x](file:///etc/passwd) [x](blob:https://e.com/1)",
    "[x](//evil.example) [x](/v1/models) [x](page) [x](#engine)",
    '[x](https://e.com/"onmouseover="alert(1))',
    '[x](https://e.com "title"onclick=alert(1))',
    "![x](javascript:alert(1)) ![x](https://e.com/track.png)",
    "<https://e.com> <javascript:alert(1)>",
    "`<b>` ``<i>`` ```<u>```",
    '```html" onclick="alert(1)\n<script>alert(1)</script>\n```',
    "| <b>a</b> | `c` |\n|---|:-:|\n| <script>x</script> | [x](javascript:1) |",
    "# <b>h</b>\n> <b>q</b>\n- <b>i</b>\n1. <b>o</b>",
    "&lt;b&gt; &#60;b&#62; &amp;",
    "[a]: javascript:alert(1)\n[a]",
    "\\<b\\> \\[x](javascript:1)",
    "[<img src=x onerror=alert(1)>](https://e.com)",
    "**<b>** *<i>* ~~<u>~~",
]

PIECES = [
    *HOSTILE, "*", "**", "_", "__", "~~", "`", "``", "```\n", "~~~\n", "\n", "\n\n", "- ", "\n- ",
    "\n1. ", "> ", "\n> ", "# ", "\n## ", "|", "\n|-|-|\n", "[", "](", ")", "!", "https://e.com/a",
    "\\", "a", " ", "    ", "\t", "word", "---", "\n---\n", "\u202e", "\0", "é", "&", "<", ">", '"',
    "\r\n", "[ ] ",
]  # fmt: skip

RENDER = """window.md ??= (async () => {
  const script = document.querySelector('script').src;
  const { MarkdownText } = await import(script.replace('main.js', 'markdown.js'));
  window.render = (...texts) => {
    const shown = new MarkdownText();
    for (const text of texts) shown.show(text);
    return shown.element;
  };
  window.strange = (element) => [...element.querySelectorAll('*')].flatMap((node) => {
    const names = ALLOWED[node.tagName];
    if (!names) return [node.tagName];
    const attributes = [...node.attributes].filter(({ name }) => !names.includes(name));
    const href = node.getAttribute('href');
    const bad = href !== null && !/^(https?:\\/\\/|mailto:)/.test(href) ? [href] : [];
    return [...attributes.map(({ name }) => `${node.tagName} ${name}`), ...bad];
  });
})()"""


@pytest.fixture(scope="module")
def page() -> Iterator[Chromium]:
    assert CHROMIUM is not None
    browser = Chromium(CHROMIUM)
    with serving("--load-format", "null") as url:
        browser.open(url)
        allowed = json.dumps({tag: sorted(names) for tag, names in ALLOWED.items()})
        browser.run(RENDER.replace("ALLOWED", allowed))
        yield browser
    browser.close()


def html(page: Chromium, *texts: str) -> str:
    """What the last of some texts becomes, shown one after the other."""
    found: str = page.run(f"render(...{json.dumps(texts)}).innerHTML")
    return found


A = '<a href="{0}" target="_blank" rel="noopener noreferrer nofollow">{1}</a>'
CODE = (
    '<div class="code"><div class="code-head"><span>{0}</span>'
    '<button class="quiet copy-code" type="button">Copy</button></div>'
    '<pre tabindex="0"><code>{1}</code></pre></div>'
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "<p>plain</p>"),
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("**b** *i* ***bi*** ~~d~~", "<p><strong>b</strong> <em>i</em> <strong><em>bi</em></strong>"
         " <del>d</del></p>"),
        ("__b__ _i_ snake_case_name", "<p><strong>b</strong> <em>i</em> snake_case_name</p>"),
        ("2 * 3 * 4, a**, **b", "<p>2 * 3 * 4, a**, **b</p>"),
        ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
        ("**a *b** c*", "<p>**a <em>b</em>* c*</p>"),
        ("`a*b*` ``c`d``", "<p><code>a*b*</code> <code>c`d</code></p>"),
        (r"\*a\* \n", "<p>*a* \\n</p>"),
        ("[a **b**](https://e.com/x_(y))",
         f"<p>{A.format('https://e.com/x_(y)', 'a <strong>b</strong>')}</p>"),
        ("see https://e.com/a.", f"<p>see {A.format('https://e.com/a', 'https://e.com/a')}.</p>"),
        ("![cat](https://e.com/c.png)", f"<p>{A.format('https://e.com/c.png', 'image: cat')}</p>"),
        ("# A #\n## B", "<h3>A</h3><h4>B</h4>"),
        ("- a\n- b\n  - c\n\n- d", "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul>"
         "</li><li><p>d</p></li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'),
        ("1. a\n   ```\n   x\n   ```",
         f'<ol start="1"><li><p>a</p>{CODE.format("", "x")}</li></ol>'),
        ("- [ ] a\n- [x] b", "<ul><li><p>☐ a</p></li><li><p>☑ b</p></li></ul>"),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li><p>b</p></li></ul></blockquote>"),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        ("```py\n<x>\n\n  *y*\n```\nz", CODE.format("py", "&lt;x&gt;\n\n  *y*") + "<p>z</p>"),
        ("```\nnot closed", CODE.format("", "not closed")),
        ("|a|b|\n|-|-:|\n|`x\\|y`|2",
         '<div class="scroll"><table><thead><tr><th class="left">a</th>'
         '<th class="right">b</th></tr></thead><tbody><tr><td class="left"><code>x|y</code></td>'
         '<td class="right">2</td></tr></tbody></table></div>'),
    ],
)  # fmt: skip
def test_what_it_becomes(page: Chromium, text: str, expected: str) -> None:
    assert html(page, text) == expected


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_hostile_becomes_more_than_text_and_safe_links(page: Chromium, text: str) -> None:
    assert page.run(f"strange(render({json.dumps(text)}))") == []


def grown(rng: random.Random) -> list[str]:
    """A random text, and how it came."""
    text = "".join(rng.choices(PIECES, k=rng.randint(1, 40)))
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 12)))
    return [*(text[:cut] for cut in cuts), text]


@pytest.mark.parametrize("seed", range(8))
def test_random_texts_are_safe_and_the_same_however_they_come(page: Chromium, seed: int) -> None:
    rng = random.Random(seed)
    cases = [grown(rng) for _ in range(400)]
    wrong: list[Any] = page.run(f"""{json.dumps(cases)}.map((texts) => {{
        const [streamed, whole] = [render(...texts), render(texts.at(-1))];
        const same = streamed.innerHTML === whole.innerHTML;
        return same && strange(whole).length === 0 ? null : [texts, strange(whole)];
    }}).filter(Boolean)""")
    assert wrong == []


LONG = [
    "*", "**a", "_a ", "`", "` `` ", "[", "[a](", "![", "[a](b(", "~~", "> ", "- ", "  - ", "1. ",
    "|", "|-", "\n|a|\n|-|", "https://", "http://a)", "\\", "```\n", "# ", "\n\n", "\n- a\n\n", " ",
    "\t", "\n>", "a\n", "***a***", "-" , "- - ", "_*~", "\n    a", "<", "*a **b ", "] (", "``` ",
]  # fmt: skip


@pytest.mark.parametrize("piece", LONG)
def test_time_is_linear_in_the_text(page: Chromium, piece: str) -> None:
    """100,000 characters take milliseconds; what is quadratic would take far over the limit."""
    text = json.dumps(piece * (100_000 // len(piece)))
    seconds = page.run(f"(() => {{ const t = performance.now(); render({text});"
                       " return (performance.now() - t) / 1000; })()")  # fmt: skip
    assert seconds < 3.0


def test_what_is_finished_is_left_alone(page: Chromium) -> None:
    texts = [
        "a **b**\n\n```py\nx",
        "a **b**\n\n```py\nx = 1\ny",
        "a **b**\n\n```py\nx = 1\ny\n```\n\nc\n\nd",
    ]
    unchanged = page.run(f"""(async () => {{
        const script = document.querySelector('script').src;
        const {{ MarkdownText }} = await import(script.replace('main.js', 'markdown.js'));
        const shown = new MarkdownText();
        const nodes = {json.dumps(texts)}.map((text) => {{
            shown.show(text);
            const code = shown.element.querySelector('code');
            return [shown.element.querySelector('strong'), code, code.firstChild];
        }});
        return nodes.every((found) => found.every((node, i) => node === nodes[0][i]));
    }})()""")
    assert unchanged is True


def test_a_table_scrolls_before_its_words_break(page: Chromium) -> None:
    page.run("""(() => {
      const shown = render('|alphabet|beta|\\n|-|-|\\n|gamma|delta|');
      shown.style.width = '70px';
      document.body.append(shown);
    })()""")
    box = "document.querySelector('body > .markdown .scroll')"
    assert page.run(f"{box}.scrollWidth > {box}.clientWidth")
    assert page.run(f"{box}.querySelector('th').offsetHeight < 40")  # one line
