"""The vocabulary of a GGUF file: its tokens by id, with their kinds and scores."""

from __future__ import annotations

from dataclasses import dataclass

from quire.gguf.metadata import Metadata

TOKENS, MODEL = "tokenizer.ggml.tokens", "tokenizer.ggml.model"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# tokens that end an answer, whatever a file says: control tokens, as in llama.cpp, even where it
# calls them something else
_MARKS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<EOT>", "<|return|>", "<|call|>",
)  # fmt: skip
_ENDS = (*_MARKS, "</s>")  # the last is HTML in some vocabularies, Qwen's for instance
_END_KEYS = ("eos", "eot", "eom")
_WITHOUT_SPACES = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3's added tokens


@dataclass(frozen=True, slots=True)
class VocabularyList:
    """Tokens in order of their ids, and the kind of each (NORMAL, CONTROL ...)."""

    metadata: Metadata
    tokens: list[str]
    kinds: list[int]

    @classmethod
    def read(cls, metadata: Metadata) -> VocabularyList:
        """The tokens; none where a file has none. Raises CheckpointError for damaged lists."""
        tokens = list(metadata.texts(TOKENS))
        key = "tokenizer.ggml.token_type"
        kinds = [NORMAL] * len(tokens)
        if metadata.get(key) is not None:
            kinds = [int(kind) for kind in metadata.numbers(key, len(tokens))]
        kinds = [CONTROL if token in _MARKS else kinds[i] for i, token in enumerate(tokens)]
        return cls(metadata, tokens, kinds)

    def named_id(self, name: str) -> int | None:
        """The id of a token with a role, such as "bos"; None where the file names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        if self.metadata.get(key) in (None, 0xFFFFFFFF):
            return None
        return self.metadata.integer(key, low=0, high=len(self.tokens) - 1)

    def named(self, name: str) -> str | None:
        """The text of that token."""
        found = self.named_id(name)
        return None if found is None else self.tokens[found]

    def end_ids(self) -> list[int]:
        """Ids that end an answer: those that the file names, and control tokens by their text."""
        named = [found for name in _END_KEYS if (found := self.named_id(name)) is not None]
        by_text = {token: i for i, token in enumerate(self.tokens) if self.kinds[i] == CONTROL}
        return list(dict.fromkeys(named + [by_text[text] for text in _ENDS if text in by_text]))

    def added(self) -> list[dict[str, object]]:
        """`added_tokens` of tokenizer.json: what is found in a text before anything is merged."""
        plain = {"single_word": False, "lstrip": False, "normalized": False}
        return [
            {"id": i, "content": token, **plain, "special": kind != USER_DEFINED}
            | {"rstrip": self.takes_spaces and token not in _WITHOUT_SPACES}
            for i, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in (UNKNOWN, CONTROL, USER_DEFINED) and token
        ]

    @property
    def takes_spaces(self) -> bool:
        """Whether spaces behind an added token are part of it: Phi-3's, which no key says."""
        names = [self.metadata.get(key) for key in ("general.architecture", MODEL)]
        return names == ["phi3", "llama"]

    def ids(self) -> dict[str, int]:
        """Token → id; of equal tokens the first."""
        return {token: i for i, token in reversed(list(enumerate(self.tokens)))}
