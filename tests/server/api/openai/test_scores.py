"""/v1/score and /v1/rerank against the scripted engine, whose vectors tell what they embed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from asgi_client import Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette


def cosine(first: str, second: str) -> float:
    """The cosine for the fake engine's vectors: first character, length and two constants."""
    vectors = [[ord(text[0]), len(text), 0.1, -1.0] for text in (first, second)]
    a, b = vectors
    norms = math.dist(a, [0] * 4) * math.dist(b, [0] * 4)
    return sum(x * y for x, y in zip(a, b, strict=True)) / norms


def post(app: Starlette, path: str, **fields: Any) -> Reply:
    return call(app, path, fields)


@pytest.fixture(autouse=True)
def unit_vectors(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted engine's vectors with the length 1, as the real engine normalizes them."""
    import struct

    embed = engine.embed

    async def normalized(*args: Any, **options: Any) -> Any:
        output = await embed(*args, **options)
        numbers = struct.unpack("<4f", output.embedding)
        norm = math.dist(numbers, [0] * 4)
        output.embedding = struct.pack("<4f", *(number / norm for number in numbers))
        return output

    monkeypatch.setattr(engine, "embed", normalized)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("names", [("queries", "documents"), ("text_1", "text_2")])
def test_scores(app: Starlette, path: str, names: tuple[str, str]) -> None:
    first, second = names
    reply = post(app, path, **{first: "ab", second: ["x", "yyyyyyy"]}).json()
    assert [(item["index"], item["object"]) for item in reply["data"]] == [
        (0, "score"),
        (1, "score"),
    ]
    expected = [cosine("ab", "x"), cosine("ab", "yyyyyyy")]
    assert [item["score"] for item in reply["data"]] == pytest.approx(expected, abs=1e-6)
    assert reply["usage"] == {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10}
    pairs = post(app, path, **{first: ["ab", "c"], second: ["x", "y"]}).json()["data"]
    expected = [cosine("ab", "x"), cosine("c", "y")]
    assert [item["score"] for item in pairs] == pytest.approx(expected, abs=1e-6)


def test_scores_are_cosines_though_lengths_are_rounded(app: Starlette) -> None:
    """Of equal texts, whose cosine is often computed as slightly above 1."""
    texts = ["a" * count for count in range(1, 60)]
    scores = [
        item["score"]
        for item in post(app, "/v1/score", queries=texts, documents=texts).json()["data"]
    ]
    assert scores == pytest.approx([1.0] * 59)
    assert max(scores) <= 1.0


@pytest.mark.parametrize(
    "path", ["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking"]
)
def test_rerank(app: Starlette, path: str) -> None:
    documents = ["y" * 400, "ab", "b" * 30]
    reply = post(app, path, query="ab", documents=documents, top_n=2).json()
    assert [result["index"] for result in reply["results"]] == [1, 2]
    assert reply["results"][0]["document"] == {"text": "ab"}
    assert reply["results"][0]["relevance_score"] == pytest.approx(1.0)
    bare = post(app, path, query="ab", documents=documents, return_documents=False).json()
    assert [result["document"] for result in bare["results"]] == [None] * 3


@pytest.mark.parametrize("names", [("data_1", "data_2"), ("queries", "items")])
def test_scores_under_vllms_other_names(app: Starlette, names: tuple[str, str]) -> None:
    first, second = names
    reply = post(app, "/v1/score", **{first: "ab", second: ["x"]}).json()
    assert [item["score"] for item in reply["data"]] == pytest.approx([cosine("ab", "x")], abs=1e-6)
    assert post(app, "/v1/score", **{first: "ab", second: [""]}).error["param"] == f"{second}[0]"


def test_fields_of_other_rerank_services(app: Starlette) -> None:
    fields = {"query": "a", "documents": ["b"]}
    taken = {"max_chunks_per_doc": 10, "return_embeddings": False, "raw_scores": True}
    noted = post(app, "/v1/rerank", **fields, **taken).headers["x-quire-no-effect"]
    assert noted.split("; ") == [
        "max_chunks_per_doc has no effect: a document is one text",
        "raw_scores has no effect: scores are cosines",
    ]
    refused = post(app, "/v2/rerank", **fields, max_tokens_per_doc=9).error["message"]
    assert refused.endswith("; send truncate_prompt_tokens")


def test_documents_may_be_objects(app: Starlette) -> None:
    """As clients of Jina and of Cohere's first version send them, with fields of their own."""
    documents: list[Any] = [{"text": "y" * 400}, {"text": "ab", "title": "An"}, "b" * 30]
    texts = ["y" * 400, "ab", "b" * 30]
    usual = post(app, "/v1/rerank", query="ab", documents=texts).json()["results"]
    reply = post(app, "/v1/rerank", query="ab", documents=documents, rank_fields=["text"]).json()
    for name in ("index", "relevance_score"):
        assert [r[name] for r in reply["results"]] == [r[name] for r in usual]
    assert [r["document"] for r in reply["results"]] == [
        {"text": "ab", "title": "An"}, {"text": "b" * 30}, {"text": "y" * 400}
    ]  # fmt: skip


def test_texts_may_be_objects_of_jina_and_vllm(app: Starlette) -> None:
    """vLLM joins the parts of a `content` by line ends."""
    pair: list[Any] = [{"type": "text", "text": "a", "uuid": None}, {"type": "text", "text": "b"}]
    parts = {"content": pair}
    documents: Any = [{"text": "y" * 400}, parts, {"content": "b" * 30, "title": "An"}]
    texts = ["y" * 400, "a\nb", "b" * 30]
    usual = post(app, "/v1/rerank", query="a\nb", documents=texts).json()["results"]
    (titled,) = (r for r in usual if r["index"] == 2)
    titled["document"]["title"] = "An"
    for query in ({"text": "a\nb"}, parts):
        assert post(app, "/v1/rerank", query=query, documents=documents).json()["results"] == usual
        scored = post(app, "/v1/score", queries=query, documents=documents).json()
        assert (
            scored["data"] == post(app, "/v1/score", queries="a\nb", documents=texts).json()["data"]
        )
    for document, shown in (
        (parts, {"text": "a\nb"}),
        ({"text": pair, "content": "c"}, {"text": "a\nb", "content": "c"}),
        ({"text": "", "content": pair, "title": "An"}, {"text": "a\nb", "title": "An"}),
    ):
        one = post(app, "/v1/rerank", query="ab", documents=document).json()["results"]
        assert [r["document"] for r in one] == [shown]


def test_rerank_as_tei_has_it(app: Starlette) -> None:
    documents = ["y" * 400, "ab", "b" * 30]
    usual = post(app, "/rerank", query="ab", documents=documents, top_n=2).json()["results"]
    bare = post(app, "/rerank", query="ab", texts=documents, top_n=2).json()
    assert bare == [{"index": r["index"], "score": r["relevance_score"]} for r in usual]
    shown = post(app, "/rerank", query="ab", texts=documents, return_text=True).json()
    assert [one["text"] for one in shown] == ["ab", "b" * 30, "y" * 400]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/score", {"queries": "a"}, "documents"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"queries": "a", "text_1": "a", "documents": "b"}, "queries"),
        ("/v1/score", {"queries": ["a", "b"], "documents": ["c", "d", "e"]}, "queries"),
        ("/v1/score", {"queries": "", "documents": "b"}, "queries"),
        ("/v1/score", {"queries": "a", "documents": [["b"]]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "texts": ["b"], "documents": ["b"]}, "documents"),
        ("/v1/rerank", {"query": "a", "texts": ["b", "x" * 2000]}, "texts"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b", {"title": "b"}]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": [{"text": ""}]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": [{"text": 1}]}, "documents[0]"),
        ("/v1/rerank", {"query": {"image": "x"}, "documents": ["b"]}, "query"),
        ("/v1/score", {"queries": {"content": []}, "documents": ["b"]}, "queries"),
        (
            "/v1/score",
            {"queries": "a", "documents": [{"content": [{"type": "image_url", "text": "a"}]}]},
            "documents[0]",
        ),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["title"]},
         "rank_fields[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "truncate_prompt_tokens": 0},
         "truncate_prompt_tokens"),
        ("/v1/rerank", {"query": "a", "documents": ["b", "x" * 2000]}, "documents"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "x" * 2000]}, "text_2"),
        ("/v1/score", {"text_1": "x" * 2000, "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
    ],
)  # fmt: skip
def test_refusals(app: Starlette, path: str, fields: dict[str, Any], param: str) -> None:
    reply = post(app, path, **fields)
    assert (reply.status, reply.error["param"]) == (400, param)
