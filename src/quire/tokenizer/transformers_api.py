"""TransformersTokenizer: a tokenizer with the methods that `transformers` gives its own.

For scripts that call `llm.get_tokenizer()`. Nothing in Quire uses it: the defaults differ
(`transformers` reads the names of control tokens in any text, and keeps special tokens in decoded
text).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from quire.compat.missing_names import ForeignMethods
from quire.errors import invalid_value
from quire.plain_values import plain_value
from quire.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.tokenizer.encoded_batch import BatchOptions, Encoded

_SETTABLE = ("padding_side", "truncation_side", "pad_token", "model_max_length")


class TransformersTokenizer(ForeignMethods):
    """Wraps a Tokenizer.

    padding_side, truncation_side: "right" or "left", where rows are filled up or cut. pad_token: as
    the tokenizer's files say, as is model_max_length, the number of tokens where no max_length is
    given. All four may be set, and pad_token_id.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._with_template = lru_cache(8)(tokenizer.with_chat_template)
        self.padding_side = self.truncation_side = "right"
        self.pad_token: str | None = tokenizer.names.get("pad_token")
        self.model_max_length: int | None = tokenizer.model_max_length

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: getattr(self, name) for name in _SETTABLE}
        return type(self), (self._tokenizer,), state  # a cache is not copied

    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: object = None,
        *,
        add_special_tokens: bool = True,
        padding_side: str | None = None,
        **options: Any,
    ) -> Encoded:
        """input_ids and attention_mask of a text, or of each of several.

        options: padding (True, "longest", "max_length"), truncation (True, which keeps special
        tokens), max_length, return_tensors: "np" (arrays), "pt" (tensors) or None (lists).
        padding_side: of this call. Raises InvalidRequestError for others of `transformers`, such as
        text_pair.
        """
        from quire.tokenizer.encoded_batch import BatchOptions  # a start needs none

        how = BatchOptions.read(self.model_max_length, text_pair=text_pair, **options)
        is_one = isinstance(text, str)
        texts = [text] if isinstance(text, str) else text
        if not isinstance(texts, Iterable):
            kind = type(text).__name__
            raise invalid_value("text", f"must be text, or a list of texts, not {kind}")
        rows = [self._cut(t, add_special_tokens, how.limit) for t in texts]
        return self._encoded(rows, how, is_one, padding_side)

    def _encoded(
        self, rows: list[list[int]], how: BatchOptions, is_one: bool, side: str | None = None
    ) -> Encoded:
        side = self.padding_side if side is None else side
        return how.encoded(rows, self.pad_token_id, padding_side=side, is_one=is_one)

    def _cut(self, text: str, add_special_tokens: bool, limit: int | None) -> list[int]:
        """Token ids of a text, at most so many; special tokens around it are not cut off."""
        ids = self._ids(text, add_special_tokens)
        if limit is None or len(ids) <= limit:
            return ids
        inner = self._ids(text, False) if add_special_tokens else ids
        num_special = len(ids) - len(inner)
        begins = (n for n in range(num_special + 1) if ids[n : n + len(inner)] == inner)
        begin, count = next(begins, 0), max(0, limit - num_special)
        end = begin + len(inner)
        return [*ids[:begin], *self._part(inner, count), *ids[end:]][:limit]

    def _part(self, row: list[int], count: int) -> list[int]:
        """The token ids of a row that are left when it is cut on the truncation side."""
        from quire.tokenizer.encoded_batch import is_left

        cuts_left = is_left("truncation_side", self.truncation_side)
        return row[max(0, len(row) - count) :] if cuts_left else row[:count]

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(
            text, add_special_tokens=add_special_tokens, parse_special=True
        )

    def encode(self, text: str, text_pair: object = None, **options: Any) -> Any:
        """Token ids of a text, in which names of control tokens are these tokens.

        options: as a call has them.
        """
        return self(text, text_pair, **options).input_ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """The text of a token id, or of several; the texts of several lists of them.

        options: clean_up_tokenization_spaces and others that ask for nothing.
        """
        if options:
            from quire.tokenizer.encoded_batch import refuse_others

            refuse_others(options)
        ids = plain_value(token_ids)
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            return [self.decode(each, skip_special_tokens) for each in ids]
        ids = [ids] if isinstance(ids, int) else ids
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(
        self, sequences: Any, skip_special_tokens: bool = False, **options: Any
    ) -> list[str]:
        """The text of each list of token ids. options: as `decode` has them."""
        ids = plain_value(sequences)
        found = self.decode(ids, skip_special_tokens, **options) if ids else []
        return [found] if isinstance(found, str) else found

    def apply_chat_template(
        self,
        conversation: Any,
        tools: list[dict[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        padding: bool | str = False,
        truncation: bool | str = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = False,
        **template_kwargs: Any,
    ) -> Any:
        """The text of a conversation, or with `tokenize` its token ids; of several a list.

        conversation: messages, or a list of conversations. padding, truncation, max_length,
        return_tensors: as a call has them. return_dict: the ids as a call gives them.
        template_kwargs: continue_final_message, and variables that the template reads. Raises
        InvalidRequestError.
        """
        from quire.tokenizer.encoded_batch import BatchOptions  # a start needs none

        how = BatchOptions.read(
            self.model_max_length, padding, truncation, max_length, return_tensors
        )
        tokenizer = self._tokenizer if chat_template is None else self._with_template(chat_template)
        encode = tokenizer.encode_chat if tokenize else tokenizer.render_chat
        is_list = isinstance(conversation, list | tuple) and len(conversation) > 0
        is_one = not (is_list and isinstance(conversation[0], list | tuple))
        made: list[Any] = [
            encode(
                chat, tools=tools, add_generation_prompt=add_generation_prompt, **template_kwargs
            )
            for chat in ([conversation] if is_one else conversation)
        ]
        if not tokenize:
            return made[0] if is_one else made
        if how.limit is not None:
            made = [self._part(ids, how.limit) for ids in made]
        encoded = self._encoded(made, how, is_one)
        return encoded if return_dict else encoded.input_ids

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The id of a token by its name in the vocabulary, or of each of several; None: unknown."""
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The name of a token id in the vocabulary, or of each of several, special ones or not."""
        plain, name = plain_value(ids), self._tokenizer.id_to_token
        if isinstance(plain, int):
            return name(plain)
        skipped = self.all_special_ids if skip_special_tokens else ()
        return [name(token_id) for token_id in plain if token_id not in skipped]

    def get_vocab(self) -> dict[str, int]:
        """Token → id."""
        return self._tokenizer.vocabulary()

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def vocab_size(self) -> int:
        """The number of tokens without those that were added, which `len` counts, too."""
        return self._tokenizer.num_base_tokens

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
    def pad_token_id(self) -> int | None:
        """The id of the padding token."""
        return None if self.pad_token is None else self._tokenizer.token_to_id(self.pad_token)

    @pad_token_id.setter
    def pad_token_id(self, token_id: int | None) -> None:
        """Set the padding token by its id."""
        self.pad_token = None if token_id is None else self._tokenizer.id_to_token(token_id)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of special tokens that the settings name; decode skips all control tokens."""
        ids = map(self._tokenizer.token_to_id, self._tokenizer.listed)
        return [token_id for token_id in ids if token_id is not None]
