"""The model that the tests are run with: the bundled one under a template with tools and reasoning.

Its weights and its tokenizer are the bundled ones. Only files of the folder differ: a longer
context, as the tests ask for 8,192 tokens and more, and a chat template that shows tools.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import quire

MAX_MODEL_LEN = 32768
TEMPLATE = """
{%- if tools -%}
{{- '<|system|>Tools:' -}}
{%- for tool in tools -%}{{- '\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\nCall one as <tool_call>{"name": ..., "arguments": {...}}</tool_call><|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] in ['system', 'developer'] -%}{{- '<|system|>' -}}
{%- elif message['role'] == 'assistant' -%}{{- '<|assistant|>' -}}
{%- else -%}{{- '<|user|>' -}}{%- endif -%}
{{- message['content'] or '' -}}
{%- for call in message['tool_calls'] or [] -%}
{{- '<tool_call>' + (call['function'] | tojson) + '</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\n\n</think>\n\n' -}}
{%- endif -%}
{%- endif -%}
"""
_CLOSED = "{{- '<think>\n\n</think>\n\n' -}}"
# of a model that reasons before each answer: the bundled one never begins to
THINKING = TEMPLATE.replace(_CLOSED, _CLOSED + "{%- else -%}<think>")
_THOUGHT = TEMPLATE.index("{%- if enable_thinking")
_PLAIN = (
    TEMPLATE[:_THOUGHT] + TEMPLATE[TEMPLATE.index("{%- endif", _THOUGHT) + len("{%- endif -%}") :]
)


def make_model(folder: Path, *, reasons: bool) -> None:
    """Write the model's folder. reasons: whether its template knows of reasoning.

    Its folder `thinking` has a model that reasons before each answer, and never ends by itself.
    """
    bundled = Path(quire.__file__).parent / "bundled" / "quire-tiny"
    shutil.copytree(bundled, folder)
    _change(folder / "config.json", max_position_embeddings=MAX_MODEL_LEN)
    names = {"model_max_length": MAX_MODEL_LEN, "chat_template": TEMPLATE if reasons else _PLAIN}
    _change(folder / "tokenizer_config.json", **names)
    thinking = folder / "thinking"
    thinking.mkdir()
    for file in [file for file in folder.iterdir() if file.is_file()]:
        shutil.copy(file, thinking)
    _change(thinking / "tokenizer_config.json", chat_template=THINKING)
    for name in ("config.json", "generation_config.json"):
        if (thinking / name).is_file():
            _change(thinking / name, eos_token_id=None)


def _change(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
