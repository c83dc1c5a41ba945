"""The two request bodies, field by field, and their one conversion to SamplingParams.

Every field here is honoured; what OpenAI or vLLM know besides is listed with the values that ask
for nothing, and refused by name otherwise. A field that is absent or null takes OpenAI's default:
temperature 1, top_p 1, n 1, and max_tokens 16 for completions or the rest of the context for chat.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, cast

import msgspec

from quire.core.sampling_params import SamplingParams
from quire.errors import invalid_value
from quire.server import body, bounds
from quire.server.bounds import Int32, ShortText, TokenCount, TokenId
from quire.server.forms import FormRequest, check_form_names, form_of
from quire.server.tools import ToolChoice, Tools, check_tool_names, is_deeper
from quire.server.turns import Message as Message
from quire.server.turns import check_message, check_message_names

MAX_CHOICES = 1024  # prompts times n in one HTTP request
MAX_MESSAGES = 4096
MAX_TEMPLATE_KWARGS_BYTES = 16 << 10  # as compact JSON
MAX_TEMPLATE_KWARGS_DEPTH = 16  # lists and objects in one another

Prompts = str | list[TokenId | str | list[TokenId]]
_PromptList = msgspec.Meta(min_length=1, max_length=MAX_CHOICES)
_OneOrMore = msgspec.Meta(min_length=1)
PROMPT_FORMS = (  # the same, as far as a decoder cannot tell one list from another
    str,
    Annotated[list[str], _PromptList],
    Annotated[list[TokenId], _OneOrMore],
    Annotated[list[Annotated[list[TokenId], _OneOrMore]], _PromptList],
)


Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]


class StreamOptions(msgspec.Struct, kw_only=True):
    """include_usage: end the stream with one more chunk that has the token counts."""

    include_usage: bool | None = None


class GenerationRequest(FormRequest, kw_only=True):
    """What both routes accept.

    user: accepted, and without any effect on the answer. priority: lower runs first, where the
    server schedules by priority. cache_salt: prefix-cache blocks are shared only with requests of
    the same salt. return_token_ids: also return the ids of prompt and answer. timeout: seconds
    after which the request is given up.
    """

    model: str | None = None
    n: bounds.NumAnswers | None = None
    temperature: bounds.Temperature | None = None
    top_p: bounds.TopP | None = None
    top_k: bounds.TopK | None = None
    min_p: bounds.MinP | None = None
    presence_penalty: bounds.Penalty | None = None
    frequency_penalty: bounds.Penalty | None = None
    repetition_penalty: bounds.RepetitionPenalty | None = None
    logit_bias: bounds.LogitBias | None = None
    seed: bounds.Seed | None = None
    stop: bounds.Word | bounds.StopStrings | None = None
    stop_token_ids: bounds.TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    max_tokens: TokenCount | None = None
    min_tokens: bounds.MinTokens | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: bounds.NumLogprobs | None = None
    bad_words: bounds.BadWords | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: ShortText | None = None
    priority: Int32 | None = None
    cache_salt: ShortText | None = None
    return_token_ids: bool | None = None
    timeout: bounds.Seconds | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of /v1/completions. prompt: one or several texts or lists of token ids.

    max_tokens: 0, with echo, for the prompt alone, such as to score it.
    """

    prompt: msgspec.Raw
    max_tokens: bounds.TokenCountOrNone | None = None
    echo: bool | None = None
    logprobs: bounds.NumLogprobs | None = None


Messages = Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]


class ChatRequest(GenerationRequest, kw_only=True):
    """Body of /v1/chat/completions. chat_template_kwargs: variables for the chat template.

    reasoning_effort: how long the model is to think, where its template has such a variable.
    include_reasoning: whether the answer tells the thoughts. metadata: given back as it is.
    """

    messages: Messages
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: bounds.NumLogprobs | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ShortText | None = None
    include_reasoning: bool | None = None
    metadata: Metadata | None = None


# Arguments of encode_chat, which chat_template_kwargs must not be able to pass a second time.
RESERVED_NAMES = frozenset({"add_generation_prompt", "messages", "self", "tools"})

