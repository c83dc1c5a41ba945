"""Kinds of parts and tools, the values of `type`, that other APIs have and Quire not, and why."""

from __future__ import annotations

from quire.compat import phrases as say

_OWN_TOOLS = "clients run the tools; leave it out, or send functions of your own"
_SCHEMA = "models learn a tool from its schema; send it as a function with one of its arguments"

_FILES = "no files are read; send what they say as a part of type text"

_WHY = {
    say.TEXT_ALONE: (
        "image image_url input_image image_pil image_embeds image_file audio audio_url input_audio"
        " video video_url input_video"
    ),
    _FILES: "document search_result file input_file container_upload",
    _OWN_TOOLS: (
        "web_search web_search_preview web_search_tool_result server_tool_use code_interpreter"
        " code_execution file_search computer_call mcp mcp_call image_generation tool_search"
    ),
    _SCHEMA: (
        "local_shell shell apply_patch custom bash text_editor memory computer computer_use_preview"
    ),
}
_REASONS = {kind: why for why, kinds in _WHY.items() for kind in kinds.split()}


def why_not(kind: str) -> str:
    """The reason why a kind is refused, after "; "; empty for an unknown one. Dates are ignored."""
    why = _reason(kind)
    return f"; {why}" if why else ""


def is_run_by_servers(kind: str) -> bool:
    """Whether such a tool is run by the servers of the API that has it. Dates are ignored."""
    return _reason(kind) == _OWN_TOOLS


def _reason(kind: str) -> str | None:
    return _REASONS.get(kind.rstrip("0123456789_"))
