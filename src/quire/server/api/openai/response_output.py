"""The output items of a response as its answer grows, and the stream events that they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Literal

from msgspec import UNSET

from quire.core.request_output import CompletionOutput
from quire.core.sampling_params import SamplingParams
from quire.server.api.common.logprob_formats import ChatLogprob
from quire.server.api.openai import responses_reply as replies
from quire.server.api.openai.response_items import output_item_id
from quire.server.api.openai.responses_tools import CalledTool, ResponsesTools, input_of
from quire.server.parsing.output_events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    arguments_of,
)
from quire.tokenizer.detokenizer import Detokenizer
from quire.tokenizer.tokenizer import Tokenizer

Status = Literal["completed", "incomplete"]
_CALLS = (replies.OutputCall, replies.OutputCustomCall)


class TokenParts:
    """Splits an answer's outputs by token, so that log-probabilities stay with their text.

    However many tokens came together, the items of the answer have the same ones.
    """

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, prompt: Sequence[int]
    ) -> None:
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt,
            skip_special_tokens=sampling.skip_special_tokens,
            kept_token_ids=sampling.kept_token_ids or (),
        )
        self._num_held = 0  # characters of earlier tokens whose text has not come

    def of(self, output: CompletionOutput) -> list[CompletionOutput]:
        """One part for each token, with the text that it adds; the last one has all the rest."""
        text, parts = output.text, list[CompletionOutput]()
        for token_id, position in zip(output.token_ids, output.logprobs or (), strict=True):
            size = self._num_held + len(self._detokenizer.push([token_id]))
            parts.append(CompletionOutput(output.index, text[:size], [token_id], [position]))
            self._num_held, text = max(0, size - len(text)), text[size:]
        if not parts:
            return [output]
        parts[-1].text += text
        parts[-1].finish_reason, parts[-1].stop_reason = output.finish_reason, output.stop_reason
        return parts


class OutputItems:
    """Messages, reasoning and tool calls in their order; at most the last one is open.

    logprobs: those of tokens whose text has not been added yet.
    """

    def __init__(self, response_id: str, tools: ResponsesTools) -> None:
        self.items: list[replies.OutputItem] = []
        self.logprobs: list[ChatLogprob] = []
        self._response_id = response_id
        self._tools = tools
        self._is_open = False
        # of the open item, joined when it is closed: to append each would copy what is there
        self._texts: list[str] = []
        self._scores: list[ChatLogprob] = []

    def add(self, event: Event) -> Iterator[replies.StreamEvent]:
        """The stream events of a part of the answer."""
        match event:
            case TextDelta(text):
                yield from self._open(replies.OutputMessage(id=self._new_id("msg"), content=[]))
                yield from self._add_text(text, replies.TextPiece)
            case ReasoningDelta(text):
                self.logprobs = []
                yield from self._open(replies.OutputReasoning(id=self._new_id("rs"), content=[]))
                yield from self._add_text(text, replies.ReasoningPiece)
            case ToolCallBegin(_, call_id, name):
                self.logprobs = []
                yield from self._open(self._call(call_id, self._tools.tool_of(name)))
            case ToolCallArguments(_, text):
                item = self.items[-1]
                self._texts.append(text)
                if isinstance(item, replies.OutputCall):
                    yield replies.ArgumentsPiece(
                        item_id=item.id, output_index=self._index, delta=text
                    )

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    def _new_id(self, prefix: str) -> str:
        return output_item_id(prefix, self._response_id, len(self.items))

    def _call(
        self, call_id: str, tool: CalledTool
    ) -> replies.OutputCall | replies.OutputCustomCall:
        """A call without its arguments."""
        kind = replies.OutputCustomCall if tool.is_custom else replies.OutputCall
        item_id = self._new_id("ctc" if tool.is_custom else "fc")
        namespace = UNSET if tool.namespace is None else tool.namespace
        return kind(id=item_id, call_id=call_id, name=tool.name, namespace=namespace)

    def _open(self, item: replies.OutputItem) -> Iterator[replies.StreamEvent]:
        """Open an item, unless the open one has the same type. Each call is an item of its own."""
        is_call = isinstance(item, _CALLS)
        if self._is_open and type(item) is type(self.items[-1]) and not is_call:
            return
        yield from self.close("completed")
        self.items.append(item)
        self._is_open = True
        yield replies.ItemAdded(output_index=self._index, item=copy(item))
        if isinstance(item, replies.OutputMessage):
            item.content = [replies.OutputText()]
        elif isinstance(item, replies.OutputReasoning):
            item.content = [replies.ReasoningText()]
        if not isinstance(item, _CALLS):
            part = copy(item.content[0])  # as it is now, empty
            yield replies.PartAdded(item_id=item.id, output_index=self._index, part=part)

    def _add_text(
        self, text: str, piece: type[replies.TextPiece] | type[replies.ReasoningPiece]
    ) -> Iterator[replies.StreamEvent]:
        item = self.items[-1]
        assert not isinstance(item, _CALLS), "the item has just been opened"
        self._texts.append(text)
        event = piece(item_id=item.id, output_index=self._index, delta=text)
        if isinstance(event, replies.TextPiece) and isinstance(item, replies.OutputMessage):
            event.logprobs, self.logprobs = self.logprobs, []
            self._scores += event.logprobs
        yield event

    def close(self, status: Status) -> Iterator[replies.StreamEvent]:
        """Complete the open item, with the answer's status: max_tokens may have cut it inside.

        A call's status is that of its arguments: a stop string, too, may have cut them.
        """
        if not self._is_open:
            return
        self._is_open = False
        item, index = self.items[-1], self._index
        item.status = status
        text, self._texts = "".join(self._texts), []
        scores, self._scores = self._scores, []
        if isinstance(item, _CALLS):
            item.status = "completed" if arguments_of(text) is not None else "incomplete"
        match item:
            case replies.OutputCall():
                item.arguments = text
                yield replies.ArgumentsDone(
                    item_id=item.id, output_index=index, name=item.name, arguments=item.arguments
                )
            case replies.OutputCustomCall():
                item.input = input_of(text)
                yield replies.InputPiece(item_id=item.id, output_index=index, delta=item.input)
                yield replies.InputDone(item_id=item.id, output_index=index, input=item.input)
            case replies.OutputMessage():
                item.content[0].text, item.content[0].logprobs = text, scores
                yield replies.TextDone(
                    item_id=item.id, output_index=index, text=text, logprobs=scores
                )
            case replies.OutputReasoning():
                item.content[0].text = text
                yield replies.ReasoningDone(item_id=item.id, output_index=index, text=text)
        if not isinstance(item, _CALLS):
            yield replies.PartDone(item_id=item.id, output_index=index, part=item.content[0])
        yield replies.ItemDone(output_index=index, item=item)
