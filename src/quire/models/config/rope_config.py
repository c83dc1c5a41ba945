"""Rotary embedding as a checkpoint's config file describes it. No torch; no angles here."""

from __future__ import annotations

from typing import Any

from quire.config_file import ConfigFile
from quire.core.rope_settings import ROPE_KINDS, RopeSettings
from quire.models.families.family import Family


def read_rope(config: ConfigFile, family: Family, head_dim: int) -> RopeSettings:
    """Read transformers 5's `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

    Raises CheckpointError for a kind that is not known, and for what that kind lacks.
    """
    rope = _section(config)
    kind = _kind(config, rope, family)
    top = rope if rope.get("rope_theta") is not None else config
    theta = top.number("rope_theta")
    if theta <= 1.0:  # whose logarithm, by which YaRN divides, is 0 or less
        raise top.wrong("rope_theta", f"must be above 1, not {theta}")
    rotary_dim = _rotary_dim(config, rope, family, head_dim)
    max_position = config.integer("max_position_embeddings")
    common: dict[str, Any] = {
        "kind": kind,
        "theta": theta,
        "rotary_dim": rotary_dim,
        "max_position": max_position,
    }
    return RopeSettings(**common, **_specific(config, rope, kind, rotary_dim, max_position))


def _rotary_dim(config: ConfigFile, rope: ConfigFile, family: Family, head_dim: int) -> int:
    """Dimensions of a head that are rotated."""
    key = "partial_rotary_factor"
    part = rope if rope.get(key) is not None else config
    share = part.number(key, 1.0)
    if share != 1.0 and not family.has_partial_rotary:
        raise part.wrong(
            key, f"rotates {int(head_dim * share)} of {head_dim} dimensions, but layers of "
            f"{family.name} rotate all (transformers ignores the key, or fails); remove it, or "
            "take another model"
        )  # fmt: skip
    if share == 1.0 and head_dim % 2:
        raise config.wrong("head_dim", f"is {head_dim}, which is odd; take another model")
    rotary_dim = int(head_dim * share)
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise part.wrong(
            key, f"rotates {rotary_dim} of {head_dim} dimensions; set a factor that makes an even "
            "number of them"
        )  # fmt: skip
    return rotary_dim


def _section(config: ConfigFile) -> ConfigFile:
    """The object with the settings. Raises CheckpointError for two that disagree."""
    new, old = config.section("rope_parameters"), config.section("rope_scaling")
    if new is None or old is None:
        return new or old or config
    for key, value in old.values.items():
        if new.get(key) != value and (key, new.get("rope_type")) != ("type", value):
            raise old.wrong(
                key, f"is {value!r}, but that of rope_parameters is {new.get(key)!r}; put all "
                "settings into rope_parameters, and remove rope_scaling"
            )  # fmt: skip
    return new


def _kind(config: ConfigFile, rope: ConfigFile, family: Family) -> str:
    if rope is config:
        return "default"
    inner = next((key for key, value in rope.values.items() if isinstance(value, dict)), None)
    if inner is not None:  # of one type of layers, as in Gemma 3
        raise rope.wrong(
            inner, "has settings of its own, but all layers share one rotary embedding here; take "
            "another model"
        )  # fmt: skip
    kind = rope.text("rope_type", rope.text("type", "default"))
    kind = family.rope_kinds.get(kind, kind)
    if kind not in ROPE_KINDS:
        raise rope.wrong("rope_type", f"is {kind!r}; supported are {', '.join(ROPE_KINDS)}")
    return kind


def _specific(
    config: ConfigFile, rope: ConfigFile, kind: str, rotary_dim: int, max_position: int
) -> dict[str, Any]:
    """The fields that one kind needs beyond the common ones."""
    found: dict[str, Any] = {"original_max_position": max_position}
    if kind in ("linear", "dynamic", "llama3"):
        found["factor"] = rope.number("factor")
    if kind in ("llama3", "yarn", "longrope"):
        found["original_max_position"] = _original(config, rope, max_position)
    if kind == "llama3":
        found["low_freq_factor"] = rope.number("low_freq_factor")
        found["high_freq_factor"] = rope.number("high_freq_factor")
        if found["low_freq_factor"] == found["high_freq_factor"]:
            raise rope.wrong("high_freq_factor", "equals low_freq_factor; they must differ")
    if kind == "dynamic" and rotary_dim < 4:
        raise rope.wrong("rope_type", "is 'dynamic', which needs at least 4 rotary dimensions")
    if kind in ("yarn", "longrope"):
        found["factor"] = _optional(rope, "factor")
        found["attention_factor"] = _optional(rope, "attention_factor")
    if kind == "yarn":
        for key in ("mscale", "mscale_all_dim"):
            found[key] = _unless_zero(rope, key)
        found["beta_fast"] = _unless_zero(rope, "beta_fast") or 32.0
        found["beta_slow"] = _unless_zero(rope, "beta_slow") or 1.0
        found["truncate"] = rope.boolean("truncate", True)
    if kind == "longrope":
        found["short_factor"] = rope.numbers("short_factor", rotary_dim // 2)
        found["long_factor"] = rope.numbers("long_factor", rotary_dim // 2)
    return found


def _original(config: ConfigFile, rope: ConfigFile, max_position: int) -> int:
    """The trained context; a value beside the rope section wins, as in transformers."""
    key = "original_max_position_embeddings"
    return config.integer(key, rope.integer(key, max_position, low=2), low=2)


def _unless_zero(rope: ConfigFile, key: str) -> float | None:
    """A number above 0; a 0 means that there is none, as in transformers."""
    return None if rope.get(key) == 0 else _optional(rope, key)


def _optional(rope: ConfigFile, key: str) -> float | None:
    return None if rope.get(key) is None else rope.number(key)
