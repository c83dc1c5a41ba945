"""Rules that several routes share, in words, for their OpenAPI entries."""

from __future__ import annotations

MODEL = "`model` is the name of a model of this server (else 404), or left out."
CONTEXT = "Prompt and answer fit the model's context and the KV cache."
VOCABULARY = "Token ids are below the size of the model's vocabulary."
TOOLS = "`tools` need a chat template that shows them; names differ from one another."
ARGUMENTS = "A call's `arguments` are the text of a JSON object."
TEMPLATE = "The model's chat template may refuse an order of roles."
TOOL_CHOICE = "`tool_choice` names one of the `tools`, and asks for none where there are none."
SIZES = "Schemas of tools are at most 32 deep, all tools together at most 256 KiB."
STRUCTURED_OUTPUT = (
    "At most one field asks for structured output; its grammar is valid and within its bounds "
    "when compiled."
)
STREAM = "`stream_options` need `stream`, which goes with no `prompt_logprobs`."
LOGPROBS = (
    "Log-probabilities for each token are at most `--max-logprobs`; more than 20 for each are at "
    "most 1,048,576 in all; `logprob_token_ids` need `logprobs`."
)
TOKENS = "`min_tokens` is at most `max_tokens`."
PRIORITY = "`priority` other than 0 needs `--scheduling-policy priority`."
ROLES = (
    "Tool results are the user's, calls the assistant's; a system message has only text. The "
    "assistant's message is the last one only if its text is to be continued."
)
TEXTS = "Texts of a conversation hold no U+FDD0 and no U+FDD1."
VERSIONED = "With the header `anthropic-version` the answer is that of Anthropic's Models API."
GENERATION = (MODEL, CONTEXT, VOCABULARY, LOGPROBS, STRUCTURED_OUTPUT, TOKENS, PRIORITY)
CHAT = (TEMPLATE, ARGUMENTS, TOOLS, SIZES, TEXTS)

USER_MESSAGE = {"role": "user", "content": "hello"}  # for examples
