"""Sampling params of an answer that has reasoning or tool calls: what these add to the caller's.

Owns the one rule for a constraint beside them, in HTTP requests, `LLM.chat` and `quire chat`: it is
for the answer's text, and reasoning may come first.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.core.sampling_params import SamplingParams, StructuredOutputs
from quire.errors import invalid_value
from quire.server.parsing.output_parser import ParserConfig
from quire.server.parsing.reasoning_parser import (
    ReasoningParser,
    reasoning_of,
    with_reasoning_marks,
)
from quire.server.parsing.tool_grammar import (
    NoGrammarError,
    answer_grammar,
    thought_mark,
    tools_of_lines,
)
from quire.tokenizer.tokenizer import Tokenizer

_NUM_TAIL_TOKENS = 16  # of the prompt, in which reasoning may be opened


def reasoning_config(
    reasoning: ReasoningParser | None, token_ids: Sequence[int], tokenizer: Tokenizer
) -> ParserConfig:
    """The parsers of the answer to a prompt without tools.

    The prompt may end with a mark of reasoning, but for white space: a template opens it, or
    switches it off by an empty one.
    """
    if reasoning is None:
        return ParserConfig()
    tail = b"".join(map(tokenizer.token_bytes, token_ids[-_NUM_TAIL_TOKENS:]))
    is_open, is_past = (
        tail.rstrip().endswith(mark.encode()) for mark in (reasoning.begin, reasoning.end)
    )
    return ParserConfig(reasoning=reasoning, in_reasoning=is_open, is_past_reasoning=is_past)


def with_mark_tokens(
    sampling: SamplingParams, config: ParserConfig, tokenizer: Tokenizer
) -> SamplingParams:
    """Keep the control tokens that the parser looks for in the detokenized text."""
    ids = [i for mark in config.marks if (i := tokenizer.control_token_id(mark)) is not None]
    return msgspec.structs.replace(sampling, kept_token_ids=ids) if ids else sampling


def with_grammar(
    sampling: SamplingParams,
    config: ParserConfig,
    tokenizer: Tokenizer,
    fields: Sequence[str] = (),
) -> SamplingParams:
    """Add a grammar that enforces calls and the caller's constraint around reasoning and text.

    fields: the names of config.tools' schemas in errors. Raises InvalidRequestError.
    """
    outputs = sampling.structured_outputs
    field = "tools" if outputs is None else outputs.name
    find = tokenizer.control_token_id
    try:
        grammar = answer_grammar(config, text_format=outputs, control_token_id=find)
    except NoGrammarError as error:
        raise invalid_value(field, str(error)) from None
    lines = {line: fields[tool] for line, tool in tools_of_lines(grammar).items()}
    enforced = StructuredOutputs(
        grammar=grammar,
        field=field,
        fields_of_lines=lines,
        thought_mark=thought_mark(config, find),
    )
    return msgspec.structs.replace(sampling, structured_outputs=enforced)


def chat_sampling(
    sampling: SamplingParams, token_ids: Sequence[int], tokenizer: Tokenizer, *, fix: str
) -> SamplingParams:
    """The params of the answer to a chat without tools, whose prompt is token_ids.

    The chat template shows the marks of the model's reasoning, which the text has even if they are
    control tokens. fix: of `with_reasoning_marks`. Raises InvalidRequestError.
    """
    reasoning = reasoning_of(tokenizer.chat_template_text)
    config = reasoning_config(reasoning, token_ids, tokenizer)
    sampling = with_reasoning_marks(
        sampling, reasoning, tokenizer, is_open=config.in_reasoning, fix=fix
    )
    sampling = with_mark_tokens(sampling, config, tokenizer)
    if config.is_plain or sampling.structured_outputs is None:
        return sampling
    return with_grammar(sampling, config, tokenizer)
