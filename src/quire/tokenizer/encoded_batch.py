"""Rows of token ids, padded and as arrays if asked, as calls of TransformersTokenizer return them.

Owns the arguments that the call has in `transformers`, and which of them are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

from quire.errors import invalid_value
from quire.tokenizer.tokenizer_folder import NO_MAX_LENGTH

_LONGEST, _TO_MAX = "longest", "max_length"
_PADDINGS = {False: None, None: None, "do_not_pad": None, True: _LONGEST} | {
    name: name for name in (_LONGEST, _TO_MAX)
}
TRUNCATIONS = {False: False, None: False, "do_not_truncate": False} | dict.fromkeys(
    (True, "longest_first", "only_first"), True
)
# further arguments of `transformers`, with a value that asks for nothing besides None and False
_OTHERS: dict[str, Any] = {
    "verbose": True, "stride": 0,
    **dict.fromkeys(("text_pair", "text_target", "text_pair_target", "is_split_into_words",
                     "pad_to_multiple_of", "return_token_type_ids", "return_overflowing_tokens",
                     "return_special_tokens_mask", "return_offsets_mapping", "return_length",
                     "split_special_tokens", "tokenizer_kwargs", "clean_up_tokenization_spaces",
                     "use_source_tokenizer")),
}  # fmt: skip
_ELSE = "use AutoTokenizer of transformers"


class Encoded(dict[str, Any]):
    """Encoded text: a map whose values are attributes, too."""

    @property
    def input_ids(self) -> Any:
        """Token ids."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        """A 1 for each token id, and a 0 for each one of padding."""
        return self["attention_mask"]

    def to(self, *device: Any, **options: Any) -> Encoded:
        """Move tensors, see `torch.Tensor.to`; returns itself. Lists and NumPy's arrays stay."""
        import torch

        for name, values in self.items():
            if isinstance(values, torch.Tensor):
                self[name] = values.to(*device, **options)
        return self


class BatchOptions(msgspec.Struct, frozen=True):
    """Arguments of a call, checked. Raises InvalidRequestError.

    limit: of the tokens of a row, None for none. padding: "longest", "max_length" or None.
    has_mask: whether there is an attention_mask.
    """

    padding: str | None
    limit: int | None
    max_length: int | None
    return_tensors: str | None
    has_mask: bool = True

    @classmethod
    def read(
        cls,
        model_max_length: int | None,
        /,
        padding: bool | str | None = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_attention_mask: bool | None = None,
        **others: Any,
    ) -> BatchOptions:
        """The options that these arguments describe. model_max_length: in place of max_length."""
        refuse_others(others)
        for name, value, known in (
            ("padding", padding, _PADDINGS),
            ("truncation", truncation, TRUNCATIONS),
        ):
            if not isinstance(value, bool | str | None) or value not in known:
                names = ", ".join(repr(each) for each in known if each is not None)
                raise invalid_value(name, f"must be one of {names}, not {value!r:.64}")
        if return_tensors not in (None, "np", "pt"):
            problem = f"must be 'np', 'pt' or None, not {return_tensors!r:.64}"
            raise invalid_value("return_tensors", problem)
        length_name = "max_length"
        cuts, pads = TRUNCATIONS[truncation], _PADDINGS[padding]
        if max_length is None and (cuts or pads == _TO_MAX):
            if model_max_length is None or model_max_length in (NO_MAX_LENGTH, inf):
                name = "truncation" if cuts else "padding"
                problem = "needs the number of tokens, which no file names; set max_length"
                raise invalid_value(name, problem)
            max_length, length_name = model_max_length, "model_max_length"
        if max_length is not None:
            if type(max_length) is not int or max_length < 1:
                raise invalid_value(length_name, f"must be an integer >= 1, not {max_length!r}")
            if not cuts and pads != _TO_MAX:
                problem = "cuts with truncation=True, and fills up with padding='max_length'"
                raise invalid_value("max_length", f"{problem}; set one of them")
        has_mask, limit = return_attention_mask is not False, max_length if cuts else None
        return cls(pads, limit, max_length, return_tensors, has_mask)

    def encoded(
        self, rows: list[list[int]], pad_id: int | None, *, padding_side: str, is_one: bool
    ) -> Encoded:
        """Token ids of texts with their masks; those of one are a row of an array, else a list."""
        pads_left = is_left("padding_side", padding_side)
        masks = [[1] * len(row) for row in rows]
        if self.padding is not None:
            if pad_id is None:
                problem = (
                    f"the tokenizer has no pad_token; set it (pad_token = eos_token), or {_ELSE}"
                )
                raise invalid_value("padding", problem)
            longest = max(map(len, rows), default=0)
            width = longest if self.padding == _LONGEST else self.max_length or 0
            rows = [_filled(row, width, pad_id, pads_left) for row in rows]
            masks = [_filled(mask, width, 0, pads_left) for mask in masks]
        if self.return_tensors is None and is_one:
            return self._encoded(rows[0], masks[0])
        if self.return_tensors is not None and len(set(map(len, rows))) > 1:
            problem = "texts have different numbers of tokens; use padding=True"
            raise invalid_value("return_tensors", problem)
        ids, masked = (_as_tensor(values, self.return_tensors) for values in (rows, masks))
        return self._encoded(ids, masked)

    def _encoded(self, ids: Any, mask: Any) -> Encoded:
        found = Encoded(input_ids=ids)
        if self.has_mask:
            found["attention_mask"] = mask
        return found


def is_left(name: str, side: str) -> bool:
    """Whether a side is "left" and not "right". Raises InvalidRequestError for others."""
    if side not in ("left", "right"):
        raise invalid_value(name, f"must be 'left' or 'right', not {side!r:.64}")
    return side == "left"


def refuse_others(others: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError for further arguments of `transformers` that ask for something."""
    for name, value in others.items():
        if name not in _OTHERS:
            raise invalid_value(name, "unknown option; remove it")
        if value is not None and value is not False and value != _OTHERS[name]:
            raise invalid_value(name, f"is not supported; leave it out, or {_ELSE}")


def _filled(row: list[int], width: int, value: int, at_left: bool) -> list[int]:
    missing = [value] * (width - len(row))
    return missing + row if at_left else row + missing


def _as_tensor(values: list[list[int]], kind: str | None) -> Any:
    if kind is None:
        return values
    if kind == "np":
        import numpy as np

        return np.array(values, np.int64)
    import torch

    return torch.tensor(values, dtype=torch.int64)
