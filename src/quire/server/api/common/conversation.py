"""From a conversation, by whichever API it came, to a job for the engine, and from the engine's
news to the events of its answers. Owns what every chat-like route shares; wording is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from quire.core.request_output import CompletionOutput
from quire.core.sampling_params import SamplingParams, StructuredOutputs
from quire.engine.frontend.prompt_encoding import encode_prompt
from quire.errors import invalid_value
from quire.server.api.common import chat_request
from quire.server.api.common.chat_messages import for_template
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.field_names import SAME, FieldNames
from quire.server.api.common.generation_job import Job, make_job
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.tool_definitions import ToolUse, tool_use
from quire.server.api.common.usage import CompletionTokensDetails, Usage
from quire.server.engine_protocol import TokenizerProtocol
from quire.server.model_registry import RegisteredModel
from quire.server.parsing.choose_parsers import ModelParsers
from quire.server.parsing.output_events import Event, ReasoningDelta, StreamParser
from quire.server.parsing.output_parser import (
    OutputParser,
    ParserConfig,
    PlainParser,
    stop_after_calls,
)
from quire.server.parsing.reasoning_parser import ReasoningTokenCounter
from quire.server.parsing.tool_grammar import NoGrammarError, answer_grammar, tools_of_lines

_NUM_TAIL_TOKENS = 16  # of the prompt, in which a thought may be opened


class Conversation(msgspec.Struct, frozen=True):
    """A job, and how its answers are to be read. hides_thoughts: nobody asked for them."""

    job: Job
    new_parser: Callable[[], StreamParser]
    hides_thoughts: bool = False
    new_counter: Callable[[], ReasoningTokenCounter] | None = None
    _parsers: dict[int, StreamParser] = msgspec.field(default_factory=dict)  # by answer
    _counters: dict[int, ReasoningTokenCounter] = msgspec.field(default_factory=dict)  # likewise

    def read(self, output: CompletionOutput) -> list[Event]:
        """The events that an answer's next part brings. One-shot: the whole answer is the part."""
        parser = self._parser(output.index)
        if self.new_counter is not None:
            self._counters.setdefault(output.index, self.new_counter()).push(output.token_ids)
        events = parser.push(output.text)
        if output.finish_reason is not None:
            events += parser.finish()
        if self.hides_thoughts:
            return [event for event in events if not isinstance(event, ReasoningDelta)]
        return events

    def finish_reason(self, output: CompletionOutput) -> str | None:
        """Why the answer ended, after `read`: the engine's reason, or "tool_calls"."""
        if output.finish_reason == "stop" and self._parser(output.index).called_tools:
            return "tool_calls"
        return output.finish_reason

    def counted(self, usage: Usage) -> Usage:
        """The counts, completed by the thoughts' part of what was read."""
        usage.completion_tokens_details = details = CompletionTokensDetails()
        for counter in self._counters.values():
            details.reasoning_tokens += counter.num_tokens
        return usage

    def _parser(self, index: int) -> StreamParser:
        if index not in self._parsers:
            self._parsers[index] = self.new_parser()
        return self._parsers[index]


def prepare(
    request: ChatRequest,
    model: RegisteredModel,
    *,
    id_prefix: str = "chatcmpl-",
    new_call_id: Callable[[], str] | None = None,
    names: FieldNames = SAME,
) -> Stages[Conversation]:
    """Check, render and encode a conversation for a model, in steps. id_prefix: of the reply's id.

    Other APIs bring their requests into the form of a ChatRequest first. names: theirs.
    new_call_id: makes the ids of tool calls; None: as the model's own format has them.
    Raises InvalidRequestError or ContextLengthError.
    """
    engine, formats = model.engine, model.parsers
    with names:
        use = _checked_use(request, model)
        sampling = chat_request.sampling(request)
        yield
        prompt = _rendered(request, use, model)
        yield
        token_ids = encode_prompt(
            engine.info.limits, engine.tokenizer.encode_prompt, prompt, param="messages"
        )
        yield
        reading = _reading(request, use, formats, token_ids, engine.tokenizer)
        sampling = _with_marks(sampling, reading, engine.tokenizer)
        sampling = names.in_form(_with_grammar(sampling, use, reading, engine.tokenizer))
        field = names.own("messages")
        job = make_job(id_prefix, request, [token_ids], sampling, model.name, prompt_field=field)
    if reading.most_calls is not None and reading.tool_format is not None:
        job = msgspec.structs.replace(job, stop_when=partial(stop_after_calls, reading))
    hides = request.include_reasoning is False
    counter = _counter_maker(reading, engine.tokenizer)
    return Conversation(job, _parser_maker(reading, new_call_id), hides, counter)


def encode(request: ChatRequest, model: RegisteredModel, *, names: FieldNames = SAME) -> list[int]:
    """The token ids of a conversation, however many; nothing else is made of it.

    Raises InvalidRequestError or ContextLengthError.
    """
    with names:
        prompt = _rendered(request, _checked_use(request, model), model)
        return model.engine.tokenizer.encode_prompt(prompt)


