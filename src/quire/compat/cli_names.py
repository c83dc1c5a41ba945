"""Options of llama.cpp's command line that ask how a prompt is given, for `generate` and `chat`."""

from __future__ import annotations

from quire.compat.foreign_name import ForeignName, no_effect, only

_L = "llama.cpp"
_MODES = "a command has one mode: `quire chat` or `quire generate`"
_PLAIN = "answers are plain text on standard output"

CLI_NAMES: tuple[ForeignName, ...] = (
    no_effect("conversation", _L, _MODES, "-cnv", arity="switch"),
    no_effect("interactive", _L, _MODES, "-i", arity="switch"),
    no_effect("interactive_first", _L, _MODES, "-if", arity="switch"),
    no_effect("single_turn", _L, _MODES, "-st", arity="switch"),
    no_effect("color", _L, _PLAIN, "-co", arity="optional"),
    no_effect("simple_io", _L, _PLAIN, arity="switch"),
    no_effect("display_prompt", _L, "a single prompt is not shown", arity="switch"),
    no_effect("verbose_prompt", _L, "a single prompt is not shown", arity="switch"),
    only("escape", _L, (False,), "prompts are taken as they are", "use $'...' of the shell", "-e",
         arity="switch"),
    only("file", _L, (), "a file has one prompt on each line here",
         "use --prompt \"$(cat FILE)\" for one prompt, or --file", "-f"),
    only("system_prompt_file", _L, (), "the system message is text",
         "use --system \"$(cat FILE)\"", "-sysf"),
    only("prompt_cache", _L, (), "KV blocks are not written to disk", "leave it out"),
    only("json_schema_file", _L, (), "the schema is text", "use --json-schema \"$(cat FILE)\"",
         "-jf"),
    only("grammar_file", _L, (), "the grammar is text", "use --grammar \"$(cat FILE)\""),
)  # fmt: skip
