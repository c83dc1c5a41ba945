"""A model whose hidden states and values are rotated: the same function, with fewer outliers.

Ashkboos et al., 2024 ("QuaRot"), section 4, what needs no rotation at run time: norms' weights go
into the linear layers that read them; then hidden states x become x Q, and each head's values v
become v R, by weights alone. The head gets a weight of its own, as the last norm's goes into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from quire.compress.model_parts import ModelParts
from quire.core.layer_spec import LayerSpec, LinearSpec, ModelSpec, NormSpec, layer_module
from quire.errors import ConfigError
from quire.model_folder import QUANTIZE_RUN, parse_json
from quire.models.config.model_config import ModelConfig
from quire.models.loading.expected_tensors import expected_tensors

Change = Callable[[Tensor, str | None], Tensor]  # of a parameter, and the part that a tensor fills


class RotatedParts(ModelParts):
    """The parts of a 16-bit model, rotated, in float32. Raises ConfigError for what cannot be."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        config = ModelConfig.from_folder(folder)
        _check(config.spec)
        self._is_tied = config.tie_word_embeddings
        super().__init__(folder, device, config=replace(config, tie_word_embeddings=False))
        self._hidden = rotation(self.spec.hidden_size).to(device)
        self._changes = dict(self._all_changes())
        self._expected = {each.name: each for each in expected_tensors(self.spec)}

    def tensor(self, name: str) -> Tensor:
        """See `ModelParts`."""
        expected = self._expected[name]
        found = self._plain(name).float()
        change = self._changes.get(expected.parameter)
        return found if change is None else change(found, expected.part)

    def stored(self, name: str) -> Tensor:
        """See `ModelParts`."""
        return self.tensor(name).to(self.dtype)

    def _plain(self, name: str) -> Tensor:
        is_head = self.spec.head is not None and name == f"{self.spec.head.module}.weight"
        tied = f"{self.spec.embedding.module}.weight"
        return super().tensor(tied if is_head and self._is_tied else name)

    def _all_changes(self) -> Iterator[tuple[str, Change]]:
        """Parameters by name, and how they change."""
        spec, hidden = self.spec, self._hidden
        yield f"{spec.embedding.module}.weight", lambda weight, _: weight @ hidden
        yield f"{spec.final_norm.module}.weight", partial(_neutral, spec.final_norm)
        if spec.head is not None:
            change = partial(self._reads, spec.final_norm, spec.final_norm.module)
            yield f"{spec.head.module}.weight", change
        for index, layer in enumerate(spec.layers):
            for name, own in self._layer_changes(layer, f"{layer_module(index)}."):
                yield f"{layer_module(index)}.{name}", own

    def _layer_changes(self, layer: LayerSpec, prefix: str) -> Iterator[tuple[str, Change]]:
        qkv, output, gate_up, down = layer.linears
        values = rotation(layer.attention.value_dim).to(self.device)
        first, second = layer.pre_attention_norm, layer.pre_mlp_norm
        reads = partial(self._reads, first, f"{prefix}{first.module}")
        yield f"{first.module}.weight", partial(_neutral, first)
        yield f"{second.module}.weight", partial(_neutral, second)
        yield (
            f"{qkv.module}.weight",
            lambda w, part: _into_values(qkv, part, values, reads(w, part)),
        )
        yield f"{qkv.module}.bias", lambda bias, part: _into_values(qkv, part, values, bias)
        yield f"{output.module}.weight", lambda w, part: self._writes(_from_values(values, w), part)
        yield f"{gate_up.module}.weight", partial(self._reads, second, f"{prefix}{second.module}")
        yield f"{down.module}.weight", self._writes
        for linear in (output, down):
            yield f"{linear.module}.bias", self._writes

    def _reads(self, norm: NormSpec, name: str, weight: Tensor, _: str | None) -> Tensor:
        """A weight [N, H] whose inputs are hidden states after a norm."""
        gain = self._plain(f"{name}.weight").float() + float(norm.adds_one)
        return (weight * gain) @ self._hidden

    def _writes(self, tensor: Tensor, _: str | None) -> Tensor:
        """A weight [H, K] or a bias [H] whose outputs are added to hidden states."""
        return self._hidden.t() @ tensor


def parts_beside(base: Path, quantized: Path, device: torch.device) -> ModelParts:
    """A base model's parts, rotated if its quantized copy was made so."""
    path = quantized / QUANTIZE_RUN
    recorded = parse_json(path.read_bytes()) if path.is_file() else None
    match recorded:
        case {"recipe": {"rotate": True}}:
            return RotatedParts(base, device)
    return ModelParts(base, device)


def rotation(size: int) -> Tensor:
    """An orthogonal matrix [size, size]: a Hadamard matrix with random signs.

    If the size is not a power of two, each entry of one is multiplied by a random orthogonal matrix
    of the odd factor's size.
    """
    drawn = torch.Generator().manual_seed(size)
    odd = size // (size & -size)
    found: Tensor = torch.linalg.qr(torch.randn(odd, odd, generator=drawn, dtype=torch.float64)).Q
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) * 0.5**0.5
    while len(found) < size:
        found = torch.kron(pair, found.contiguous())
    signs = torch.randint(2, (size, 1), generator=drawn) * 2 - 1
    return (found * signs).float()


def _neutral(norm: NormSpec, weight: Tensor, _: str | None) -> Tensor:
    """The weight of a norm that does not multiply."""
    return torch.full_like(weight, 1.0 - float(norm.adds_one))


def _into_values(qkv: LinearSpec, part: str | None, values: Tensor, tensor: Tensor) -> Tensor:
    """A weight [N, K] or bias [N] of q, k and v, or of one of them, whose values are rotated."""
    if part not in (None, "v"):
        return tensor
    start, end = qkv.rows_of("v") if part is None else (0, len(tensor))
    by_head = torch.unflatten(tensor[start:end], 0, (-1, len(values)))
    tensor[start:end] = torch.einsum("de,hd...->he...", values, by_head).flatten(0, 1)
    return tensor


def _from_values(values: Tensor, weight: Tensor) -> Tensor:
    """A weight [N, K] whose inputs are rotated values."""
    return (torch.unflatten(weight, 1, (-1, len(values))) @ values).flatten(1)


def _check(spec: ModelSpec) -> None:
    """Raise ConfigError for a model that rotations would change."""
    if spec.head is None:
        raise ConfigError(
            "rotate: the model has no head to take the last norm's weight; leave it out"
        )
    if any(layer.post_attention_norm or layer.post_mlp_norm for layer in spec.layers):
        raise ConfigError(
            "rotate: the model has norms after attention or the MLP, which do not commute with a "
            "rotation; leave it out"
        )
