"""Owns how chats become tokens: special tokens, chat template, and what each token weighs."""

from __future__ import annotations

from collections.abc import Iterator

from data.chat import Message
from tokenizers import Tokenizer

PAD, END, SYSTEM, USER, ASSISTANT = range(5)
SPECIALS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
ROLE = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] in ['system', 'developer'] -%}{{- '<|system|>' -}}"
    "{%- elif message['role'] in ['user', 'tool'] -%}{{- '<|user|>' -}}"
    "{%- elif message['role'] == 'assistant' -%}{{- '<|assistant|>' -}}"
    "{%- else -%}{{- raise_exception('unknown role ' + message['role']) -}}{%- endif -%}"
    "{{- message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
MAX_TOKENS = 4096  # the models' positions; longer chats are cut

Weighted = tuple[list[int], list[int]]  # token ids, and the weight of each in the loss in tenths


def tokenize(tokenizer: Tokenizer, chats: list[list[Message]]) -> Iterator[Weighted]:
    """Token ids and loss weights of each chat: what the model says counts most."""
    encoded = iter(tokenizer.encode_batch_fast([text for chat in chats for _, text in chat]))
    for chat in chats:
        ids: list[int] = []
        weights: list[int] = []
        for role, _ in chat:
            body = next(encoded).ids
            if role == "text":
                ids, weights = body, [5] * len(body)
            else:
                ids += [ROLE[role], *body, END]
                weights += [1, *[10 if role == "assistant" else 1] * (len(body) + 1)]
        yield ids[:MAX_TOKENS], weights[:MAX_TOKENS]


def prompt_ids(tokenizer: Tokenizer, messages: list[Message]) -> list[int]:
    """The chat so far, and the assistant's turn opened."""
    ids = [i for role, text in messages for i in (ROLE[role], *tokenizer.encode(text).ids, END)]
    return [*ids, ASSISTANT]
