"""Encoding of texts in which names of control tokens may be plain text.

Such a name is broken by a mark (BREAK) behind its first character. The library looks for control
tokens, finds none in it, and drops the mark: as ids, texts are whole. Its model must not find the
name either: that of SentencePiece's Unigram kind would, as all tokens of its vocabulary are pieces.
So in the copy of the tokenizer that reads such texts they have other names there. A name of one
character is written as the mark and a stand-in, which the copy replaces.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from quire.errors import is_failure
from quire.tokenizer.conversation_input import BREAK

if TYPE_CHECKING:
    import tokenizers

_PRIVATE_USE = 0xF0000  # of Unicode's code points

EncodeText = Callable[[str, bool], list[int]]
"""From a text, and whether to add special tokens around it, to token ids."""


def plain_encoder(backend: tokenizers.Tokenizer) -> EncodeText:
    """The tokenizer as it is: names of control tokens are these tokens."""

    def ids(text: str, add_special_tokens: bool) -> list[int]:
        # skips offsets, which makes it twice as fast
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        found: list[int] = encoding.ids
        return found

    def ids_without_threads(text: str, add_special_tokens: bool) -> list[int]:
        try:
            return ids(text, add_special_tokens)
        except BaseException as error:
            if not is_failure(error) or "thread pool" not in str(error):
                raise
        # the system starts no more threads; one text needs none, and no later call can have them
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        return ids(text, add_special_tokens)

    return ids_without_threads


def tokenizer_json(backend: tokenizers.Tokenizer) -> str:
    """The text of a tokenizer.json that the library reads as this tokenizer."""
    ids = backend.get_vocab(with_added_tokens=False).values()
    if len(set(ids)) == len(ids):  # which is quicker to find out than to write JSON in Python
        return backend.to_str()
    return json.dumps(_whole_spec(backend))


def _whole_spec(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """The contents of a tokenizer.json with all names of the vocabulary.

    The library writes one name for each id, also in merges, and reads no merge of a missing name.
    """
    spec: dict[str, Any] = json.loads(backend.to_str())
    model, size = spec["model"], backend.get_vocab_size(with_added_tokens=False)
    if len(model["vocab"]) == size or not isinstance(model["vocab"], dict):
        return spec
    vocab = model["vocab"] = backend.get_vocab(with_added_tokens=False)
    names: dict[int, list[str]] = {}
    for name, token_id in vocab.items():
        names.setdefault(token_id, []).append(name)
    for index, pair in enumerate(model.get("merges", ())):
        if (known := _names(model, pair))[2] not in vocab:
            firsts, seconds = (names[vocab[each]] for each in known[:2])
            pairs = ((first, second) for first in firsts for second in seconds)
            model["merges"][index] = next(p for p in pairs if _names(model, p)[2] in vocab)
    return spec


def stand_ins(backend: tokenizers.Tokenizer, control: Iterable[str]) -> dict[str, str]:
    """Names of one character, and what stands for them in texts where they stay text.

    One that is a piece of the model is not told from its text, which has no other token.
    """
    names = sorted(name for name in control if len(name) == 1)
    others = (name for name in names if backend.model.token_to_id(name) is None)
    return {name: f"{BREAK}{chr(_PRIVATE_USE + index)}" for index, name in enumerate(others)}


def careful_encoder(backend: tokenizers.Tokenizer) -> EncodeText:
    """A copy of the tokenizer, for which broken names of control tokens are plain text."""
    import tokenizers

    spec = _whole_spec(backend)
    added = spec["added_tokens"]
    control = {token["content"] for token in added if token["special"]}
    texts = {stand_in: name for name, stand_in in stand_ins(backend, control).items()} | {BREAK: ""}
    first = [{"type": "Replace", "pattern": {"String": m}, "content": t} for m, t in texts.items()]
    rest = [spec["normalizer"]] if spec["normalizer"] else []
    spec["normalizer"] = {"type": "Sequence", "normalizers": [*first, *rest]}
    _rename(spec["model"], control)
    own_ids = {token["content"]: token.pop("id") for token in added}
    spec["added_tokens"] = [_token_above_all(spec["model"], own_ids.values())]
    copy = tokenizers.Tokenizer.from_str(json.dumps(spec))
    for token in added:
        token["normalized"] &= not token["special"]  # look for them before the mark goes
    copy.add_tokens([tokenizers.AddedToken(**token) for token in added])
    encode, own = plain_encoder(copy), {copy.token_to_id(name): i for name, i in own_ids.items()}

    def ids(text: str, add_special_tokens: bool) -> list[int]:
        return [own.get(token_id, token_id) for token_id in encode(text, add_special_tokens)]

    return ids


def _token_above_all(model: dict[str, Any], added_ids: Iterable[int]) -> dict[str, Any]:
    """Put a token that no text has into a vocabulary, with an id above all others.

    If it is an added token, the library gives later ones, as those that were renamed are, ids
    behind it; else it would count the vocabulary, and give ids of others where some are left out.
    """
    vocab = model["vocab"]
    is_list = isinstance(vocab, list)  # of pieces with scores, by id
    top = max([*added_ids, len(vocab), *(() if is_list else vocab.values())]) + 1
    name = f"{BREAK}{BREAK}{top}"
    if is_list:
        vocab += [[f"{BREAK}{BREAK}{i}", vocab[0][1]] for i in range(len(vocab), top + 1)]
    else:
        vocab[name] = top
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return flags | {"id": top, "content": name, "special": True}


def _rename(model: dict[str, Any], control: set[str]) -> None:
    """Give control tokens names in a model's vocabulary that no text has."""
    vocab: Any = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[_hidden(name, control), score] for name, score in vocab]
        return
    model["vocab"] = {_hidden(name, control): token_id for name, token_id in vocab.items()}
    if model.get("unk_token") in vocab:
        model["unk_token"] = _hidden(model["unk_token"], control)
    if "merges" in model:
        model["merges"] = [
            pair for pair in model["merges"] if control.isdisjoint(_names(model, pair))
        ]


