"""From a body with PoolingFields to an EmbeddingJob, the texts of one HTTP request to embed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Annotated, overload

import msgspec

from quire.core.pooling_params import PoolingParams
from quire.core.request import DEFAULT_SAMPLING
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.input_processor import errors_name_field
from quire.engine.frontend.prompt_encoding import Prompt, token_ids_of
from quire.server.api.common.embedding_runner import EmbeddingJob, EncodeVectors
from quire.server.api.common.generation_job import Job
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.prompt_types import EncodingFields
from quire.server.http import field_bounds
from quire.server.http.field_bounds import Int32, ShortText
from quire.server.http.request_record import new_id
from quire.server.model_registry import RegisteredModel

MAX_INPUTS = 2048  # in one request, as OpenAI has it

Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Annotated[list[Text], msgspec.Meta(min_length=1, max_length=MAX_INPUTS)]
Dimensions = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]  # numbers of a vector


class PoolingFields(EncodingFields, kw_only=True, dict=True):
    """The fields of all requests that embed texts; as for completions. user: without any effect."""

    model: str | None = None
    user: ShortText | None = None
    priority: Int32 | None = None
    cache_salt: ShortText | None = None
    timeout: field_bounds.Seconds | None = None


class PackedPrompts(Sequence[list[int]]):
    """Token ids of many prompts, in 4 bytes each: as lists they would take ten times as much."""

    def __init__(self) -> None:
        self._packed: list[array[int]] = []

    def append(self, token_ids: Sequence[int]) -> None:
        """Add a prompt."""
        self._packed.append(array("I", token_ids))

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...

    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        found = self._packed[index]
        return [each.tolist() for each in found] if isinstance(found, list) else found.tolist()


def make_embedding_job(
    id_prefix: str,
    model: RegisteredModel,
    request: PoolingFields,
    inputs: Sequence[Prompt],
    pooling: PoolingParams,
    encode: EncodeVectors,
    fields: Sequence[tuple[str, int]] = (),
) -> Stages[EmbeddingJob]:
    """The job of a request whose inputs are embedded, in stages. Raises InvalidRequestError.

    fields: names of those that the inputs are from, in order, with the number of each one's inputs;
    by default all are from `input`.
    """
    named = fields or [("input", len(inputs))]
    prompts = yield from _token_ids(inputs, named, request, pooling, model.engine)
    job = Job(
        reply_id=f"{id_prefix}-{new_id()}",
        model=model.name,
        prompts=prompts,
        sampling=DEFAULT_SAMPLING,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        timeout=request.timeout,
        no_effect=request.no_effect,
    )
    return EmbeddingJob(job, pooling, encode)


def _token_ids(
    inputs: Sequence[Prompt],
    fields: Sequence[tuple[str, int]],
    request: PoolingFields,
    pooling: PoolingParams,
    engine: AsyncEngine,
) -> Stages[PackedPrompts]:
    """Token ids of all inputs, checked before any of them runs; each is a stage."""
    limits, found = engine.info.limits, PackedPrompts()
    encoding = request.encoding
    names = [(name, index, count) for name, count in fields for index in range(count)]
    for given, name in zip(inputs, names, strict=True):
        with errors_name_field(*name):
            ids = token_ids_of(given, engine.tokenizer, limits, encoding)
            limits.check_embedding(ids, pooling)
            found.append(ids)
        yield
    return found
