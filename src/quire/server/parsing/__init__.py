"""Tool parsers and reasoning parsers: from a model's text to answer, reasoning and tool calls."""
