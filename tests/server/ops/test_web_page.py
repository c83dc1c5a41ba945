"""The page's files: routes, headers, what they may load, and that they are in the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.server.app import build_app
from quire.server.ops.web_page import FOLDER, INDEX, MEDIA_TYPES, WebPage
from quire.server.settings import ServerSettings

ROOT = Path(__file__).parents[3]
PAGE = WebPage()
ASSETS = sorted(PAGE.paths - {"/"})
FILES = sorted(FOLDER.iterdir())


def test_the_index_names_its_files_by_their_hash(app: Starlette) -> None:
    reply = call(app, "/")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:href|src)="([^"#]+)"', reply.body.decode())
    assert named
    assert {f"/{path}" for path in named} <= {*ASSETS, "/docs"}


@pytest.mark.parametrize("path", ASSETS)
def test_files_may_be_cached_for_ever(app: Starlette, path: str) -> None:
    reply = call(app, path)
    assert reply.status == 200
    assert reply.body == (FOLDER / Path(path).name).read_bytes()
    assert reply.headers["content-type"] == MEDIA_TYPES[Path(path).suffix]
    assert "immutable" in reply.headers["cache-control"]
    assert f"/{PAGE.version}/" in path


@pytest.mark.parametrize("path", ["/", *ASSETS])
def test_every_file_has_the_strict_headers(app: Starlette, path: str) -> None:
    headers = call(app, path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", ASSETS[0]])
def test_a_browser_that_has_a_file_gets_304(app: Starlette, path: str) -> None:
    tag = call(app, path).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        reply = call(app, path, headers={"if-none-match": known})
        assert (reply.status, reply.body) == (304, b"")
        assert reply.headers["etag"] == tag
    assert call(app, path, headers={"if-none-match": '"other"'}).status == 200


@pytest.mark.parametrize("path", ["/", ASSETS[0]])
def test_only_get_and_head(app: Starlette, path: str) -> None:
    assert call(app, path, method="HEAD").status == 200
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        reply = call(app, path, method=method)
        assert reply.status == 405
        assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD"}


WRONG = [
    "/index.html",
    "/page/",
    "/page/main.js",
    f"/page/{PAGE.version}",
    f"/page/{PAGE.version}/",
    f"/page/{PAGE.version}/index.html",
    f"/page/{PAGE.version}/../page.py",
    f"/page/{PAGE.version}//etc/passwd",
    "/page/0000000000000000/main.js",
]


@pytest.mark.parametrize("path", WRONG)
def test_nothing_else_is_a_file(app: Starlette, path: str) -> None:
    assert (call(app, path).status, call(app, path).error["code"]) == (404, "not_found")


def test_the_files_need_no_key_and_open_nothing_else(engine: FakeEngine) -> None:
    locked = build_app(engine, ServerSettings(api_key="sesame"))
    assert {call(locked, path).status for path in PAGE.paths} == {200}
    assert {call(locked, path).status for path in WRONG} == {401}


def test_another_content_has_another_version(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("{assets}/main.js")
    (tmp_path / "main.js").write_text("1")
    first = WebPage(tmp_path).version
    (tmp_path / "main.js").write_text("2")
    assert WebPage(tmp_path).version != first


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_small_and_load_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    addresses = set(re.findall(r"(?:\w+:)?//[\w.-]+\.\w+[^\s\"'<>)]*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of a format, never fetched
    assert "data:" not in text.replace('"data:"', "")
    assert not re.search(r"@import|\burl\(|integrity=|crossorigin", text)


def test_no_markup_is_made_from_text() -> None:
    for path in FOLDER.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_nothing_is_inline() -> None:
    text = (FOLDER / INDEX).read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", text)


def test_modules_import_files_that_exist() -> None:
    names = {path.name for path in FILES}
    imported = set()
    for path in FOLDER.glob("*.js"):
        found = re.findall(r'(?:from|import) "\./([\w.-]+)";', path.read_text(encoding="utf-8"))
        assert set(found) <= names
        imported |= set(found)
    scripts = set(re.findall(r"/([\w-]+\.js)", (FOLDER / INDEX).read_text(encoding="utf-8")))
    assert imported | scripts == {name for name in names if name.endswith(".js")}


def test_the_package_has_the_files() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["quire"]
    packed = {path for pattern in patterns for path in (ROOT / "src/quire").glob(pattern)}
    assert set(FILES) <= packed
