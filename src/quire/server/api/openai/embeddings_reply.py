"""Replies of /v1/embeddings and /pooling: vectors as numbers, as base64, or as plain bytes."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import msgspec

from quire.server.api.common.embedding_runner import EmbeddedInput, EncodedReply
from quire.server.api.common.generation_job import Job

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
VectorDtype = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
ByteOrder = Literal["native", "little", "big"]

MAX_POSITIONS = 64  # of vectors in a header: 8 KiB, beyond which many clients fail, hold as many

BYTES_TYPE = "application/octet-stream"


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of one input: numbers, or their bytes as base64."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class PoolingItem(msgspec.Struct, kw_only=True):
    """A vector, or its Base64 text, as /pooling has it. index: of its text."""

    object: str = "pooling"
    index: int
    data: list[float] | str


class EmbeddingUsage(msgspec.Struct):
    """Token counts of one request; no token is generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0

    @classmethod
    def of(cls, outputs: Sequence[EmbeddedInput]) -> EmbeddingUsage:
        """The counts of all prompts of a request."""
        count = sum(output.num_tokens for output in outputs)
        return cls(prompt_tokens=count, total_tokens=count)


class EmbeddingReply(msgspec.Struct, kw_only=True):
    """The reply: one vector for each input, in order. created: Unix seconds."""

    id: str
    object: str = "list"
    created: int
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class PoolingReply(EmbeddingReply, kw_only=True):
    """The reply of /pooling, the same but for the vectors."""

    data: list[PoolingItem]  # type: ignore[assignment]


class VectorBytes(msgspec.Struct, kw_only=True):
    """Position of a vector in a reply that consists of bytes."""

    index: int
    embed_dtype: VectorDtype
    endianness: ByteOrder
    start: int
    end: int
    shape: tuple[int]


class BytesMetadata(msgspec.Struct, kw_only=True):
    """The header `metadata` of a reply that consists of bytes."""

    id: str
    created: int
    model: str
    data: list[VectorBytes]
    usage: EmbeddingUsage


class VectorFormat(msgspec.Struct, frozen=True):
    """Encoding of a request's vectors. item: the struct of one vector in JSON."""

    encoding: EncodingFormat = "float"
    dtype: VectorDtype = "float32"
    order: ByteOrder = "native"
    item: type[Embedding] | type[PoolingItem] = Embedding

    def bytes_of(self, data: bytes) -> bytes:
        """A vector in its data type and byte order. data: float32, little-endian."""
        if self.dtype == "float32" and self.order != "big" and sys.byteorder == "little":
            return data
        # needs NumPy, which an API process otherwise does without
        from quire.server.api.openai.vector_bytes import vector_bytes

        return vector_bytes(data, self.dtype, self.order)


_encoder = msgspec.json.Encoder()


def encoded(
    vector_format: VectorFormat, job: Job, outputs: Sequence[EmbeddedInput]
) -> EncodedReply:
    """The reply with all vectors."""
    if vector_format.encoding in ("float", "base64"):
        return EncodedReply(_json(job, vector_format, outputs))
    vectors = [vector_format.bytes_of(output.vector) for output in outputs]
    if vector_format.encoding == "bytes_only":
        return EncodedReply(b"".join(vectors), media_type=BYTES_TYPE)
    metadata = BytesMetadata(
        id=job.reply_id,
        created=job.created,
        model=job.model,
        data=list(_positions(vector_format, vectors, outputs)),
        usage=EmbeddingUsage.of(outputs),
    )
    # in ASCII, as a header has to be
    in_header = json.dumps(msgspec.to_builtins(metadata), separators=(",", ":"))
    return EncodedReply(b"".join(vectors), {"metadata": in_header}, BYTES_TYPE)


def _json(job: Job, vector_format: VectorFormat, outputs: Sequence[EmbeddedInput]) -> bytes:
    """The reply as JSON, encoded vector by vector: Python floats take more memory than text."""
    written = [
        msgspec.Raw(_encoder.encode(_item(vector_format, index, output)))
        for index, output in enumerate(outputs)
    ]
    reply = PoolingReply if vector_format.item is PoolingItem else EmbeddingReply
    return _encoder.encode(
        reply(
            id=job.reply_id,
            created=job.created,
            data=cast(Any, written),
            model=job.model,
            usage=EmbeddingUsage.of(outputs),
        )
    )


def _item(
    vector_format: VectorFormat, index: int, output: EmbeddedInput
) -> Embedding | PoolingItem:
    vector: list[float] | str
    if vector_format.encoding == "base64":
        vector = base64.b64encode(vector_format.bytes_of(output.vector)).decode()
    else:
        vector = output.numbers
    if vector_format.item is PoolingItem:
        return PoolingItem(index=index, data=vector)
    return Embedding(index=index, embedding=vector)


def _positions(
    vector_format: VectorFormat, vectors: Sequence[bytes], outputs: Sequence[EmbeddedInput]
) -> Iterator[VectorBytes]:
    start = 0
    for index, (vector, output) in enumerate(zip(vectors, outputs, strict=True)):
        end = start + len(vector)
        yield VectorBytes(
            index=index,
            embed_dtype=vector_format.dtype,
            endianness=vector_format.order,
            start=start,
            end=end,
            shape=(len(output.vector) // 4,),
        )
        start = end
