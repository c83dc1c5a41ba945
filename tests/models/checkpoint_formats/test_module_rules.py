"""Which modules a config file's lists and patterns name: as the libraries that own them have it.

What is expected is what compressed-tensors 0.19, AutoRound 0.15, GPTQModel 7.7 and transformers 5
answer; their functions agree with Quire's on random lists of these patterns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.config_file import ConfigFile
from quire.models.checkpoint_formats.config_readers import READERS

UP, DOWN = "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"
DOWN_10 = "model.layers.10.mlp.down_proj"
BASE: dict[str, dict[str, Any]] = {
    "auto-round": {"bits": 4, "group_size": 128},
    "awq": {"bits": 4, "group_size": 128},
    "gptq": {"bits": 4, "group_size": 128},
    "fp8": {},
    "bitsandbytes": {"load_in_8bit": True},
}


def stored(method: str, settings: dict[str, Any], module: str) -> Any:
    values = {"quant_method": method, **BASE.get(method, {}), **settings}
    return READERS[method](ConfigFile(Path("config.json"), values)).stored_linear(module)


def groups(*targets: list[str], **settings: Any) -> dict[str, Any]:
    """compressed-tensors' config with a group of 32 inputs, one of 64, ..."""
    weights = {"num_bits": 4, "strategy": "group"}
    found = {
        f"group_{index}": {"targets": own, "weights": weights | {"group_size": 32 << index}}
        for index, own in enumerate(targets)
    }
    return {"format": "pack-quantized", "config_groups": found, **settings}


@pytest.mark.parametrize(
    ("settings", "module", "group"),
    [
        (groups(["re:.*proj"], [DOWN]), DOWN, 64),  # a name before patterns
        (groups(["re:.*proj"], [DOWN]), UP, 32),
        (groups(["re:.*proj"], ["re:.*down"]), DOWN, 64),  # patterns in alphabetical order
        (groups(["Linear"], ["re:.*down.*"]), DOWN, 64),  # patterns before classes
        (groups(["down_proj"], ["Linear"]), DOWN, 64),  # whole names alone
        (groups(["Linear"], ignore=["down_proj"]), DOWN, 32),
        (groups(["Linear"], ignore=["re:.*down_proj"]), DOWN, None),
        (groups(["Linear"], ignore=["Linear"]), DOWN, None),
        (groups(["re:model.layers.1"]), DOWN_10, 32),  # of the beginning of a name
        (groups([UP]), DOWN, None),
        # a model that was saved without a head, whose names lack a part
        (groups(["Linear"], ignore=["layers.1.mlp.down_proj"]), DOWN, None),
        (groups(["Linear"], ignore=["layers.1.mlp.down_proj"]), DOWN_10, 32),
        (groups(["Linear"], ignore=["re:layers.*down"]), DOWN, None),
        (groups(["Linear"], ["layers.1.mlp.up_proj"]), UP, 64),
    ],
    ids=range(14),
)
def test_targets(settings: dict[str, Any], module: str, group: int | None) -> None:
    found = stored("compressed-tensors", settings, module)
    assert (None if found is None else found.group) == group


@pytest.mark.parametrize(
    ("method", "rules", "module", "expected"),
    [
        ("gptq", {"-:.*down": {"bits": 16}, ".*": {"bits": 8}}, DOWN, None),  # first that matches
        ("gptq", {".*": {"bits": 8}, "-:.*down": {}}, DOWN, (8, 128)),
        ("gptq", {"+:down": {"bits": 8}}, DOWN, (4, 128)),  # of the beginning of a name
        ("gptq", {".*": {"bits": 8}}, "lm_head", None),  # only by its own setting
        ("auto-round", {".*mlp": {"bits": 16}, DOWN: {"bits": 8}}, DOWN, (8, 128)),  # a name first
        ("auto-round", {"down": {"bits": 16}}, DOWN, None),  # any part of a name
        ("auto-round", {"down": {"group_size": 64}}, UP, (4, 128)),
        ("auto-round", {r"layers\.1\.": {"bits": 16}}, DOWN_10, (4, 128)),
        ("auto-round", {".*": {"bits": 8}}, "lm_head", None),
        ("auto-round", {"lm_head": {"bits": 8}}, "lm_head", (8, 128)),
        ("auto-round", {"(?i)DOWN": {"bits": 16}}, DOWN, None),
        ("gptq", {"-:(?i).*DOWN": {}}, DOWN, None),
        # a model that was saved without a head, whose names lack a part
        ("gptq", {r"-:^layers\.1\.mlp\.down_proj$": {}}, DOWN, None),
        ("gptq", {r"-:^layers\.1\.mlp\.down_proj$": {}, ".*": {"bits": 8}}, UP, (8, 128)),
    ],
    ids=range(14),
)
def test_rules(
    method: str, rules: dict[str, Any], module: str, expected: tuple[int, int] | None
) -> None:
    key = "dynamic" if method == "gptq" else "extra_config"
    found = stored(method, {key: rules}, module)
    assert (None if found is None else (found.bits, found.group)) == expected


@pytest.mark.parametrize("method", ["awq", "bitsandbytes", "fp8"])
@pytest.mark.parametrize(
    ("listed", "module", "is_stored"),
    [
        ("down_proj", DOWN, False),
        ("mlp", DOWN, False),
        ("proj", DOWN, False),  # an end of the name
        ("model.layers.1", DOWN, False),
        ("model.layers.1", DOWN_10, True),
        (r"model\.layers\.\d+\.mlp", DOWN_10, False),
        (r".*\.(up|down)_proj", DOWN, False),
        (".*layers.1", DOWN_10, True),
        (".*mlp.down", DOWN, True),
        ("(?i).*MLP.DOWN_PROJ", DOWN, False),
        ("layers.1.mlp", DOWN, False),  # of a model that was saved without a head
        ("*.down_proj", DOWN, True),  # no regular expression
        ("", DOWN, True),
    ],
    ids=range(13),
)
def test_modules_that_are_skipped(method: str, listed: str, module: str, is_stored: bool) -> None:
    key = "llm_int8_skip_modules" if method == "bitsandbytes" else "modules_to_not_convert"
    assert (stored(method, {key: [listed]}, module) is not None) == is_stored
