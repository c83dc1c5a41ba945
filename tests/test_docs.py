"""The docs list each setting and field as the code has it, and links lead to existing places."""

from __future__ import annotations

import ast
import importlib
import io
import re
import shlex
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from child_process import run_to_end
from house_files import ROOT, load_program

import quire
from quire.cli import COMMANDS, main, serve
from quire.config import iter_options
from quire.core.sampling_params import SamplingParams
from quire.models.config.quality_report import QualityLimits
from quire.options import Option, options_of
from quire.server.api.anthropic import messages_request
from quire.server.api.common import chat_request
from quire.server.api.llama_cpp import completion_request
from quire.server.api.openai import (
    completions_request,
    embeddings_request,
    responses_request,
    tokenize,
)
from quire.server.http.request_body import RequestBody
from quire.server.settings import ServerSettings

TABLES = ROOT / "benchmarks" / "tables.py"  # a program, and not part of the package
DOCS = ROOT / "docs"
DECISIONS = sorted(DOCS.glob("decisions/*.md"))
PAGES = sorted(DOCS.glob("*.md"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *PAGES, *DECISIONS])  # all that may hold tables
ENGINE_OPTIONS = [option for _, option in iter_options() if option.name != "model"]
BODIES: list[type[RequestBody]] = [
    completions_request.CompletionRequest,
    chat_request.ChatRequest,
    messages_request.MessagesRequest,
    responses_request.ResponsesRequest,
    embeddings_request.EmbeddingRequest,
    tokenize.TokenizeRequest,
    tokenize.DetokenizeRequest,
    completion_request.NativeCompletionRequest,
]


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def cells(page: str) -> dict[str, list[str]]:
    """The tables' rows by the code in their first cell."""
    rows = [
        re.split(r"(?<!\\)\|", line)[1:-1] for line in text_of(page).splitlines() if "|" in line
    ]
    return {row[0].strip().strip("`"): [c.strip() for c in row[1:]] for row in rows if row}


def shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "" if default is None else str(default)


@pytest.mark.parametrize(
    "option", [*ENGINE_OPTIONS, *options_of(ServerSettings)], ids=lambda option: option.name
)
def test_each_setting_stands_in_its_table_as_in_the_code(option: Option) -> None:
    row = cells("command-line.md")["--" + option.name.replace("_", "-")]
    assert row == [shown(option.default), option.help]


def test_the_tables_have_each_option_of_serve_and_no_other() -> None:
    """Options that are no settings, too; `--no-` forms are described beside the tables."""
    options = serve.make_parser()._option_string_actions
    twins = {flag for flag in options if f"--{flag.removeprefix('--no-')}" in {*options} - {flag}}
    flags = {flag for flag in options if flag.startswith("--")} - twins - {"--help"}
    rows = cells("command-line.md")
    assert {name for name in rows if re.match(r"--\w", name)} == flags
    settings = {o.name for o in (*ENGINE_OPTIONS, *options_of(ServerSettings))}
    for flag in flags:
        if flag[2:].replace("-", "_") not in settings:
            assert rows[flag] == ["", options[flag].help]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_of_a_command_is_named(command: str) -> None:
    """In its page, or as a setting or a sampling param in their tables."""
    module = importlib.import_module(f"quire.cli.{command.replace('-', '_')}")
    pages = map(text_of, ("command-line.md", "quantization.md", "profile.md"))
    named = set(re.findall(r"--?[a-z][a-z0-9-]*", "".join(pages)))
    named |= {f"--{name.replace('_', '-')}" for name in SamplingParams.__struct_fields__}
    for action in module.make_parser()._actions:
        flags = {*action.option_strings} - {"-h", "--help"}
        assert not flags or flags & named, flags


def test_the_limits_of_quality_are_named() -> None:
    limits = QualityLimits().record().items()
    assert ",".join(f"{name}={value}" for name, value in limits) in text_of("quantization.md")


def test_each_environment_variable_that_the_code_reads_is_named() -> None:
    code = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"\b(QUIRE_[A-Z_]*[A-Z]|HF_[A-Z_]+|OMP_[A-Z_]+)\b", code))
    read |= {"QUIRE_API_KEY", "QUIRE_ADMIN_API_KEY"}  # served_models.py makes the names
    assert sorted(read - set(cells("command-line.md")) - {"OMP_NUM_THREADS"}) == []


@pytest.mark.parametrize("field", SamplingParams.__struct_fields__)
def test_each_sampling_field_stands_in_its_table_with_its_default(field: str) -> None:
    assert cells("python.md")[field][0] == str(getattr(SamplingParams(), field))


@pytest.mark.parametrize("body", BODIES)
def test_each_request_field_is_named(body: type[RequestBody]) -> None:
    text = text_of("http-api.md")
    names = (*body.__struct_fields__, *body.neutral)  # those that are refused, too
    assert [name for name in names if f"`{name}`" not in text] == []


