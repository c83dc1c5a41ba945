"""A model's tokens as the grammar library wants them.

The bytes are the detokenizer's, so that what a grammar lets through is what the caller reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from quire.tokenizer.tokenizer import Tokenizer


class Vocabulary:
    """Token id → bytes, and which tokens are no text.

    vocab_size: of the model, which draws no higher ids. eos_token_ids: they end an answer wherever
    its form is whole; one that no model draws is added where there is none. `tokens`,
    `special_token_ids`, `eos_token_id` and `bos_token_id` are read by the library, and the
    object itself is called to split a text that the grammar forces.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: list[int]) -> None:
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
        """The tokens that the model would use for a text inside another."""
        token_ids = self._tokenizer.encode_inside(text)
        if max(token_ids, default=0) < self.size:
            spelled = b"".join(map(self._tokenizer.token_bytes, token_ids))
            if spelled == text.encode():
                return token_ids
        assert self._greedy is not None  # the tokenizer changes the text, or knows more tokens
        return self._greedy.greedy_tokenize(text)

    def build(self) -> LLTokenizer:
        """The library's own object. Takes about 3 microseconds for each token."""
        from llguidance import LLTokenizer

        # the stubs want a class of the library, which it never asks for
        made = LLTokenizer(self, eos_token=self.eos_token_ids)  # type: ignore[arg-type]
        self._greedy = made
        return made
