"""Conversation: from a chat request to a job for the engine, and from its outputs to events.

Owns what all chat-like APIs share: rendering, tool and reasoning parsing, grammars. Each API
formats the events itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from quire.core.request_output import CompletionOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.prompt_encoding import counting, token_ids_of
from quire.errors import invalid_value
from quire.server.api.common import chat_request
from quire.server.api.common.chat_messages import echoed_text, for_template
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.generation_job import Job, make_job
from quire.server.api.common.generation_request import take_defaults
from quire.server.api.common.logprob_formats import ChatLogprobs, chat_logprobs, num_shown
from quire.server.api.common.merged_messages import render_accepted
from quire.server.api.common.micro_batch import Stages
from quire.server.api.common.tool_definitions import ToolUse, tool_use
from quire.server.api.common.usage import CompletionTokensDetails, Usage
from quire.server.http.field_names import SAME, FieldNames
from quire.server.model_registry import RegisteredModel
from quire.server.parsing.answer_sampling import reasoning_config, with_grammar, with_mark_tokens
from quire.server.parsing.output_events import Event, ReasoningDelta
from quire.server.parsing.output_parser import (
    OutputParser,
    ParserConfig,
    PlainParser,
    StreamParser,
    stop_after_calls,
)
from quire.server.parsing.reasoning_parser import ReasoningTokenCounter, with_reasoning_marks
from quire.server.parsing.template_variables import requested_variables
from quire.server.parsing.tool_parsers import ModelParsers
from quire.tokenizer.conversation_input import tools_not_read
from quire.tokenizer.tokenizer import Tokenizer

_PLAIN = ParserConfig()


class Conversation(msgspec.Struct, frozen=True):
    """A job and the parsers of its answers. hides_reasoning: reasoning is not returned.

    echoed: the text that the request wants in front of each answer.
    """

    job: Job
    new_parser: Callable[[], StreamParser]
    hides_reasoning: bool = False
    echoed: str = ""
    new_counter: Callable[[], ReasoningTokenCounter] | None = None
    _parsers: dict[int, StreamParser] = msgspec.field(default_factory=dict)  # by answer
    _counters: dict[int, ReasoningTokenCounter] = msgspec.field(default_factory=dict)  # likewise

    def read(self, output: CompletionOutput) -> list[Event]:
        """The events of an answer's next output; without streaming, that is the complete answer."""
        parser = self._parser(output.index)
        if self.new_counter is not None:
            self._counters.setdefault(output.index, self.new_counter()).push(output.token_ids)
        events = parser.push(output.text)
        if output.finish_reason is not None:
            events += parser.finish()
        if self.hides_reasoning:
            return [event for event in events if not isinstance(event, ReasoningDelta)]
        return events

    def finish_reason(self, output: CompletionOutput) -> str | None:
        """Why the answer ended, after `read`: the engine's reason, or "tool_calls"."""
        if output.finish_reason == "stop" and self._parser(output.index).called_tools:
            return "tool_calls"
        return output.finish_reason

    def logprobs(self, output: CompletionOutput, tokenizer: Tokenizer) -> ChatLogprobs | None:
        """Log-probabilities of an answer's next output; None if the request asks for none."""
        if (count := num_shown(self.job.sampling)) is None:
            return None
        positions, as_ids = output.logprobs or [], self.job.spells_token_ids
        return chat_logprobs(positions, output.token_ids, count, tokenizer, as_ids=as_ids)

    @property
    def num_reasoning_tokens(self) -> int:
        """Reasoning tokens of all answers so far."""
        return sum([counter.num_tokens for counter in self._counters.values()])

    def _parser(self, index: int) -> StreamParser:
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._parsers[index] = self.new_parser()
        return parser


def counted(usage: Usage, *conversations: Conversation) -> Usage:
    """The usage, completed by the reasoning tokens that they have counted so far."""
    num_tokens = sum([each.num_reasoning_tokens for each in conversations])
    usage.completion_tokens_details = CompletionTokensDetails(num_tokens)
    return usage


