"""/v1/score and /v1/rerank: how alike texts are, by the cosine of their embeddings' angle.

vLLM's and Jina's formats. Each text is embedded once, in the batches of all other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from operator import mul
from typing import Annotated, Literal

import msgspec

from quire.core.request_output import Score
from quire.errors import invalid_value, one_of_two
from quire.server.api.common import route_rules
from quire.server.api.common.embedding_job import (
    MAX_INPUTS,
    PoolingFields,
    Text,
    Texts,
    make_embedding_job,
)
from quire.server.api.common.embedding_runner import (
    EmbeddedInput,
    EmbeddingJob,
    EncodedReply,
    answer_embedding,
)
from quire.server.api.common.generation_job import Job
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.model_route import GenerationRoute
from quire.server.api.common.prompt_types import ContentText
from quire.server.api.openai.embeddings_reply import EmbeddingUsage
from quire.server.http.openapi_entry import PostEntry
from quire.server.http.request_body import read_body
from quire.server.model_registry import ModelRegistry, RegisteredModel

_NULL = {"type": "null"}
_WITH_TEXT = {"anyOf": [{"required": [name]} for name in ("text", "content")]}
Document = Annotated[dict[str, str | list[ContentText]], msgspec.Meta(extra_json_schema=_WITH_TEXT)]
"""An object with its text, as Jina's and Cohere's clients send it, or with its parts, as vLLM's.

Other fields are its client's own, which are not read and given back.
"""
Input = Text | Document
Inputs = Input | Annotated[list[Input], msgspec.Meta(min_length=1, max_length=MAX_INPUTS)]


class ScoreRequest(PoolingFields, kw_only=True, dict=True):
    """Body of /v1/score: queries and documents, or under their older names text_1 and text_2."""

    queries: Inputs | None = None
    documents: Inputs | None = None
    text_1: Inputs | None = None
    text_2: Inputs | None = None


class RerankRequest(PoolingFields, kw_only=True, dict=True):
    """Body of /v1/rerank. top_n: number of results; 0: all. return_documents: with texts.

    rank_fields: Cohere's, the fields of documents that count, which is the text alone. texts: the
    documents under TEI's name, whose reply is a list; return_text: with texts.
    """

    variants = tuple(
        {"required": [name], "properties": {name: {"not": _NULL}, other: _NULL}}
        for name, other in (("documents", "texts"), ("texts", "documents"))
    )
    query: Input
    documents: Inputs | None = None
    rank_fields: list[Literal["text"]] | None = None
    texts: Texts | None = None
    top_n: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None


class ScoreItem(msgspec.Struct, kw_only=True):
    """The score of one pair."""

    index: int
    object: str = "score"
    score: float


class ScoreReply(msgspec.Struct, kw_only=True):
    """The scores of all pairs, in order."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ScoreItem]
    usage: EmbeddingUsage


class RerankResult(msgspec.Struct, kw_only=True):
    """One document. index: its place in the request."""

    index: int
    document: Document | None
    relevance_score: float


class RerankReply(msgspec.Struct, kw_only=True):
    """The documents, the most alike first."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RerankResult]


class TextScore(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One document in TEI's reply."""

    index: int
    score: float
    text: str | None = None


def prepare_score(data: bytes, models: ModelRegistry) -> Stages[EmbeddingJob]:
    """Decode a body of /v1/score and check all of its texts. Raises InvalidRequestError."""
    request = read_body(data, ScoreRequest)
    query_field, queries = _one_of(request, "queries", "text_1")
    names = ("text_2", "documents") if query_field == "text_1" else ("documents", "text_2")
    field, documents = _one_of(request, *names)
    if len(queries) not in (1, len(documents)):
        problem = f"must be 1 text or as many as {field} ({len(documents)}), not {len(queries)}"
        raise invalid_value(query_field, problem)
    model = models.find(request.model)
    yield
    return (yield from _job("score", model, request, {query_field: queries, field: documents}))


def prepare_rerank(data: bytes, models: ModelRegistry) -> Stages[EmbeddingJob]:
    """Decode a body of /v1/rerank and check all of its texts. Raises InvalidRequestError."""
    request = read_body(data, RerankRequest)
    field, documents = _one_of(request, "documents", "texts")
    for name, needed in (("return_text", "texts"), ("return_documents", "documents")):
        if getattr(request, name) and field != needed:
            request.note_no_effect(f"{name} has no effect: it goes with {needed}")
    model = models.find(request.model)
    yield
    texts = {"query": [_text(request.query, "query")], field: documents}
    return (yield from _job("rerank", model, request, texts))


def _one_of(request: PoolingFields, name: str, other: str) -> tuple[str, list[str]]:
    """The field that was given, and its texts."""
    given = [(n, texts) for n in (name, other) if (texts := getattr(request, n)) is not None]
    if len(given) != 1:
        raise one_of_two(name, other, is_missing=not given)
    field, found = given[0]
    if not isinstance(found, list):
        return field, [_text(found, field)]
    return field, [_text(each, f"{field}[{index}]") for index, each in enumerate(found)]


