"""Recipe of `quire quantize`: methods, and the settings of one run. No torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from quire.compress.checkpoint_layout import ActOrder, CheckpointLayout, Packing
from quire.errors import ConfigError

Scaling = Literal["none", "awq", "smoothquant"]
RoundingMethod = Literal["nearest", "gptq", "learned"]


@dataclass(frozen=True, slots=True)
class Method:
    """A quantization method of `quire quantize`.

    scaling: what moves scales between weights and activations first. rounding: how codes are
    chosen. packing: what the checkpoint is stored as, unless another one is asked for.
    """

    scaling: Scaling
    rounding: RoundingMethod
    packing: Packing
    symmetric: bool = True

    @property
    def is_eight_bit(self) -> bool:
        """Whether weights have eight bits."""
        return self.packing in ("int-quantized", "float-quantized")

    @property
    def has_groups(self) -> bool:
        """Whether codes are integers by group, so that group size and format can be chosen."""
        return self.packing in FORMATS.values()

    @property
    def calibrates(self) -> bool:
        """Whether it looks at activations of a text."""
        return self.scaling != "none" or self.rounding != "nearest"

    @property
    def needs_exact_states(self) -> bool:
        """Whether it compares with hidden states of the model that is not quantized."""
        return self.scaling == "awq" or self.rounding != "nearest"

    @property
    def corrects_weights(self) -> bool:
        """Whether weights are corrected for the errors of their inputs before they are rounded."""
        return self.needs_exact_states and self.rounding != "learned"

    def uses(self, setting: str) -> bool:
        """Whether a setting of a recipe changes what it does; others have no conditions."""
        return {
            "group_size": self.has_groups,
            "act_order": self.rounding == "gptq",
            "damping": self.corrects_weights,
            "smoothing": self.scaling == "smoothquant",
            "steps": self.rounding == "learned",
            "seed": self.rounding == "learned",
        }.get(setting, True)


METHODS = {
    "rtn": Method("none", "nearest", "pack-quantized"),
    "awq": Method("awq", "nearest", "awq", symmetric=False),
    "gptq": Method("none", "gptq", "gptq"),
    "autoround": Method("none", "learned", "gptq"),
    "awq+gptq": Method("awq", "gptq", "awq", symmetric=False),
    "awq+autoround": Method("awq", "learned", "awq", symmetric=False),
    "int8": Method("none", "nearest", "int-quantized"),
    "smoothquant": Method("smoothquant", "nearest", "int-quantized"),
    "smoothquant+gptq": Method("smoothquant", "gptq", "int-quantized"),
    "fp8": Method("none", "nearest", "float-quantized"),
    "fp8+gptq": Method("none", "gptq", "float-quantized"),
    "nf4": Method("none", "nearest", "nf4"),
    "mxfp4": Method("none", "nearest", "mxfp4-pack-quantized"),
}
FORMATS: dict[str, Packing] = {
    "awq": "awq", "gptq": "gptq", "compressed-tensors": "pack-quantized",
}  # fmt: skip
_OWN_GROUPS: dict[Packing, int] = {"nf4": 64, "mxfp4-pack-quantized": 32}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """The settings of one run, by which a stopped one is known again.

    symmetric: None for the method's own. format: of `FORMATS`; None for the method's own. damping:
    share of the Hessian's mean diagonal that is added to it. smoothing: SmoothQuant's alpha.
    objective: what AWQ ranks scales by, the error of the block's output or of each linear layer's.
    rotate: whether hidden states and values are rotated first. double_quantization: whether NF4 has
    scales of 8 bits. weight_only: whether FP8 leaves activations in 16 bits.
    """

    method: str
    group_size: int = 128
    symmetric: bool | None = None
    format: str | None = None
    ignore: tuple[str, ...] = ()
    act_order: ActOrder = "static"
    damping: float = 0.01
    smoothing: float = 0.5
    steps: int = 400
    seed: int = 0
    objective: Literal["block", "linear"] = "block"
    rotate: bool = False
    double_quantization: bool = False
    weight_only: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        method = self.steps_of_method
        for name, known in (("format", (None, *FORMATS)), ("act_order", get_args(ActOrder))):
            if (value := getattr(self, name)) not in known:
                listed = ", ".join(filter(None, known))
                raise ConfigError(f"{name} must be one of {listed}, not {value!r}")
        if self.format is not None and not method.has_groups:
            raise ConfigError(f"format: method {self.method} has its own; leave it out")
        packing = self.packing
        if packing == "awq" and self.symmetric:
            raise ConfigError("symmetric: such codes are not in AWQ's format; use format='gptq'")
        if packing != "gptq" and self.act_order == "group":
            raise ConfigError("act_order 'group' is in GPTQ's format alone; use format='gptq'")
        if not method.has_groups and self.symmetric is False:
            raise ConfigError(f"symmetric is needed by method {self.method}; leave the option out")
        if self.double_quantization and packing != "nf4":
            raise ConfigError("double_quantization is for method nf4; leave the option out")
        if self.weight_only and packing != "float-quantized":
            raise ConfigError("weight_only is for methods fp8 and fp8+gptq; leave the option out")
        if not 0 < self.damping < 1:
            raise ConfigError(f"damping must be above 0 and below 1, not {self.damping}")
        if not 0 <= self.smoothing <= 1:
            raise ConfigError(f"smoothing must be between 0 and 1, not {self.smoothing}")
        if self.steps < 1:
            raise ConfigError(f"steps must be at least 1, not {self.steps}")
        if self.group_size != -1 and self.group_size < 1:
            raise ConfigError(f"group_size must be -1 or at least 1, not {self.group_size}")

    @property
    def steps_of_method(self) -> Method:
        """Its method. Raises ConfigError for an unknown one."""
        if self.method not in METHODS:
            known = ", ".join(METHODS)
            raise ConfigError(f"method must be one of {known}, not {self.method!r}")
        return METHODS[self.method]

    def check_uses(self, settings: Collection[str]) -> None:
        """Raise ConfigError for a setting that was given and that its method does not use."""
        method = self.steps_of_method
        unused = next((name for name in settings if not method.uses(name)), None)
        if unused is not None:
            using = [name for name, each in METHODS.items() if each.uses(unused)]
            raise ConfigError(
                f"{unused} does nothing with method {self.method}; leave it out, or take "
                f"{', '.join(using)}"
            )

    @property
    def packing(self) -> Packing:
        """The format in which weights are stored."""
        return METHODS[self.method].packing if self.format is None else FORMATS[self.format]

    def layout(self, dtype: str) -> CheckpointLayout:
        """The layout of its checkpoints. dtype: of the model."""
        method, packing = METHODS[self.method], self.packing
        bits = 8 if method.is_eight_bit else 4
        group = _OWN_GROUPS.get(packing, -1 if method.is_eight_bit else self.group_size)
        symmetric = self.symmetric
        if symmetric is None:
            symmetric = method.symmetric and packing != "awq"
        act_order: ActOrder = "off"
        if method.rounding == "gptq":
            act_order = "off" if group == -1 and self.act_order == "group" else self.act_order
        scale_dtype = "float16" if dtype == "float32" and bits == 4 else dtype
        return CheckpointLayout(
            packing, bits, group, symmetric, act_order, scale_dtype, self.double_quantization,
            self.weight_only,
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """Its settings as JSON has them."""
        return {**asdict(self), "ignore": list(self.ignore)}
