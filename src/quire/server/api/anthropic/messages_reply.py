"""The structs that Anthropic's Messages API sends: replies and stream events."""

from __future__ import annotations

import msgspec

from quire.server.api.anthropic.messages_request import TextBlock, ThinkingBlock, ToolUseBlock
from quire.server.api.common.usage import Usage
from quire.server.http.http_errors import AnthropicError

OutputBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(msgspec.Struct, kw_only=True):
    """Token counts. input_tokens: without those found in the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> MessagesUsage:
        """OpenAI's counts in Anthropic's format."""
        cached = usage.prompt_tokens_details.cached_tokens
        return cls(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )


class MessageReply(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """A complete answer, not streamed."""

    id: str
    role: str = "assistant"
    model: str
    content: list[OutputBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The stream's first event: the answer, still empty."""

    message: MessageReply


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Stream event without content, as in Anthropic's own streams."""


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """Stream event: a content block starts, still empty."""

    index: int
    content_block: OutputBlock


class TextPiece(msgspec.Struct, tag_field="type", tag="text_delta"):
    """The next part of a text block."""

    text: str


class ThinkingPiece(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """The next part of a thinking block."""

    thinking: str


class SignaturePiece(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The signature of a thinking block, always empty, before its end."""

    signature: str


class InputPiece(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as the text of a JSON object."""

    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """Stream event: the next part of a content block."""

    index: int
    delta: TextPiece | ThinkingPiece | SignaturePiece | InputPiece


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """Stream event: a content block is complete."""

    index: int


class Stop(msgspec.Struct):
    """Why the answer ended: stop_reason and stop_sequence."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """Stream event: why the answer ended, and all token counts."""

    delta: Stop
    usage: MessagesUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """Stream event: the answer is complete."""


class TokenCountReply(msgspec.Struct):
    """The reply of /v1/messages/count_tokens."""

    input_tokens: int


EVENTS = (
    MessageStart, Ping, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop,
    AnthropicError,
)  # fmt: skip