def _text(given: Input, where: str) -> str:
    """The text of an input; parts are joined by line ends. where: its place in the body."""
    if isinstance(given, str):
        return given
    found = given.get("text") or given.get("content") or ""
    if text := found if isinstance(found, str) else "\n".join(part.text for part in found):
        return text
    problem = "it has no text; send a text, or an object with its text as text"
    raise invalid_value(where, problem)


def _job(
    prefix: str,
    model: RegisteredModel,
    request: PoolingFields,
    texts: dict[str, list[str]],
) -> Stages[EmbeddingJob]:
    """The job of a request, in stages. texts: by field, the queries first."""
    (query_field, queries), (field, documents) = texts.items()
    pooling = model.engine.info.pooling.changed(normalize=True)
    fields = [(query_field, len(queries)), (field, len(documents))]
    inputs, encode = [*queries, *documents], partial(_encoded, request, len(queries))
    return make_embedding_job(prefix, model, request, inputs, pooling, encode, fields)


def _encoded(
    request: PoolingFields, num_queries: int, job: Job, outputs: Sequence[EmbeddedInput]
) -> EncodedReply:
    """The reply with the scores. outputs: of the queries, then of the documents."""
    scores, usage = _cosines(outputs, num_queries), EmbeddingUsage.of(outputs)
    if isinstance(request, RerankRequest):
        return EncodedReply(msgspec.json.encode(_rerank_reply(request, job, scores, usage)))
    data = [ScoreItem(index=index, score=score) for index, score in enumerate(scores)]
    reply = ScoreReply(
        id=job.reply_id, created=job.created, model=job.model, data=data, usage=usage
    )
    return EncodedReply(msgspec.json.encode(reply))


def _cosines(outputs: Sequence[EmbeddedInput], num_queries: int) -> list[float]:
    """The cosine of each document's vector and its query's; vectors have the length 1."""
    vectors = [memoryview(output.vector).cast("f") for output in outputs]
    queries, documents = vectors[:num_queries], vectors[num_queries:]
    pairs = zip(queries if len(queries) > 1 else repeat(queries[0]), documents, strict=False)
    return [Score.of(sum(map(mul, query, document))).score for query, document in pairs]


def _rerank_reply(
    asked: RerankRequest, job: Job, scores: list[float], usage: EmbeddingUsage
) -> RerankReply | list[TextScore]:
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n or None]
    if asked.documents is None:
        texts = asked.texts if asked.return_text else None
        return [
            TextScore(index=index, score=scores[index], text=texts[index] if texts else None)
            for index in order
        ]
    documents = asked.documents if isinstance(asked.documents, list) else [asked.documents]
    results = [
        RerankResult(
            index=index,
            document=None if asked.return_documents is False else _shown(documents[index]),
            relevance_score=scores[index],
        )
        for index in order
    ]
    return RerankReply(id=job.reply_id, model=job.model, usage=usage, results=results)


def _shown(document: Input) -> Document:
    """A document in the reply, whose `text` is what was read; its other fields stay."""
    text = _text(document, "documents")
    if isinstance(document, str):
        return {"text": text}
    is_read = "text" if document.get("text") else "content"
    return {name: given for name, given in document.items() if name != is_read} | {"text": text}


_RULES = (
    route_rules.MODEL,
    route_rules.PRIORITY,
    "An object has its text, which is not empty, as `text`, or as text or text parts in `content`.",
    "Each text has at least one token and fits the model's context and the KV cache.",
)


def _score_route(path: str) -> GenerationRoute[EmbeddingJob]:
    entry = PostEntry(
        path,
        "How alike the texts of each pair are.",
        rules=(
            *_RULES,
            "`queries` (or `text_1`) has one text, or as many as `documents` (or `text_2`).",
        ),
        example={"queries": "red shoes", "documents": ["crimson boots", "a blue bag"]},
        body=ScoreRequest,
        reply=ScoreReply,
    )
    return GenerationRoute(entry, prepare_score, answer_embedding)


def _rerank_route(path: str) -> GenerationRoute[EmbeddingJob]:
    entry = PostEntry(
        path,
        "Documents by how alike they are to a query.",
        rules=(
            *_RULES,
            "With `texts` for `documents` the reply is TEI's list of indices and scores.",
        ),
        example={"query": "red shoes", "documents": ["crimson boots", "a blue bag"], "top_n": 1},
        body=RerankRequest,
        reply=RerankReply,
        items=TextScore,
    )
    return GenerationRoute(entry, prepare_rerank, answer_embedding)


# each under the paths that clients of vLLM, Jina, Cohere and llama.cpp use
ROUTES = (
    *map(_score_route, ("/v1/score", "/score")),
    *map(_rerank_route, ("/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking")),
)