NO_EFFECT = ("user",)  # fields that are accepted and never read

_ASKS_FOR_NOTHING: body.NeutralValues = {
    "allowed_token_ids": (None,),
    "best_of": (None, 1),
    "detokenize": (None, True),
    "extra_body": (None, {}),
    "guided_decoding_backend": (None,),
    "length_penalty": (None, 1, 1.0),
    "prompt_cache_key": (None,),
    "safety_identifier": (None,),
    "service_tier": (None, "auto", "default"),
    "spaces_between_special_tokens": (None, True),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
}

COMPLETION_UNSUPPORTED: body.NeutralValues = {
    **_ASKS_FOR_NOTHING,
    "add_special_tokens": (None, True),
    "metadata": (None, {}),
    "prompt_embeds": (None,),
    "suffix": (None, ""),
}

# what is done for every request, without a promise of how long
IMPLICIT_CACHE: tuple[Any, ...] = (None, {}, {"mode": "implicit"})

CHAT_UNSUPPORTED: body.NeutralValues = {
    **_ASKS_FOR_NOTHING,
    "add_special_tokens": (None, False),
    "audio": (None,),
    "chat_template": (None,),
    "continue_final_message": (None, False),
    "documents": (None, []),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "prompt_cache_options": IMPLICIT_CACHE,
    "prompt_cache_retention": (None, "in_memory"),
    "store": (None, False),
    "verbosity": (None,),
    "web_search_options": (None,),
}

STREAM_UNSUPPORTED: body.NeutralValues = {"include_obfuscation": (None, False)}

_completion_decoder = msgspec.json.Decoder(CompletionRequest)
_chat_decoder = msgspec.json.Decoder(ChatRequest)
_prompt_decoder: msgspec.json.Decoder[Prompts] = msgspec.json.Decoder(Prompts)
_ids_decoder = msgspec.json.Decoder(Annotated[list[TokenId], _OneOrMore])


def parse_completion(data: bytes) -> CompletionRequest:
    """Read a /v1/completions body. Raises InvalidRequestError."""
    request = body.decode(data, _completion_decoder)
    prompt = bytes(request.prompt)
    # a list of token ids has no names to audit, and may be long
    audited = without(data, prompt) if prompt.startswith(b"[") else data
    _check_request_names(body.read_names(audited), request, COMPLETION_UNSUPPORTED)
    return request


def parse_chat(data: bytes) -> ChatRequest:
    """Read a /v1/chat/completions body. Raises InvalidRequestError."""
    request = body.decode(data, _chat_decoder)
    found = body.read_names(data)
    _check_request_names(found, request, CHAT_UNSUPPORTED)
    for place, message in enumerate(found["messages"]):
        check_message_names(message, f"messages[{place}].")
    check_tool_names(found.get("tools"), found.get("tool_choice"))
    return request


def check_chat(request: ChatRequest) -> None:
    """Refuse what the types of a chat's fields allow, but no template. Raises InvalidRequestError.

    Also for other APIs' requests once they have been brought into this form.
    """
    for place, message in enumerate(request.messages):
        check_message(message, f"messages[{place}].")
    if request.chat_template_kwargs:
        _check_template_kwargs(request.chat_template_kwargs)


def prompts(request: CompletionRequest) -> list[str | list[int]]:
    """Bring the four forms of `prompt` into one: a list of texts or lists of token ids."""
    data = bytes(request.prompt)
    try:  # there may be very many ids: those are gone through once
        return [_ids_decoder.decode(data)]
    except msgspec.DecodeError:
        given = body.decode(data, _prompt_decoder, path="prompt")
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if kinds not in ({str}, {list}):
        forms = "give a text, a list of texts, a list of token ids, or a list of such lists"
        raise invalid_value("prompt", forms)
    return cast(list[str | list[int]], given)


def completion_sampling(request: CompletionRequest) -> SamplingParams:
    """The caller's wishes for /v1/completions. Raises InvalidRequestError."""
    logprobs = request.logprobs
    prompt_logprobs = request.prompt_logprobs
    if request.echo and logprobs is not None:
        prompt_logprobs = max(logprobs, prompt_logprobs or 0)
    max_tokens = 16 if request.max_tokens is None else request.max_tokens
    if max_tokens == 0:
        _check_prompt_alone(request)
        max_tokens = 1  # each request draws a token at the end of its prompt; running.py drops it
    return _sampling(request, max_tokens, logprobs, prompt_logprobs)