def test_each_code_of_an_error_stands_in_the_table() -> None:
    """But for those of the admin listener, and of responses that end in the background."""
    server = ROOT / "src" / "quire" / "server"
    code = "".join(path.read_text(encoding="utf-8") for path in server.rglob("*.py"))
    codes = set(re.findall(r'\bcode(?:: str)? ?= ?"(\w+)"|, \d{3}, "(\w+)"\)', code))
    table = text_of("http-api.md").split("| status | `code` | when |")[1].split("\n\n")[0]
    named = {first or second for first, second in codes} - {"model_is_loading", "server_error"}
    assert {"queue_timeout", "bad_request", "target_too_long"} <= named
    assert sorted(name for name in named if f"`{name}`" not in table) == []


def test_the_list_has_every_page() -> None:
    listed = set(re.findall(r"\| \[([\w/-]+\.md)\]", text_of("README.md")))
    pages = {page.relative_to(DOCS).as_posix() for page in (*PAGES, *DECISIONS)}
    assert listed == pages - {"README.md"}, "docs/README.md lists each page"


def questions() -> list[tuple[str, str, str]]:
    """Rows of where-to-find.md: question, term, file."""
    rows = re.findall(r"^\| (.*\?) \| `(.*)` \| `(.*)` \|$", text_of("where-to-find.md"), re.M)
    return [(question, term.replace("\\|", "|"), file) for question, term, file in rows]


def test_newcomers_have_thirty_questions() -> None:
    assert len(questions()) >= 30


@pytest.mark.parametrize(("question", "term", "file"), questions())
def test_one_grep_answers_a_question(question: str, term: str, file: str) -> None:
    """The file has more definitions with the term than any other."""
    pattern = re.compile(rf'(\b(class|def) |"""|^// ).*({term})', re.IGNORECASE)
    source = ROOT / "src" / "quire"
    hits = Counter(
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.suffix in (".py", ".cpp", ".h")
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line)
    )
    (best, most), *others = [*hits.most_common(2), ("", 0)]
    assert (best, most) == (file, hits[file]), f"{question} {hits.most_common(5)}"
    assert most > others[0][1], f"{question} {hits.most_common(5)}"


def test_decisions_are_short() -> None:
    assert sum(page.stat().st_size for page in DECISIONS) <= 40_000


def test_results_are_summaries() -> None:
    files = (ROOT / "benchmarks" / "results").iterdir()
    assert sum(file.stat().st_size for file in files) <= 1_000_000


def test_each_result_is_linked_or_read() -> None:
    """By a page, or by its name in a program."""
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCUMENTS)
    code = "".join(path.read_text("utf-8") for path in (ROOT / "benchmarks").rglob("*.py"))
    files = (ROOT / "benchmarks" / "results").glob("*.json")
    assert [f.name for f in files if f.name not in pages and f'"{f.stem}"' not in code] == []


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks" / "results").glob("*.json")))
def test_commands_name_no_folder_of_one_machine(file: Path) -> None:
    commands = re.findall(r'"command": "((?:[^"\\]|\\.)*)"', file.read_text())
    assert not [each for each in commands if re.search(r"\.\./|/tmp|/work|/home|/root", each)]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        if name.startswith("https:"):
            continue
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