def _hidden(name: str, control: Collection[str]) -> str:
    return BREAK + name if name in control else name


def _names(model: dict[str, Any], pair: str | Sequence[str]) -> tuple[str, str, str]:
    """The tokens of a merge, and what they become: the second loses its mark of a word's inside."""
    first, second = pair.split(" ") if isinstance(pair, str) else pair
    return first, second, first + second[len(model.get("continuing_subword_prefix") or "") :]


def hides_names(backend: tokenizers.Tokenizer, control: Collection[tokenizers.AddedToken]) -> bool:
    """Whether texts may become names of control tokens when they are normalized, and be found so.

    They are found in normalized text if a token says so, or by the model.
    """
    found = (each for each in control if each.normalized or _is_piece(backend, each.content))
    letters = set[str]().union(*(token.content for token in found))
    if not letters or backend.normalizer is None:
        return False
    return _makes(json.loads(backend.normalizer.__getstate__()), letters)


def _is_piece(backend: tokenizers.Tokenizer, name: str) -> bool:
    """Whether the model gives this token for its name, which merges do not."""
    import tokenizers

    model = backend.model
    is_merged = isinstance(model, tokenizers.models.BPE) and not model.ignore_merges
    return not is_merged and model.token_to_id(name) is not None


def _makes(normalizer: dict[str, Any], letters: set[str]) -> bool:
    """Whether words of these letters may come of others, as by NFKC, or by spaces that go."""
    match normalizer:
        case {"type": "Sequence", "normalizers": [*steps]}:
            return any(_makes(step, letters) for step in steps)
        case {"type": "Prepend", "prepend": str() as made} | {
            "type": "Replace",
            "pattern": {"String": _},
            "content": str() as made,
        }:  # mostly the mark of a space
            return not made or not letters.isdisjoint(made)
        case {"type": "Strip"}:
            return False
    return True