def _check_prompt_alone(request: CompletionRequest) -> None:
    field, problem = "max_tokens", "0 leaves nothing to tell without echo; set echo, or give 1"
    if request.echo and request.min_tokens:
        field, problem = "min_tokens", f"{request.min_tokens} is above max_tokens (0); lower it"
    elif request.echo:
        return
    raise invalid_value(field, problem)


def chat_sampling(request: ChatRequest) -> SamplingParams:
    """The caller's wishes for /v1/chat/completions. Raises InvalidRequestError."""
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid_value("top_logprobs", "it needs logprobs; set logprobs to true")
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        problem = "it differs from max_tokens; give one of them"
        raise invalid_value("max_completion_tokens", problem)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    max_tokens = limits.pop() if limits else None
    return _sampling(request, max_tokens, logprobs, request.prompt_logprobs)


def without(data: bytes, part: bytes) -> bytes:
    """`data` with a 0 in the place of `part`; bytes.replace takes long over a long part."""
    beginning = part[:64]
    place = data.index(beginning)
    while not data.startswith(part, place):
        place = data.index(beginning, place + 1)
    return data[:place] + b"0" + data[place + len(part) :]


def _check_template_kwargs(variables: dict[str, Any]) -> None:
    problem, where = None, "chat_template_kwargs"
    if reserved := sorted(RESERVED_NAMES & set(variables)):
        problem, where = "it cannot be set here; remove it", f"{where}.{reserved[0]}"
    elif is_deeper(variables, MAX_TEMPLATE_KWARGS_DEPTH):
        problem = f"nested more than {MAX_TEMPLATE_KWARGS_DEPTH} deep; flatten it"
    elif (size := len(msgspec.json.encode(variables))) > MAX_TEMPLATE_KWARGS_BYTES:
        problem = f"{size} bytes; send at most {MAX_TEMPLATE_KWARGS_BYTES}"
    if problem is not None:
        raise invalid_value("chat_template_kwargs", problem, where=where)


def _check_request_names(
    found: dict[str, Any], request: GenerationRequest, unsupported: body.NeutralValues
) -> None:
    body.check_names(found, body.names_of(type(request)), unsupported)
    check_form_names(found)
    if request.stream_options is not None:
        options = found["stream_options"]
        known = StreamOptions.__struct_fields__
        body.check_names(options, known, STREAM_UNSUPPORTED, "stream_options.")
        if not request.stream:
            raise invalid_value("stream_options", "it needs a stream; set stream to true")
    if request.stream and request.prompt_logprobs is not None:
        raise invalid_value("prompt_logprobs", "not sent in a stream; set stream to false")


# fields that mean the same in a request and in SamplingParams
_SAME = tuple(
    name
    for name in GenerationRequest.__struct_fields__
    if name in SamplingParams.__struct_fields__
    and name not in ("stop", "max_tokens", "prompt_logprobs", "structured_outputs")
)


_WISHES = (*_SAME, "stop", *FormRequest.__struct_fields__)
_wishes_of = attrgetter(*_WISHES)


def _sampling(
    request: GenerationRequest,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Checked once for all requests with the same wishes: clients seldom change them."""
    wishes = _wishes_of(request)
    try:
        return _known_sampling(wishes, max_tokens, logprobs, prompt_logprobs)
    except TypeError:  # lists and forms cannot be looked up
        return _checked_sampling(wishes, max_tokens, logprobs, prompt_logprobs)


def _checked_sampling(
    wishes: tuple[Any, ...],
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    request = GenerationRequest(**dict(zip(_WISHES, wishes, strict=True)))
    given = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    stop = request.stop
    return SamplingParams(
        **given,
        stop=[stop] if isinstance(stop, str) else stop or [],
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured_outputs=form_of(request),
    )


_known_sampling = lru_cache(256)(_checked_sampling)
