"""A model's chat template: from messages to one text.

The template decides the words; conversation_input.py checks what goes in and template_sandbox.py
runs it. This file knows no tokens but the texts of the named ones, which templates write
themselves.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

import jinja2

from quire.background import TooLongError, is_hurried
from quire.errors import CheckpointError, TemplateRefusalError, invalid_value, warn_no_effect
from quire.tokenizer.conversation_input import (
    END_MARK,
    TextMap,
    plain,
    prepare_messages,
    prepare_tools,
    tools_not_read,
)
from quire.tokenizer.template_metering import MeteredContext
from quire.tokenizer.template_sandbox import Sandbox
from quire.tokenizer.template_work import TemplateLimitError, start_render
from quire.tokenizer.tokenizer_folder import TOKEN_NAMES

# For which a template that took long on an event loop is rendered in threads alone
LONG_SECONDS = 10.0
_OWN_NAMES = frozenset(
    {"messages", "tools", "add_generation_prompt", "tokenize", "chat_template"}
    | {"continue_final_message", "conversation", "return_dict"}
)
_TOOLS_OF_MESSAGE = re.compile(r"""\bmessage(?:\[['"]tools['"]\]|\.tools\b)""")
_PLAIN_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")


class ChatTemplate:
    """One template, compiled. origin: its file, for messages.

    special_tokens: name → text, such as bos_token. variables: the names that it reads.
    Raises CheckpointError for a damaged template.
    """

    def __init__(self, source: str, *, origin: str, special_tokens: Mapping[str, str]) -> None:
        sandbox = Sandbox()
        try:
            self._template, variables = sandbox.compiled(source)
        except Exception as error:  # foreign code can fail in any way
            raise CheckpointError(
                f"{origin}: the chat template cannot be used ({error}); correct it, or set "
                "chat_template to another"
            ) from error
        # Phi-4-mini's template has the tools, as text, in the system's message
        self._has_tools_in_message = (
            "tools" not in variables and _TOOLS_OF_MESSAGE.search(source) is not None
        )
        # Firefunction's template has them as text, under another name, and the time beside them
        self._has_functions = "tools" not in variables and "functions" in variables
        shows_tools = self._has_tools_in_message or self._has_functions
        self.variables = variables | {"tools"} if shows_tools else variables
        # what all renders have: each adds its own to a copy, so that Jinja need not
        self._common = dict(self._template.globals) | dict(special_tokens) | {"documents": None}
        self._template.globals = {}
        self._long_until = 0.0  # monotonic seconds
        self._names = frozenset(re.findall(r"\w+", source))  # keys it may read are among them
        taken = _OWN_NAMES.union(TOKEN_NAMES, sandbox.globals)
        self.option_names = sorted(n for n in self.variables - taken if _PLAIN_NAME.fullmatch(n))

    def render(
        self,
        messages: Any,
        *,
        tools: Any,
        add_generation_prompt: bool,
        options: Mapping[str, Any],
        continue_final_message: bool = False,
        map_text: TextMap = str,
    ) -> str:
        """The conversation as the model's text, equal to what `transformers` renders.

        continue_final_message: end within the last message, for an answer that goes on from it.
        options: further values for the template, under names that it reads (`option_names`).
        map_text: applied to each string from the caller except roles.
        Raises InvalidRequestError, TemplateRefusalError with the words of the template's own
        `raise_exception`, and TooLongError on an event loop (background.py).
        """
        options = self._read_options(options) if options else {}
        if type(add_generation_prompt) is not bool:
            kind = type(add_generation_prompt).__name__
            raise invalid_value("add_generation_prompt", f"must be True or False, not {kind}")
        if tools and "tools" not in self.variables:
            raise tools_not_read()
        prepared = prepare_messages(messages, map_text, self._names)
        if "tool_calls" not in self._names:
            _refuse_calls(prepared)
        content = _marked_end(prepared, add_generation_prompt) if continue_final_message else None
        prepared_tools = prepare_tools(tools, map_text)
        if prepared_tools and self._has_tools_in_message:
            prepared = _with_tools(prepared, prepared_tools)
        variables = self._common.copy()
        if self._has_functions:
            variables |= _functions(prepared_tools)
        if options:
            name = "chat_template_kwargs"
            variables |= plain(dict(options), map_text, name, name)
        variables["messages"], variables["tools"] = prepared, prepared_tools
        variables["add_generation_prompt"] = add_generation_prompt
        rendered = self._run(variables)
        return rendered if content is None else _before_mark(rendered, content)

    def _read_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that the template reads; others are a NoEffectWarning."""
        readable = ", ".join(self.option_names) or "none"
        warn_no_effect(
            f"chat_template_kwargs: {name!r} has no effect: this model's chat template has no such "
            f"variable; it has: {readable}"
            for name in options
            if name not in self.option_names
        )
        return {name: value for name, value in options.items() if name in self.option_names}

    def _run(self, variables: dict[str, Any]) -> str:
        environment = self._template.environment
        if self._long_until and is_hurried() and time.monotonic() < self._long_until:
            raise TooLongError
        start_render()
        try:
            context = MeteredContext(
                environment, variables, self._template.name, self._template.blocks
            )
            return environment.concat(self._template.root_render_func(context))
        except TemplateLimitError as error:
            if is_hurried():
                self._long_until = time.monotonic() + LONG_SECONDS
                raise TooLongError from None
            problem = f"the model's chat template was stopped ({error}); send fewer messages"
        except jinja2.UndefinedError as error:
            problem = f"the model's chat template needs a value that is missing ({error}); send it"
        except jinja2.TemplateError as error:
            text = f"messages: the model's chat template refuses them: {error}"
            raise TemplateRefusalError(text, param="messages") from None
        except Exception as error:  # a template is foreign code and can fail in any way
            problem = (
                f"the model's chat template fails on them ({type(error).__name__}: {error}); send "
                "them in another form"
            )
        raise invalid_value("messages", problem)


_SPACE = " "  # behind the mark: it is gone where the template strips messages


def _marked_end(messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
    """Put the mark behind the last message's content; returns what that was."""
    if add_generation_prompt:
        problem = "it does not go with add_generation_prompt; set that to false"
        raise invalid_value("continue_final_message", problem)
    content = messages[-1].get("content")
    if not isinstance(content, str):
        problem = "the last message has no text to go on from; set its content"
        raise invalid_value("continue_final_message", problem)
    messages[-1]["content"] = content + END_MARK + _SPACE
    return content


def _before_mark(rendered: str, content: str) -> str:
    """The text up to the mark; without space at its end, if the template strips such messages."""
    text, mark, behind = rendered.rpartition(END_MARK)
    if not mark:
        problem = "this model's chat template does not show the last message; leave it out"
        raise invalid_value("continue_final_message", problem)
    is_stripped = not behind.startswith(_SPACE)
    # a template may have shown the message before, too
    text = text.replace(END_MARK + _SPACE, "").replace(END_MARK, "")
    return text.rstrip() if is_stripped and content.strip() else text


def _refuse_calls(messages: list[dict[str, Any]]) -> None:
    """Raise InvalidRequestError for tool calls, which this template would not render."""
    for index, message in enumerate(messages):
        if message.get("tool_calls"):
            problem = (
                "this model's chat template does not show earlier calls; describe them in the "
                "content, or use a chat template that reads tool_calls"
            )
            raise invalid_value("messages", problem, where=f"messages[{index}].tool_calls")


def _functions(tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    """The functions as JSON and the time, by the names of Firefunction's template."""
    functions = [tool.get("function", tool) for tool in tools or ()]
    return {
        "functions": json.dumps(functions, ensure_ascii=False, indent=4) if functions else "",
        "datetime": time.strftime("%b %d %Y %H:%M:%S GMT", time.gmtime()),
    }


def _with_tools(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation with the functions as JSON in its system's message."""
    functions = [tool.get("function", tool) for tool in tools]
    shown = json.dumps(functions, ensure_ascii=False)
    first, rest = messages[0], messages[1:]
    if first["role"] != "system":
        first, rest = {"role": "system", "content": ""}, messages
    return [first | {"tools": shown}, *rest]
