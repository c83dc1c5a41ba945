"""Which weights get which form, and what a form takes in memory."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch

from quire.config import EngineConfig, ModelSettings
from quire.errors import ConfigError
from quire.kernels.cpu import native
from quire.kernels.dispatch import kernels_for
from quire.quantization import int4
from quire.quantization.scheme import SCHEMES, Role, Scheme, check_device, scheme_of


def test_the_setting_names_the_schemes_that_there_are() -> None:
    assert get_args(get_type_hints(ModelSettings)["quantization"]) == ("none", *SCHEMES)


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="quantization is 'fp7'; give one of none, fp8, int8, int4"
    ):
        EngineConfig.from_options(quantization="fp7")
    with pytest.raises(ConfigError, match="quantization is 'fp7'; give one of none, fp8"):
        scheme_of("fp7")


def test_roles_without_a_form_are_left_alone() -> None:
    scheme = Scheme("invented", {"layer": "fp8"})
    assert scheme.form("layer", 5) is not None
    assert scheme.form("head", 5) is None
    assert scheme.form_name("head", 5, "bfloat16") == "bfloat16"
    assert scheme.weight_bytes("head", 3, 5, 2) == 30


def test_a_device_without_kernels_for_a_scheme_is_told() -> None:
    for name in ("none", "fp8", "int8", "int4"):
        check_device(name, "cpu")
    check_device("fp8", "cuda")
    with pytest.raises(
        ConfigError, match=r"'int4', which runs on cpu alone.*give quantization fp8"
    ):
        check_device("int4", "cuda")


@pytest.mark.parametrize("k", [128, 77], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: scheme.name)
def test_a_weight_takes_the_bytes_that_were_told(scheme: Scheme, k: int) -> None:
    """Without compiled kernels four bits take less: they have no scale for each output."""
    weight = torch.randn(64, k, dtype=torch.bfloat16)
    roles: tuple[Role, ...] = ("layer", "head")
    for role in roles:
        form = scheme.form(role, k)
        assert form is not None
        kept = form.make(weight, kernels_for("cpu"))
        assert len(kept) == len(form.names)
        told = scheme.weight_bytes(role, 64, k, weight.itemsize)
        spare = 4 * 64 if form is int4.FORM and native.library() is None else 0
        assert told - spare == sum(tensor.nbytes for tensor in kept)
