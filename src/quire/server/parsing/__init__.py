"""From a model's raw text to what it means: answer, reasoning and tool calls. No torch, no HTTP."""
