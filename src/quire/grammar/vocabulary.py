"""A model's vocabulary as llguidance reads it.

The bytes of tokens are the detokenizer's, so a grammar constrains exactly what the caller reads.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from quire.errors import InvalidRequestError, QuireError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from quire.tokenizer.tokenizer import Tokenizer


class GreedyVocabulary:
    """A vocabulary for llguidance; text is split into the longest tokens first."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_ids: list[int]
    _greedy: LLTokenizer

    def split(self, text: str) -> list[int]:
        """The token ids of a text that follows other text."""
        return self._greedy.greedy_tokenize(text)

    def build(self) -> LLTokenizer:
        """llguidance's tokenizer object, for as long as this one is there.

        Takes about 3 microseconds per token.
        """
        from llguidance import LLTokenizer

        # the type stubs ask for a class that llguidance does not need
        self._greedy = LLTokenizer(_Held(self), eos_token=self.eos_token_ids)  # type: ignore[arg-type]
        return self._greedy


class _Held:
    """The part of a vocabulary that llguidance holds; it is called to split text that is forced.

    It does not hold the vocabulary, which holds llguidance's object: Python's garbage collector
    does not look into that, so such a cycle would never be freed.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: GreedyVocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_token_ids
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self._vocabulary = weakref.ref(vocabulary)

    def __call__(self, text: str) -> list[int]:
        vocabulary = self._vocabulary()
        assert vocabulary is not None, "the compiler has it"
        return vocabulary.split(text)


class Vocabulary(GreedyVocabulary):
    """The bytes of each token id, and which tokens are special.

    vocab_size: the model's. eos_token_ids: allowed wherever the answer is complete; if there are
    none, one is added that no model draws. Text is split as the tokenizer does it, where that
    works and leaves the text as it is.
    """

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
        special = {i for i in range(self.size) if tokenizer.is_special(i)}
        self.special_token_ids = sorted(special | set(self.eos_token_ids))

    def split(self, text: str) -> list[int]:
        """The token ids of a text that follows other text."""
        try:
            token_ids = self._tokenizer.encode_inside(text)
        except QuireError:  # llguidance would call the grammar wrong
            return super().split(text)
        if max(token_ids, default=0) < self.size:
            spelled = b"".join(map(self._tokenizer.token_bytes, token_ids))
            if spelled == text.encode():
                return token_ids
        return super().split(text)  # the tokenizer changes the text, or knows more tokens
