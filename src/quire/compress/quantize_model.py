"""From a model's folder to a folder with its weights quantized, one decoder layer at a time.

In memory at any time: the hidden states of the calibration text, also those of the unquantized
model where a method compares with them, and one decoder layer twice.
(Layer by layer as in Frantar et al., 2023, section 4)
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from quire.compress.checkpoint_layout import CheckpointLayout
from quire.compress.layer_rounding import Coded, ExactStates, LayerRounding, grid_of
from quire.compress.layer_stream import LayerRunner, Notify
from quire.compress.learned_rounding import BATCH, step_seconds
from quire.compress.model_parts import ModelParts, linears_of, stored_norm, weight_of
from quire.compress.recipe import Recipe
from quire.compress.rotation import RotatedParts
from quire.compress.shard_files import ShardFiles, recipe_record
from quire.compress.text_samples import TextSamples
from quire.config_file import ConfigFile
from quire.core.layer_spec import LinearSpec, layer_module
from quire.errors import CheckpointError, ConfigError
from quire.model_folder import named_path, unapplied_adapter
from quire.models.checkpoint_formats.checkpoint_format import LARGEST_EXPONENT
from quire.models.checkpoint_formats.quantization_config import read_checkpoint_format
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaDecoderLayer
from quire.models.loading.loader import check_tensors
from quire.quantization.scheme import matching_name

logger = logging.getLogger(__name__)

_GROUPS = (32, 64, 128, 256, 512)  # that are usual


class Quantization:
    """One run: base is the folder of the 16-bit model, out that of the quantized one.

    Raises CheckpointError and ConfigError.
    """

    def __init__(
        self, base: Path, out: Path, recipe: Recipe, samples: TextSamples, device: torch.device
    ) -> None:
        self.base, self.out, self.recipe, self.samples = base, out, recipe, samples
        kind = RotatedParts if recipe.rotate else ModelParts
        self.device, self.parts = device, kind(base, device)
        config = self.parts.config
        if config.checkpoint_format is not None:
            raise CheckpointError(
                f"{named_path(base)} is quantized already ({config.checkpoint_format.name}); take "
                "the 16-bit checkpoint"
            )
        # before layers are quantized that would be of no use; a rotated model has a head of its own
        check_tensors(base, ModelConfig.from_folder(base))
        if adapter := unapplied_adapter(base):
            logger.warning("%s", adapter)
        self.layout: CheckpointLayout = recipe.layout(config.dtype)
        self.files = ShardFiles(out, len(config.spec.layers))
        self.ignored, problems = self._ignored()
        if not any(self._chosen(index) for index in range(len(config.spec.layers))):
            raise ConfigError(self._why_nothing(list(problems)))
        for (modules, problem), layers in problems.items():
            logger.warning("%s of %d layers stay as they are: %s", modules, layers, problem)

    @property
    def is_finished(self) -> bool:
        """Whether an earlier run with the same settings is whole. Raises ConfigError."""
        return self.files.is_finished(self._record(), self.base)

    def _record(self) -> dict[str, Any]:
        digest = self.samples.digest if self.recipe.steps_of_method.calibrates else None
        return recipe_record(self.recipe, self.base, digest)

    @torch.no_grad()
    def learning_seconds(self) -> float:
        """About how long learned rounding takes, by a step of one of the layers that are left."""
        count = len(self.parts.spec.layers)
        left = [i for i in range(count) if self._chosen(i) and not self.files.is_written(i)]
        if not left:
            return 0.0
        samples = self.parts.embed(self.samples.calibration[:BATCH])
        run = LayerRunner(self.parts, left[0], max(map(len, samples)))
        layer, grid = self.parts.layer(left[0]), grid_of(self.layout)
        one = step_seconds(layer, run, grid, self._chosen(left[0]), samples)
        return one * self.recipe.steps * len(left)

    @torch.no_grad()
    def run(self, notify: Notify) -> None:
        """Quantize all layers, but for those that an earlier run has finished."""
        with self.files.opened(self._record()):
            if self.files.has_weights:
                self.files.copy_lost(self.base)
            else:
                self._run(notify)

    def _run(self, notify: Notify) -> None:
        spec, method = self.parts.spec, self.recipe.steps_of_method
        torch.manual_seed(self.recipe.seed)
        hidden = self.parts.embed(self.samples.calibration) if method.calibrates else []
        exact = list(hidden) if method.needs_exact_states else None
        with _tensor_float_32(allowed=not method.is_eight_bit):
            for index in range(len(spec.layers)):
                notify("quantizing", index, len(spec.layers))
                hidden, exact = self._layer(index, hidden, exact)
        notify("quantizing", len(spec.layers), len(spec.layers))
        self._write_rest()
        changes = {"tie_word_embeddings": False} if self.recipe.rotate else {}
        self.files.finish(self.base, {"quantization_config": self._config(), **changes})

    def _layer(
        self,
        index: int,
        hidden: list[Tensor],
        exact: list[Tensor] | None,
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """Quantize and write a layer, unless it is written; the hidden states after it."""
        run = LayerRunner(self.parts, index, max(map(len, hidden), default=0))
        is_written = self.files.is_written(index)
        layer = None if is_written and exact is None else self.parts.layer(index)
        states = None
        if exact is not None and layer is not None:
            states = ExactStates(exact, run.each(layer, exact))
        if not is_written:
            assert layer is not None
            self._check_range(index, layer)
            spec, dtype = self.parts.spec.layers[index], self.parts.dtype
            rounding = LayerRounding(self.recipe, self.layout, spec, layer, run, dtype)
            coded = rounding.round(hidden, states, self._chosen(index))
            self._check_scales(index, coded)
            self.files.write(index, self._tensors(index, layer, coded))
        if hidden and index + 1 < len(self.parts.spec.layers):  # which nothing reads after the last
            hidden = run.each(self._stored(index), hidden)
        return hidden, None if states is None else states.after

    def _check_range(self, index: int, layer: LlamaDecoderLayer) -> None:
        """Raise CheckpointError for finite weights that no reader takes; they are damaged."""
        linears = linears_of(layer)
        for linear in self.parts.spec.layers[index].linears:
            largest = weight_of(linears[linear.module]).abs().max().item()
            if linear.module in self._chosen(index) and largest > 2.0**LARGEST_EXPONENT:
                names = ", ".join(self._modules(index, linear))
                raise CheckpointError(
                    f"{named_path(self.base)}: {names}: a weight is {largest:.3g}, which scales of "
                    "codes cannot hold; download the model again, or take weights that are sound"
                )

    def _check_scales(self, index: int, coded: Coded) -> None:
        """Raise CheckpointError for scales that no reader takes: rounding moves and corrects."""
        for linear in self.parts.spec.layers[index].linears:
            rows = coded.get(linear.module)
            if rows is not None and not rows.largest_scale < self.layout.scale_limit:
                names, bits = ", ".join(self._modules(index, linear)), self.layout.bits
                fix = "take method int8, " if bits == 4 else ""
                raise CheckpointError(
                    f"{named_path(self.base)}: {names}: its weights are so large that scales of "
                    f"{bits}-bit codes cannot hold them; {fix}ignore these layers, or take weights "
                    "that are sound"
                )

    def _stored(self, index: int) -> LlamaDecoderLayer:
        """A layer as its file has it, so that a run that is taken up goes on from equal numbers."""
        source = ConfigFile(self.out / "config.json", {"quantization_config": self._config()})
        config = replace(self.parts.config, checkpoint_format=read_checkpoint_format(source))
        checkpoint = self.files.checkpoint(index)
        return ModelParts(self.out, self.device, checkpoint, config).layer(index)

    def _config(self) -> dict[str, object]:
        modules = [each for item in self._linears() for each in self._modules(*item)]
        chosen = [module for module in modules if module not in self.ignored]
        return self.layout.config(chosen, self.ignored)

    def _chosen(self, index: int) -> set[str]:
        """Linear layers of a layer that are quantized."""
        ignored = set(self.ignored)
        return {
            linear.module
            for linear in self.parts.spec.layers[index].linears
            if not ignored.intersection(self._modules(index, linear))
        }

    def _modules(self, index: int, linear: LinearSpec) -> list[str]:
        """A linear layer's modules in the checkpoint."""
        name = layer_module(index)
        return [self.parts.stored_name(f"{name}.{module}") for module, _ in linear.sources()]

    def _ignored(self) -> tuple[list[str], Counter[tuple[str, str]]]:
        """Modules that are not quantized: those asked for, those that do not fit, the head.

        Parts of a fused weight are ignored together, as engines that fuse them need it. With the
        number of layers by modules that do not fit, and why they do not.
        """
        found, used, problems = list[str](), set[str](), Counter[tuple[str, str]]()
        for index, linear in self._linears():
            modules = self._modules(index, linear)
            matching = {p for p in self.recipe.ignore for m in modules if fnmatchcase(m, p)}
            used |= matching
            problem = None if matching else _problem(self.layout, linear)
            if problem is not None:
                names = ", ".join(module.rpartition(".")[2] for module in modules)
                problems[names, problem] += 1
            if matching or problem is not None:
                found += modules
        head = [] if self.parts.spec.head is None else [self.parts.spec.head.module]
        heads = ["lm_head", *head]  # the usual name does no harm where the head is the embedding's
        used |= {p for p in self.recipe.ignore for name in heads if fnmatchcase(name, p)}
        unused = [pattern for pattern in self.recipe.ignore if pattern not in used]
        if unused:
            modules = [module for item in self._linears() for module in self._modules(*item)]
            raise ConfigError(
                f"ignore: no linear layer is named {unused[0]!r}; correct the pattern: names are "
                f"such as {matching_name(unused[0], modules)}"
            )
        return found + head, problems

    def _linears(self) -> Iterator[tuple[int, LinearSpec]]:
        for index, layer in enumerate(self.parts.spec.layers):
            for linear in layer.linears:
                yield index, linear

    def _why_nothing(self, problems: list[tuple[str, str]]) -> str:
        """Why there is no linear layer to quantize. problems: of those that do not fit."""
        if not problems:
            return "ignore leaves no linear layer to quantize; ignore less"
        sizes = [-1, *_GROUPS] if self.recipe.steps_of_method.has_groups else []
        layouts = [dataclasses.replace(self.layout, group=size) for size in sizes]
        linears = [linear for _, linear in self._linears()]
        fitting = [
            "-1 (all inputs)" if layout.group == -1 else str(layout.group)
            for layout in layouts
            if not any(_problem(layout, linear) for linear in linears)
        ]
        if not fitting:
            return f"no linear layer can be quantized: {problems[0][1]}; use method int8"
        inputs = ", ".join(map(str, sorted({linear.k for linear in linears})))
        return (
            f"group_size {self.layout.group} divides the inputs ({inputs}) of no linear layer; use "
            f"one of {', '.join(fitting[1:] + fitting[:1])}"
        )

    def _tensors(self, index: int, layer: LlamaDecoderLayer, coded: Coded) -> dict[str, Tensor]:
        """A layer's tensors by their names in the checkpoint."""
        prefix, linears = f"{layer_module(index)}.", linears_of(layer)
        found: dict[str, Tensor] = {}
        for expected in self.parts.tensor_names(prefix):
            module, _, leaf = expected.parameter.removeprefix(prefix).rpartition(".")
            name = self.parts.stored_name(expected.name)
            if leaf == "weight" and module in coded:
                start, end = linears[module].spec.rows_of(expected.part)
                stored = self.layout.tensors(coded[module].rows(start, end))
                owner = name.removesuffix(".weight")
                found |= {f"{owner}.{own}": tensor for own, tensor in stored.items()}
            else:
                found[name] = self._plain(index, layer, module, leaf, expected.part, name)
        return found

    def _plain(
        self,
        index: int,
        layer: LlamaDecoderLayer,
        module: str,
        leaf: str,
        part: str | None,
        name: str,
    ) -> Tensor:
        """A tensor that is not quantized, in the base model's data type."""
        base, linears = self.parts.stored(name), linears_of(layer)
        if module in linears:
            linear = linears[module]
            start, end = linear.spec.rows_of(part)
            whole = weight_of(linear) if leaf == "weight" else linear.bias
            assert whole is not None
            return whole[start:end].to(base.dtype)
        return stored_norm(self.parts.spec.layers[index], layer, module, base)

    def _write_rest(self) -> None:
        """The embedding, the last norm and the head, as the base model has them."""
        layers = len(self.parts.spec.layers)
        inside = {
            t.name for i in range(layers) for t in self.parts.tensor_names(f"{layer_module(i)}.")
        }
        rest = [t.name for t in self.parts.tensor_names("") if t.name not in inside]
        self.files.write(
            layers, {self.parts.stored_name(name): self.parts.stored(name) for name in rest}
        )


@contextmanager
def _tensor_float_32(*, allowed: bool) -> Iterator[None]:
    """Let GPUs multiply float32 by tensor cores, several times as fast, with 10 bits of mantissa.

    The errors of four bits are a hundred times larger.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _problem(layout: CheckpointLayout, linear: LinearSpec) -> str | None:
    """Why a linear layer's weight cannot be stored in a layout; None if it can."""
    rows = [part.rows for part in linear.parts] or [linear.n]
    problems = (layout.problem(n, linear.k) for n in rows)
    return next((found for found in problems if found is not None), None)