def prepare(
    request: ChatRequest,
    model: RegisteredModel,
    *,
    id_prefix: str = "chatcmpl-",
    new_call_id: Callable[[], str] | None = None,
    names: FieldNames = SAME,
    cuts_to_context: bool = False,
) -> Stages[Conversation]:
    """Check, render and encode a conversation for a model, in stages (micro_batch.py).

    Other APIs convert their requests to a ChatRequest first. id_prefix: of the reply's id. names:
    the API's field names. new_call_id: makes ids of tool calls; None: the tool parser's own.
    cuts_to_context: answers end with the context where max_tokens would not.
    Raises InvalidRequestError or ContextLengthError.
    """
    engine, parsers = model.engine, model.parsers
    names = names.joined(request.sent_as)
    with names:
        use = _checked_use(request, model)
        _check_parser(use, model)
        is_default = take_defaults(request, model.request_defaults)
        cut = is_default or cuts_to_context or request.is_cut_to_context
        sampling = chat_request.sampling(request)
        yield
        prompt = _rendered(request, use, model, names)
        yield
        tokenizer, limits, reserved = engine.tokenizer, engine.info.limits, sampling.max_tokens or 1
        token_ids = token_ids_of(
            prompt, tokenizer, limits, request.encoding, is_rendered=True, reserved=reserved
        )
        yield
        config = _parser_config(request, use, parsers, token_ids, tokenizer)
        sampling = with_reasoning_marks(
            sampling, config.reasoning, tokenizer, is_open=config.in_reasoning
        )
        sampling = with_mark_tokens(sampling, config, tokenizer)
        sampling = names.rename_fields(_with_grammar(sampling, use, config, tokenizer))
        job = make_job(
            id_prefix, request, [token_ids], sampling, model,
            names=names, prompt_field=names.messages, cut_to_context=cut,
        )  # fmt: skip
    hides = request.include_reasoning is False
    echoed = echoed_text(request.messages[-1]) if request.echo else ""
    if config.is_plain:
        return Conversation(job, PlainParser, hides, echoed)
    if config.most_calls is not None and config.tool_parser is not None:
        job = msgspec.structs.replace(job, stop_when=partial(stop_after_calls, config))
    new_parser = partial(OutputParser, config, new_id=new_call_id)
    new_counter = None
    if (reasoning := config.reasoning) is not None:
        in_reasoning, token_bytes = config.in_reasoning, tokenizer.token_bytes
        new_counter = partial(ReasoningTokenCounter, reasoning, in_reasoning, token_bytes)
    return Conversation(job, new_parser, hides, echoed, new_counter)


def encode(request: ChatRequest, model: RegisteredModel, *, names: FieldNames = SAME) -> list[int]:
    """The token ids of a conversation, also of more than the context; nothing else is made of it.

    Raises InvalidRequestError or ContextLengthError.
    """
    names = names.joined(request.sent_as)
    with names:
        chat_request.sampling(request)  # refused as in a chat
        prompt = _rendered(request, _checked_use(request, model), model, names)
        limits, tokenizer = counting(model.engine.info.limits), model.engine.tokenizer
        return token_ids_of(prompt, tokenizer, limits, request.encoding, is_rendered=True)


def _checked_use(request: ChatRequest, model: RegisteredModel) -> ToolUse:
    """The tools of a request, all of it checked; the template shows them."""
    chat_request.check(request)
    use = tool_use(request.tools, request.tool_choice)
    if use.shown and "tools" not in model.engine.tokenizer.chat_variables:
        raise tools_not_read()
    return use


def _check_parser(use: ToolUse, model: RegisteredModel) -> None:
    """Raise InvalidRequestError for tools whose calls could not be found in the answer."""
    if use.shown and model.parsers.tools is None:
        fix = "set tool_choice to none, or start the server with --tool-call-parser"
        raise invalid_value("tools", f"how this model writes calls is not known; {fix}")


def _rendered(request: ChatRequest, use: ToolUse, model: RegisteredModel, names: FieldNames) -> str:
    """The text of the prompt. names: of the request's fields, of which some may have no effect."""
    tokenizer, tool_parser = model.engine.tokenizer, model.parsers.tools
    fit_id = tool_parser.fit_id if tool_parser is not None else str
    given, effort = request.chat_template_kwargs or {}, request.reasoning_effort
    variables, unused = requested_variables(given, effort, tokenizer.chat_variables)
    request.note_no_effect(*(f"{names.own(n)} has no effect: {why}" for n, why in unused.items()))
    render = partial(
        tokenizer.chat_prompt,
        tools=use.for_template(),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        **{**model.template_defaults, **variables},
    )
    with request.origins:
        messages = [for_template(message, fit_id) for message in request.messages]
        prompt, note = render_accepted(render, messages)
    if note is not None:
        request.note_no_effect(note)
    return prompt


def _parser_config(
    request: ChatRequest,
    use: ToolUse,
    parsers: ModelParsers,
    token_ids: list[int],
    tokenizer: Tokenizer,
) -> ParserConfig:
    reasoning = parsers.reasoning
    if reasoning is None and not use.allowed:
        return _PLAIN
    return msgspec.structs.replace(
        reasoning_config(reasoning, token_ids, tokenizer),
        tool_parser=parsers.tools if use.allowed else None,
        tools=use.schemas,
        most_calls=1 if request.parallel_tool_calls is False else use.most_calls,
        must_call=use.must_call,
    )


def _with_grammar(
    sampling: SamplingParams, use: ToolUse, config: ParserConfig, tokenizer: Tokenizer
) -> SamplingParams:
    """Add a grammar for strict calls, or for a constraint beside reasoning or tools."""
    if not (use.is_strict or (sampling.structured_outputs is not None and not config.is_plain)):
        return sampling
    enforced = msgspec.structs.replace(config, tools=use.enforced_schemas)
    indices = {tool.function.name: index for index, tool in enumerate(use.shown)}
    fields = [f"tools[{indices[tool.function.name]}].function.parameters" for tool in use.allowed]
    return with_grammar(sampling, enforced, tokenizer, fields)