def anchors(page: Path) -> set[str]:
    """Headings as the usual renderers spell them in links."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_the_pages_name_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # what it names was there at the time
    folders = ("src", "tests", "benchmarks", "docs", "training", "examples", "deploy")
    files = [f"/{p.relative_to(ROOT).as_posix()}" for f in folders for p in (ROOT / f).rglob("*")]
    text = page.read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:tests|benchmarks|src|docs|examples|deploy)/[\w/.-]+\.\w+)`", text)
    )
    named |= set(re.findall(r"`([\w/-]+\.(?:py|h|cpp))`", text))
    assert {name for name in named if not any(f.endswith(f"/{name}") for f in files)} == set()


def test_the_architecture_names_what_is_there() -> None:
    """Each path, class, function and field in backquotes exists in the source."""
    source = ROOT / "src" / "quire"
    files = [*source.rglob("*"), *(ROOT / "tests").rglob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    names = {path.stem for path in files} | {"ctx", "transformers"}
    names |= set(re.findall(r"^ *(?:async def|def|class) (\w+)", code, re.MULTILINE))
    names |= set(re.findall(r"^ *(\w+)(?:: | = )", code, re.MULTILINE))
    text = re.sub(r"```.*?```", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.DOTALL)
    missing = set()
    for name in re.findall(r"`([\w./]+)`", text):
        is_file = any(path.as_posix().endswith(f"/{name.rstrip('/')}") for path in files)
        if not is_file and not set(name.split(".")) <= names:
            missing.add(name)
    assert missing == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_are_those_of_the_result_files(document: Path) -> None:
    tables, text = load_program(TABLES), document.read_text(encoding="utf-8")
    up = "../" * (len(document.relative_to(ROOT).parts) - 1)
    assert tables.fill(text, up) == text, "run python benchmarks/tables.py"
    has_table = "<!-- table:" in text
    assert has_table == (document.relative_to(ROOT).as_posix() in tables.DOCUMENTS)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- table:ghost -->\nold\n<!-- end -->", "ghost is no table"),
        ("<!-- table:soak -->\nold\n", "1 table markers, but 0 of them"),
        ("<!-- table:empty -->\n<!-- end -->", "empty.json has no rows"),
        ("<!-- table:lost -->\nold\n<!-- end -->", "lost.json is missing"),
    ],
)
def test_a_table_that_cannot_be_filled_is_an_error(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = load_program(TABLES)
    (tmp_path / "empty.json").write_text('{"rows": []}')
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    for name in ("empty", "lost"):
        monkeypatch.setitem(tables.LIKE, name, "soak")
    with pytest.raises(tables.TableError, match=problem):
        tables.fill(text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_table_has_a_column_of_nothing(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = (re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines())
        assert rows, head
        for name, *column in zip(head, *rows, strict=True):
            assert any(cell.strip() not in ("", "-") for cell in column), (head, name)


def test_the_readme_example_answers_as_it_says() -> None:
    """The Python block of the README prints what its comment says."""
    readme = (ROOT / "README.md").read_text()
    code = readme.split("```python\n")[1].split("```")[0]
    promised = code.rsplit("# ", 1)[1].strip().split(", ")
    done = run_to_end([sys.executable, "-c", code], check=True)
    assert done.stdout.splitlines()[-len(promised) :] == promised


def blocks(page: str) -> list[tuple[str, str]]:
    """The Python code of a page that needs nothing else, and what stands below it as its output."""
    fence = r"^```(.*)\n((?s:.*?))^```\n+(?:```\n((?s:.*?))^```$)?"
    fences = re.findall(fence, text_of(page), re.M)
    found = [(code, shown) for kind, code, shown in fences if kind == "python"]
    found += [
        ("\n".join(re.findall(r"^(?:>>>|\.\.\.) (.*)$", code, re.M)), "")
        for _, code, _ in fences
        if code.startswith(">>> ")
    ]
    return [pair for pair in found if not re.search(r"path/to/|127\.0\.0\.1", pair[0])]


@pytest.mark.parametrize("page", [page.name for page in PAGES if blocks(page.name)])
def test_python_in_a_page_runs_and_prints_what_it_says(page: str) -> None:
    """All of a page in a row, as a reader would paste it into a notebook."""
    body = ast.parse("\n".join(code for code, _ in blocks(page))).body
    lines = [
        f"print({ast.unparse(node.value)})" if isinstance(node, ast.Expr) else ast.unparse(node)
        for node in body
    ]
    source = "async def main():\n" + textwrap.indent("\n".join(lines), "    ")
    code = f"{source}\nimport asyncio\nasyncio.run(main())"
    done = run_to_end([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    for _, shown in blocks(page):
        plain = re.sub(r"  +#.*", "", shown).strip()
        assert plain in done.stdout


@pytest.mark.parametrize("page", [page.name for page in PAGES if blocks(page.name)])
def test_an_example_imports_all_names_of_quire_that_it_uses(page: str) -> None:
    """As readers copy one block, not all those above it."""
    for code, _ in blocks(page):
        nodes = list(ast.walk(ast.parse(code, type_comments=False)))
        imported = {a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        assert used & set(dir(quire)) <= imported or not imported, code


def test_the_memory_plan_is_printed_as_the_page_shows_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = text_of("startup.md")
    name, words = re.findall(r"^\$ quire serve (\S+) (--dry-run .*)$", page, re.M)[0]
    shape = str(ROOT / "benchmarks" / "shapes" / "llama-3.1-8b")
    options = ["--skip-tokenizer-init", "--load-format", "dummy", *words.split()]
    assert main(["serve", shape, *options]) == 0
    printed = capsys.readouterr().out.replace(shape, name)
    printed = re.sub(r" +$", "", printed, flags=re.M).strip()
    assert f"{words}\n{printed}\n```" in page


def examples() -> list[tuple[str, str]]:
    """Commands that answer on a line, with their answers."""
    card = (ROOT / "src/quire/bundled/README.md").read_text(encoding="utf-8")
    pages = text_of("command-line.md") + card
    found = re.findall(r"^\$ (.*quire (?:generate|chat) .*)\n(.+)$", pages, re.M)
    assert len(found) == 7
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("command", "answer"), examples())
def test_the_command_line_answers_as_it_says(
    command: str,
    answer: str,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With 16-bit products, whose default is bfloat16, and without."""
    piped, _, words = command.rpartition("quire ")
    said = " ".join(shlex.split(piped)[1:-1])  # between echo and the pipe
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
    assert main([*shlex.split(words), "--dtype", dtype]) == 0
    assert capsys.readouterr().out == f"{answer}\n"