def _checked_use(request: ChatRequest, model: RegisteredModel) -> ToolUse:
    chat_request.check(request)
    use = tool_use(request.tools, request.tool_choice)
    _check_tools_fit(use, model.parsers, model.engine.tokenizer)
    return use


def _check_tools_fit(use: ToolUse, formats: ModelParsers, tokenizer: TokenizerProtocol) -> None:
    """Refuse tools of which the model would not hear, or whose calls could not be read."""
    if not use.shown:
        return
    if "tools" not in tokenizer.chat_variables:
        raise invalid_value(
            "tools", "this model's chat template has no place for them; remove them"
        )
    if formats.tools is None:
        fix = "set tool_choice to none, or start the server with --tool-call-parser"
        raise invalid_value("tools", f"how this model writes calls is not known; {fix}")


def _rendered(request: ChatRequest, use: ToolUse, model: RegisteredModel) -> str:
    engine, form = model.engine, model.parsers.tools
    fit_id = form.fit_id if form is not None else str
    num_chars = sum(message.num_chars for message in request.messages)
    engine.info.limits.check_chars(num_chars, "messages")
    return engine.tokenizer.chat_prompt(
        [for_template(message, fit_id) for message in request.messages],
        tools=use.for_template(),
        add_generation_prompt=request.add_generation_prompt is not False,
        **_template_variables(request, engine.tokenizer),
    )


def _template_variables(request: ChatRequest, tokenizer: TokenizerProtocol) -> dict[str, Any]:
    """The caller's variables; an effort goes by the name that the template has for it."""
    variables, effort = request.chat_template_kwargs or {}, request.reasoning_effort
    if effort is None:
        return variables
    if "reasoning_effort" in tokenizer.chat_variables:
        return {"reasoning_effort": effort} | variables
    if "enable_thinking" in tokenizer.chat_variables:
        return {"enable_thinking": effort != "none"} | variables
    raise invalid_value(
        "reasoning_effort", "this model's chat template does not read it; remove it"
    )


def _reading(
    request: ChatRequest,
    use: ToolUse,
    formats: ModelParsers,
    token_ids: list[int],
    tokenizer: TokenizerProtocol,
) -> ParserConfig:
    reasoning = formats.reasoning
    return ParserConfig(
        reasoning=reasoning,
        in_reasoning=reasoning is not None and _ends_with(token_ids, reasoning.begin, tokenizer),
        tool_format=formats.tools if use.allowed else None,
        tools=use.schemas,
        most_calls=1 if request.parallel_tool_calls is False else use.most_calls,
        must_call=use.must_call,
    )


def _ends_with(token_ids: list[int], mark: str, tokenizer: TokenizerProtocol) -> bool:
    """Whether the prompt ends with a mark, but for white space."""
    tail = b"".join(map(tokenizer.token_bytes, token_ids[-_NUM_TAIL_TOKENS:]))
    return tail.rstrip().endswith(mark.encode())


def _with_marks(
    sampling: SamplingParams, reading: ParserConfig, tokenizer: TokenizerProtocol
) -> SamplingParams:
    """The parser reads control tokens that are otherwise left out of the text."""
    ids = [i for mark in reading.marks if (i := tokenizer.control_token_id(mark)) is not None]
    return msgspec.structs.replace(sampling, kept_token_ids=ids) if ids else sampling


def _with_grammar(
    sampling: SamplingParams, use: ToolUse, reading: ParserConfig, tokenizer: TokenizerProtocol
) -> SamplingParams:
    """Force calls and strict arguments; keep thoughts and calls out of the form of the text."""
    form = sampling.structured_outputs
    has_parts = reading.reasoning is not None or reading.tool_format is not None
    if not (use.is_strict or (form is not None and has_parts)):
        return sampling
    field = "tools" if form is None else form.name
    try:
        grammar = answer_grammar(
            msgspec.structs.replace(reading, tools=use.enforced_schemas),
            form=form,
            control_token_id=tokenizer.control_token_id,
        )
    except NoGrammarError as error:
        raise invalid_value(field, str(error)) from None
    places = {tool.function.name: place for place, tool in enumerate(use.shown)}
    fields = [f"tools[{places[tool.function.name]}].function.parameters" for tool in use.allowed]
    lines = {line: fields[tool] for line, tool in tools_of_lines(grammar).items()}
    wish = StructuredOutputs(grammar=grammar, field=field, fields_of_lines=lines)
    return msgspec.structs.replace(sampling, structured_outputs=wish)


def _parser_maker(
    reading: ParserConfig, new_call_id: Callable[[], str] | None
) -> Callable[[], StreamParser]:
    if reading.reasoning is None and reading.tool_format is None:
        return PlainParser
    return partial(OutputParser, reading, new_id=new_call_id)


def _counter_maker(
    reading: ParserConfig, tokenizer: TokenizerProtocol
) -> Callable[[], ReasoningTokenCounter] | None:
    if reading.reasoning is None:
        return None
    token_bytes = tokenizer.token_bytes
    return partial(ReasoningTokenCounter, reading.reasoning, reading.in_reasoning, token_bytes)
