"""Headers and queries that clients write wrongly: no GET fails by them, whoever parses them."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quire.server.app import build_app
from quire.server.http.openapi_entry import OpenApiEntry
from quire.server.ops.openapi import entries_of
from quire.server.settings import ServerSettings

PUBLIC = build_app(FakeEngine(), ServerSettings(allowed_origins="localhost"))
APPS = {"public": PUBLIC, "admin": PUBLIC.state.admin}
GETS = [
    pytest.param(side, entry, id=entry.path)
    for side, app in APPS.items()
    for entry in entries_of(app.routes)
    if entry.method == "get"
]
NAMES = st.sampled_from(
    ["accept", "anthropic-version", "authorization", "content-length", "content-type",
     "endpoint-load-metrics-format", "host", "if-none-match", "origin", "range", "traceparent",
     "x-request-id", "x-request-timeout"]
)  # fmt: skip
PIECES = st.sampled_from(
    ["application/openmetrics-text", "text/plain", "*/*", ";", "=", ",", "version=", "escaping=",
     "q=", "1.0", "0.0.4", "a.b", "-", "00-", 'W/"', '"', " ", "bytes=0-", "http://localhost",
     "[::1", "nan", "1e999", "é"]
)  # fmt: skip
VALUES = st.lists(PIECES, max_size=6).map("".join)
QUERIES = st.dictionaries(
    st.sampled_from(["model", "limit", "after", "after_id", "before_id", "order", "lifecycle[]"]),
    st.one_of(VALUES, st.text(max_size=4)),
    max_size=2,
)


@pytest.mark.parametrize(("side", "entry"), GETS)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(headers=st.dictionaries(NAMES, VALUES, max_size=3), query=QUERIES)
@example(headers={"accept": "application/openmetrics-text;version=a.b"}, query={})
def test_no_header_or_query_makes_a_get_fail(
    side: str, entry: OpenApiEntry, headers: dict[str, str], query: dict[str, str]
) -> None:
    given_query = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    reply = call(APPS[side], entry.path, headers=headers, query=given_query)
    assert reply.status < 500 or reply.error["code"] == "model_not_loaded", reply.body
