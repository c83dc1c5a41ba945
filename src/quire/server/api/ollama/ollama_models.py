"""Ollama's /api/tags, /api/ps, /api/show, /api/pull and /api/version: the models of this server."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import ModelNotFoundError
from quire.server.api.common import route_rules
from quire.server.api.common.model_route import LightReply, LightRoute
from quire.server.http.http_errors import HttpError
from quire.server.http.openapi_entry import ApiRoute, JsonResponse, OpenApiEntry, PostEntry
from quire.server.http.request_body import RequestBody, read_body
from quire.server.model_registry import ModelEntry, ModelRegistry, RegisteredModel

# Of Ollama's API as it is here: clients refuse older versions. 0.14 has /v1/messages.
OLLAMA_VERSION = "0.14.2"
_STARTED = datetime.fromtimestamp(int(time.time()), UTC)
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)


class ModelDetails(msgspec.Struct, kw_only=True):
    """Description of a model; empty where it is not known here, or not loaded."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class TaggedModel(msgspec.Struct, kw_only=True):
    """A model. modified_at: start of the server. digest: made of its name.

    size: bytes of the files with its weights, 0 before it was loaded; of a model in memory those
    that it takes there, size_vram: on a GPU. expires_at, context_length: of a model in memory.
    """

    name: str
    model: str
    modified_at: datetime
    size: int
    digest: str
    details: ModelDetails
    size_vram: int | UnsetType = UNSET
    expires_at: datetime | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class TaggedModels(msgspec.Struct, kw_only=True):
    """A list of models."""

    models: list[TaggedModel]


class OllamaVersion(msgspec.Struct):
    """The version of Ollama whose API this is."""

    version: str


class ShowBody(RequestBody, kw_only=True, dict=True):
    """Body of /api/show. name: what older clients call `model`. verbose: without effect."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class ShownModel(msgspec.Struct, kw_only=True):
    """One model. parameters: sampling params that it has by default, one a line."""

    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: datetime


class OllamaModels:
    """The routes that list models."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    @property
    def routes(self) -> list[ApiRoute]:
        """The routes of all paths."""
        return [
            _route("/api/tags", "The models of this server", TaggedModels, self._tags),
            _route("/api/ps", "The models in memory", TaggedModels, self._loaded),
            _route(
                "/api/version",
                "The version of Ollama whose API this is",
                OllamaVersion,
                self._version,
            ),
        ]

    async def _tags(self, _request: Request) -> Response:
        named = self._models.named_entries()
        return JsonResponse(TaggedModels(models=[self._tagged(*one) for one in named]))

    async def _loaded(self, _request: Request) -> Response:
        found = []
        for name, entry in self._models.named_entries():
            if entry.model is not None and entry.is_usable:
                one, info = self._tagged(name, entry), entry.model.engine.info
                one.size = entry.status.num_bytes or 0
                one.size_vram = one.size if info.device != "cpu" else 0
                one.expires_at, one.context_length = _NEVER, info.limits.max_model_len
                found.append(one)
        return JsonResponse(TaggedModels(models=found))

    async def _version(self, _request: Request) -> Response:
        return JsonResponse(OllamaVersion(OLLAMA_VERSION))

    def _tagged(self, name: str, entry: ModelEntry) -> TaggedModel:
        return TaggedModel(
            name=name,
            model=name,
            modified_at=_STARTED,
            size=0 if entry.model is None else entry.model.engine.info.file_bytes,
            digest=hashlib.sha256(entry.name.encode()).hexdigest(),
            details=_details(entry.model),
        )


def _route(
    path: str,
    summary: str,
    reply: type[msgspec.Struct],
    handler: Callable[[Request], Awaitable[Response]],
) -> ApiRoute:
    text = f"{summary}, in Ollama's format."
    return ApiRoute(handler, OpenApiEntry(path, text, reply=reply))


def _details(model: RegisteredModel | None) -> ModelDetails:
    if model is None:
        return ModelDetails()
    info = model.engine.info
    kind = "gguf" if info.model.endswith(".gguf") else "safetensors"
    level = info.dtype if info.quantization == "none" else info.quantization
    return ModelDetails(
        format=kind,
        family=info.family,
        families=[info.family] if info.family else [],
        parameter_size=_size_text(info.num_parameters),
        quantization_level=level,
    )


def _size_text(num_parameters: int) -> str:
    """A number of parameters as Ollama writes it: 1.2B, 494.03M; empty for 0."""
    if num_parameters >= 10**9:
        return f"{num_parameters / 1e9:.1f}B"
    return f"{num_parameters / 1e6:.2f}M" if num_parameters else ""


def show(data: bytes, models: ModelRegistry) -> LightReply:
    """The reply to a body of /api/show. Raises InvalidRequestError."""
    request = read_body(data, ShowBody)
    if request.verbose:
        request.note_no_effect("verbose has no effect: vocabularies are not shown; use /tokenize")
    model = models.find(request.model or request.name)
    info, tokenizer = model.engine.info, model.engine.tokenizer
    thinks, calls = model.parsers.reasoning is not None, model.parsers.tools is not None
    extra = [name for name, has in (("tools", calls), ("thinking", thinks)) if has]
    shown = ShownModel(
        modelfile=f"FROM {info.model}\n",
        parameters="\n".join(f"{name} {value}" for name, value in info.sampling_defaults.items()),
        template=tokenizer.chat_template_text,
        details=_details(model),
        model_info={
            "general.architecture": "quire",
            "general.basename": model.name,
            "quire.context_length": info.limits.max_model_len,
            "quire.vocab_size": info.limits.vocab_size,
        },
        # without "embedding", by which clients know a model that does nothing else
        capabilities=["completion", *extra],
        modified_at=_STARTED,
    )
    return LightReply(shown, request.no_effect)


class PullBody(RequestBody, kw_only=True, dict=True):
    """Body of /api/pull. name: what older clients call `model`. insecure, stream: no effect."""

    model: str | None = None
    name: str | None = None
    insecure: bool | None = None
    stream: bool | None = None


class PullStatus(msgspec.Struct):
    """The outcome."""

    status: Literal["success"] = "success"


def pull(data: bytes, models: ModelRegistry) -> LightReply:
    """The reply to a body of /api/pull: a model that is served is there. Raises HttpError."""
    request = read_body(data, PullBody)
    name = request.model or request.name
    try:
        models.entry(name)
    except ModelNotFoundError:
        text = f"model: {str(name)[:64]!r} is not served here; fetch it with hf download, and serve"
        raise HttpError(404, f"{text} it", code="model_not_found") from None
    return LightReply(PullStatus(), request.no_effect)


PULL_ROUTE = LightRoute(
    PostEntry(
        "/api/pull",
        "Whether a model is there, in Ollama's format; nothing is downloaded.",
        rules=(route_rules.MODEL,),
        example={},
        body=PullBody,
        reply=PullStatus,
    ),
    pull,
)
SHOW_ROUTE = LightRoute(
    PostEntry(
        "/api/show",
        "One model, in Ollama's format.",
        rules=(route_rules.MODEL,),
        example={},
        body=ShowBody,
        reply=ShownModel,
    ),
    show,
)
