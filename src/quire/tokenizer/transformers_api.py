"""TransformersTokenizer: a tokenizer with the methods that `transformers` gives its own.

For scripts that call `llm.get_tokenizer()`. Nothing in Quire uses it: the defaults differ
(`transformers` reads the names of control tokens in any text, and keeps special tokens in decoded
text).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from quire.compat.missing_names import ForeignMethods
from quire.errors import invalid_value
from quire.plain_values import plain_value
from quire.tokenizer.tokenizer import Tokenizer


class Encoded(dict[str, Any]):
    """Encoded text: a map whose values are attributes, too."""

    @property
    def input_ids(self) -> Any:
        """Token ids."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        """A 1 for each token id."""
        return self["attention_mask"]


class TransformersTokenizer(ForeignMethods):
    """Wraps a Tokenizer. return_tensors: "np" (arrays), "pt" (tensors) or None (lists)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._with_template = lru_cache(8)(tokenizer.with_chat_template)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._tokenizer,)  # a cache is not copied

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        return_tensors: str | None = None,
    ) -> Encoded:
        """input_ids and attention_mask of a text, or of each of several."""
        texts = [text] if isinstance(text, str) else text
        rows = [self.encode(each, add_special_tokens=add_special_tokens) for each in texts]
        return _encoded(rows, return_tensors, is_one=isinstance(text, str))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, in which names of control tokens are these tokens."""
        return self._tokenizer.encode(
            text, add_special_tokens=add_special_tokens, parse_special=True
        )

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        """The text of a token id, or of several."""
        ids = plain_value(token_ids)
        ids = [ids] if isinstance(ids, int) else ids
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Any, *, skip_special_tokens: bool = False) -> list[str]:
        """The text of each list of token ids."""
        return [
            self.decode(ids, skip_special_tokens=skip_special_tokens)
            for ids in plain_value(sequences)
        ]

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_tensors: str | None = None,
        return_dict: bool = False,
        **template_kwargs: Any,
    ) -> Any:
        """The text of a conversation, or with `tokenize` its token ids.

        return_dict: the ids as a call of the tokenizer gives them. template_kwargs:
        continue_final_message, and variables that the template reads. Raises InvalidRequestError.
        """
        tokenizer = self._tokenizer if chat_template is None else self._with_template(chat_template)
        encode = tokenizer.encode_chat if tokenize else tokenizer.render_chat
        made: Any = encode(
            conversation,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **template_kwargs,
        )
        if not tokenize:
            return made
        encoded = _encoded([made], return_tensors, is_one=True)
        return encoded if return_dict else encoded.input_ids

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The id of a token by its name in the vocabulary, or of each of several; None: unknown."""
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """The name of a token id in the vocabulary, or of each of several."""
        plain = plain_value(ids)
        if isinstance(plain, int):
            return self._tokenizer.id_to_token(plain)
        return [self._tokenizer.id_to_token(token_id) for token_id in plain]

    def get_vocab(self) -> dict[str, int]:
        """Token → id."""
        return self._tokenizer.vocabulary()

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def vocab_size(self) -> int:
        """One above the highest token id."""
        return self._tokenizer.vocab_size

    @property
    def chat_template(self) -> str | None:
        """The chat templates' text; None without any."""
        return self._tokenizer.chat_template_text or None

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a text."""
        return self._tokenizer.eos_token_id

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a text."""
        return self._tokenizer.bos_token_id

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text."""
        return self._tokenizer.names.get("eos_token")

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text."""
        return self._tokenizer.names.get("bos_token")

    @property
    def pad_token(self) -> str | None:
        """The padding token."""
        return self._tokenizer.names.get("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        """The id of the padding token."""
        return None if self.pad_token is None else self._tokenizer.token_to_id(self.pad_token)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of control tokens."""
        return sorted(self._tokenizer.special_ids)


def _encoded(rows: list[list[int]], return_tensors: str | None, *, is_one: bool) -> Encoded:
    """Token ids of texts with their masks; those of one are a row of an array, else a list."""
    masks = [[1] * len(row) for row in rows]
    if return_tensors is None and is_one:
        return Encoded(input_ids=rows[0], attention_mask=masks[0])
    return Encoded(
        input_ids=_as_tensors(rows, return_tensors),
        attention_mask=_as_tensors(masks, return_tensors),
    )


def _as_tensors(values: Any, kind: str | None) -> Any:
    if kind is None:
        return values
    if kind == "np":
        import numpy as np

        return np.array(values)
    if kind == "pt":
        import torch

        return torch.tensor(values)
    raise invalid_value("return_tensors", f"must be 'np', 'pt' or None, not {kind!r}")
