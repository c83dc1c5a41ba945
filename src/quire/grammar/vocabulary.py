"""A model's vocabulary as llguidance reads it.

The bytes of tokens are the detokenizer's, so a grammar constrains exactly what the caller reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from quire.tokenizer.tokenizer import Tokenizer


class Vocabulary:
    """The bytes of each token id, and which tokens are special.

    vocab_size: the model's. eos_token_ids: allowed wherever the answer is complete; if there are
    none, one is added that no model draws. llguidance reads `tokens`, `special_token_ids`,
    `eos_token_id` and `bos_token_id`, and calls the object to split text that the grammar forces.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: list[int]) -> None:
        if not tokenizer.has_text:
            raise InvalidRequestError("answers have no text here; leave it out")
        self._tokenizer = tokenizer
        known = max([tokenizer.vocab_size, *(i + 1 for i in eos_token_ids)])
        self.size = min(known, vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in range(self.size)]
        self.eos_token_ids = [i for i in eos_token_ids if i < self.size]
        if not self.eos_token_ids:
            self.eos_token_ids = [self.size]
            self.tokens.append(b"")
        self.eos_token_id = self.eos_token_ids[0]
        special = {i for i in range(self.size) if tokenizer.is_special(i)}
        self.special_token_ids = sorted(special | set(self.eos_token_ids))
        self._greedy: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """The token ids of a text that follows other text."""
        token_ids = self._tokenizer.encode_inside(text)
        if max(token_ids, default=0) < self.size:
            spelled = b"".join(map(self._tokenizer.token_bytes, token_ids))
            if spelled == text.encode():
                return token_ids
        assert self._greedy is not None  # the tokenizer changes the text, or knows more tokens
        return self._greedy.greedy_tokenize(text)

    def build(self) -> LLTokenizer:
        """llguidance's tokenizer object. Takes about 3 microseconds per token."""
        from llguidance import LLTokenizer

        # the type stubs ask for a class that llguidance does not need
        made = LLTokenizer(self, eos_token=self.eos_token_ids)  # type: ignore[arg-type]
        self._greedy = made
        return made
