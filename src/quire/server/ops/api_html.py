"""An OpenAPI document as one HTML page, without scripts.

Every text of the document is escaped; every reference becomes a link to its schema on the page.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]

_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "above {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
    "pattern": "pattern {}",
}

_PAGE = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <title>API · Quire</title>
    <link rel="icon" href="{assets}/icon.svg" type="image/svg+xml">
    <link rel="stylesheet" href="{assets}/colours.css">
    <link rel="stylesheet" href="{assets}/base.css">
    <link rel="stylesheet" href="{assets}/api.css">
  </head>
  <body>
    <header class="bar">
      <a class="brand" href="./#chat" aria-label="Quire, playground">
        <img src="{assets}/icon.svg" alt="" width="28" height="28"><span>Quire</span>
      </a>
      <nav class="views" aria-label="Views">
        <a href="./#chat">Playground</a>
        <a href="./#engine">Engine</a>
        <a href="docs" aria-current="page">API</a>
      </nav>
    </header>
    <main class="api">
      <nav class="contents" aria-label="Paths">{contents}</nav>
      <div class="paths">
        <h1>API</h1>
        <p>{about} Version {version}; also as <a href="openapi.json">openapi.json</a>.</p>
        {operations}
        <h2>Types</h2>
        {schemas}
      </div>
    </main>
  </body>
</html>
"""


def api_html(document: Mapping[str, Any], assets: str) -> str:
    """The page. assets: the folder of the style sheets, relative to it."""
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    components = document["components"]
    schemas = components["schemas"]
    return _PAGE.format(
        assets=assets,
        version=escape(document["info"]["version"]),
        about=_text(document["info"]["description"]),
        contents=_join(_entry(name, operation) for name, operation in operations),
        operations=_join(_operation(n, op, components["responses"]) for n, op in operations),
        schemas=_join(_component(name, schema) for name, schema in schemas.items()),
    )


def _entry(name: str, operation: Schema) -> str:
    text = escape(name).replace("/", "<wbr>/")  # where a long path may break
    return f'<a href="#{operation["operationId"]}">{text}</a>'


def _operation(name: str, operation: Schema, responses: Schema) -> str:
    answer, is_open = operation["responses"]["200"]["content"], operation.get("security") == []
    parts = [
        f"<h2>{escape(name)}</h2>",
        f"<p>{_text(operation['summary'])}{' It needs no key.' if is_open else ''}</p>",
        _rules(operation.get("description", "")),
        _parameters(operation.get("parameters", ())),
        _body(operation),
        f"<p>Answer: {_join(map(_media, answer.items()), '; ')}.</p>",
        _failures(operation["responses"], responses),
    ]
    return f'<section id="{operation["operationId"]}">{_join(parts)}</section>'


def _rules(description: str) -> str:
    """A description's list as a list."""
    intro, *rules = description.split("\n- ")
    items = _join(f"<li>{_text(rule)}</li>" for rule in rules)
    return f"<p>{_text(intro)}</p><ul>{items}</ul>" if rules else ""


def _parameters(parameters: Iterable[Schema]) -> str:
    rows = [
        _row(f"{p['name']} ({p['in']})", p["schema"], p.get("description", ""), p.get("required"))
        for p in parameters
    ]
    return _table(rows)


def _body(operation: Schema) -> str:
    if "requestBody" not in operation:
        return ""
    content = operation["requestBody"]["content"]["application/json"]
    example = json.dumps(content["example"], indent=2, ensure_ascii=False)
    return (
        f"<p>Body: {_type(content['schema'])}, such as</p>"
        f'<pre tabindex="0"><code>{escape(example)}</code></pre>'
    )


def _media(content: tuple[str, Schema]) -> str:
    name, found = content
    kinds = _join(dict.fromkeys(map(_link, _refs(found["schema"]))), ", ")
    return f"<code>{escape(name)}</code>{' of ' if kinds else ''}{kinds}"


def _failures(statuses: Schema, responses: Schema) -> str:
    rows = []
    for status, found in statuses.items():
        if "$ref" in found:
            failure = responses[_name(found["$ref"])]
            kind = _join(map(_link, _refs(failure["content"])), ", ")
            rows.append(_cells(escape(status), kind, _text(failure["description"])))
    return f"<details><summary>Errors</summary>{_table(rows)}</details>" if rows else ""


def _component(name: str, schema: Schema) -> str:
    required = set(schema.get("required", ()))
    rows = [
        _row(field, kind, kind.get("description", ""), field in required)
        for field, kind in schema.get("properties", {}).items()
    ]
    about = f"<p>{_text(schema.get('description', ''))}</p>"
    body = _table(rows) if rows else f"<p>{_type(schema)}</p>"
    return f'<section id="{_anchor(name)}"><h3>{escape(_short(name))}</h3>{about}{body}</section>'


def _row(name: str, schema: Schema, about: str, required: bool | None) -> str:
    notes = [_text(about), "needed" if required else "", _default(schema)]
    return _cells(f"<code>{escape(name)}</code>", _type(schema), _join(filter(None, notes), "; "))


def _default(schema: Schema) -> str:
    if schema.get("default") is None:
        return ""
    return f"default <code>{escape(json.dumps(schema['default']))}</code>"


def _cells(*cells: str) -> str:
    return f"<tr>{_join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _table(rows: Iterable[str]) -> str:
    body = _join(rows)
    return f'<div class="scroll"><table>{body}</table></div>' if body else ""


def _type(schema: Schema) -> str:
    """A description of the values that a schema allows. Null is left out: it means the default."""
    if "$ref" in schema:
        return _link(schema["$ref"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _join(
                dict.fromkeys(_type(s) for s in schema[key] if s != {"type": "null"}), " or "
            )
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return _join((f"<code>{escape(json.dumps(value))}</code>" for value in values), ", ")
    bounds = [
        text.format(f"<code>{escape(str(schema[key]))}</code>")
        for key, text in _BOUNDS.items()
        if key in schema
    ]
    return _join([_plain_type(schema), *bounds], ", ")


def _plain_type(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"list of {_join(map(_type, schema['prefixItems']), ', then ')}"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if schema.get("additionalProperties"):
        inner = schema["additionalProperties"]
        return f"object of {_type(inner)}" if isinstance(inner, Mapping) else "object"
    kinds = schema.get("type", "any")
    return escape(kinds if isinstance(kinds, str) else " or ".join(kinds))


def _refs(schema: Any) -> Iterator[str]:
    """All references inside, in their order."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield schema["$ref"]
        for key, value in schema.items():
            if key != "discriminator":
                yield from _refs(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _refs(value)


def _link(ref: str) -> str:
    name = _name(ref)
    return f'<a href="#{_anchor(name)}">{escape(_short(name))}</a>'


def _name(ref: str) -> str:
    return ref.rpartition("/")[2]


def _short(name: str) -> str:
    """A schema's name without its module, which distinguishes schemas of one name."""
    return name.rpartition(".")[2]


def _anchor(name: str) -> str:
    return "type-" + re.sub(r"[^\w.-]", "-", name)


def _text(text: str) -> str:
    """A text with its `code` marked."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(inspect.cleandoc(text)))


def _join(parts: Iterable[str], between: str = "") -> str:
    return between.join(parts)
