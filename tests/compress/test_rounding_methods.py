"""GPTQ, AWQ, SmoothQuant and learned rounding: each against what it has to be better than."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, SAMPLES, quantize, write_model

from quire.compress.block_error import BlockError
from quire.compress.clipping import clipped_scales
from quire.compress.code_grids import FloatGrid, IntegerGrid
from quire.compress.foldings import foldings
from quire.compress.hessian_rounding import HessianRounding
from quire.compress.input_statistics import (
    ExactLayer,
    InputStatistics,
    corrected,
    input_statistics,
)
from quire.compress.layer_rounding import grid_of
from quire.compress.layer_stream import LayerRunner
from quire.compress.learned_rounding import LearnedWeight, RoundingLearner, relative_error
from quire.compress.model_parts import ModelParts, linears_of, set_linear, set_weight, weight_of
from quire.compress.packing import gptq_tensors
from quire.compress.quantized_rows import IntegerCodes, nearest, nearest_fp8
from quire.compress.recipe import METHODS, Recipe
from quire.compress.verify_model import compare_models
from quire.kernels import reference
from quire.models.checkpoints.checkpoint import Checkpoint

CPU = torch.device("cpu")
GRIDS = [
    IntegerGrid(4, 32, True, "float16"),
    IntegerGrid(4, 32, False, "bfloat16"),
    IntegerGrid(4, -1, False, "float16"),
]
FP8_GRID = FloatGrid("bfloat16")


def weight_and_inputs() -> tuple[torch.Tensor, InputStatistics]:
    """A weight, and statistics of inputs that depend on each other, with some large ones."""
    drawn, n, k = torch.Generator().manual_seed(4), 48, 192
    x = torch.randn(512, 24, generator=drawn) @ torch.randn(24, k, generator=drawn)
    x = (x + torch.randn(512, k, generator=drawn)) * (torch.arange(k) % 17 == 0).float().add(0.1)
    stats = InputStatistics.empty(x)
    for piece in x.split(100):
        stats.add(piece)
    return torch.randn(n, k, generator=drawn), stats


def test_statistics_are_those_of_all_tokens_at_once() -> None:
    x = torch.randn(70, 8)
    stats = InputStatistics.empty(x)
    for piece in x.split(33):
        stats.add(piece)
    torch.testing.assert_close(stats.hessian, x.t() @ x / 70)
    torch.testing.assert_close(stats.magnitude, x.abs().mean(0))
    change = torch.randn(5, 8)
    expected = (change @ x.t()).square().sum(0).mean()
    assert stats.loss(change) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("packing", ["gptq", "awq", "compressed-tensors"])
def test_zero_points_are_those_that_readers_see(packing: str) -> None:
    """Groups of zeros, of positive, negative and mixed numbers; readers of GPTQ add 1."""
    recipe = Recipe(method="rtn", format=packing, symmetric=False, group_size=32)
    drawn = torch.rand(8, 32, generator=torch.Generator().manual_seed(3))
    weight = torch.cat([drawn * 0, drawn, -drawn, drawn - 0.5, drawn - 0.01], 1)
    rows = nearest(weight, grid_of(recipe.layout("bfloat16")))
    scale, zero = rows.scales.scale, rows.scales.zero
    assert (zero[:, 0] == 8).all()
    assert not rows.numbers()[:, :32].any()
    error = torch.unflatten(rows.numbers() - weight, 1, (-1, 32)).abs().amax(2)
    assert (error <= scale * 0.6).all()
    if packing == "gptq":
        stored = gptq_tensors(rows)["qzeros"][:, :, None] >> torch.arange(0, 32, 4) & 15
        assert torch.equal(stored.flatten(1).t() + 1, zero.int())


@pytest.mark.parametrize("grid", GRIDS, ids=["symmetric", "zeros", "channel"])
@pytest.mark.parametrize("act_order", ["off", "static", "group"])
def test_gptq_loses_less_than_rounding_to_nearest(grid: IntegerGrid, act_order: str) -> None:
    weight, stats = weight_and_inputs()
    plain = stats.loss(nearest(weight, grid).numbers() - weight)
    rows = HessianRounding(grid, act_order, 0.01)(weight, stats)
    assert stats.loss(rows.numbers() - weight) < 0.6 * plain


def test_gptq_of_floats_loses_less_than_rounding_them_to_nearest() -> None:
    weight, stats = weight_and_inputs()
    for act_order in ("off", "static"):
        rows = HessianRounding(FP8_GRID, act_order, 0.01)(weight, stats)
        assert stats.loss(rows.numbers() - weight) < 0.6 * stats.loss(
            nearest_fp8(weight, FP8_GRID).numbers() - weight
        )


def test_scales_of_floats_are_the_best_of_those_tried() -> None:
    weight, _ = weight_and_inputs()
    weight[3] = 0.0
    rows = nearest_fp8(weight, FP8_GRID)
    assert not rows.numbers()[3].any()
    scale = (weight.abs().amax(1, keepdim=True) / 448).clamp_min(1e-9).bfloat16().float()
    usual = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    error, plain = ((each - weight).square().sum(1) for each in (rows.numbers(), usual))
    assert (error <= plain).all()
    assert error.sum() < 0.95 * plain.sum()


def test_gptq_without_correlations_is_rounding_to_nearest() -> None:
    weight, _ = weight_and_inputs()
    stats = InputStatistics(torch.eye(192) * 3.0, torch.ones(192), torch.ones(192), 1)
    for grid in GRIDS:
        rows = HessianRounding(grid, "off", 0.01)(weight, stats)
        scales = clipped_scales(weight, stats.hessian, grid)
        assert torch.equal(rows.codes, nearest(weight, grid, scales).codes)
    floats = HessianRounding(FP8_GRID, "off", 0.01)(weight, stats)
    assert torch.equal(floats.numbers(), nearest_fp8(weight, FP8_GRID).numbers())


def test_gptq_takes_inputs_that_are_always_zero() -> None:
    weight, stats = weight_and_inputs()
    stats.hessian[5] = stats.hessian[:, 5] = 0.0
    rows = HessianRounding(GRIDS[0], "static", 0.01)(weight, stats)
    assert rows.numbers().isfinite().all()


@pytest.mark.parametrize("act_order", ["off", "static", "group"])
def test_gptq_cuts_groups_off_where_that_loses_less(
    act_order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, stats = weight_and_inputs()
    weight[:, ::40] *= 3
    rounding = HessianRounding(GRIDS[0], act_order, 0.01)
    clipped = stats.loss(rounding(weight, stats).numbers() - weight)
    monkeypatch.setattr("quire.compress.clipping._FACTORS", (1.0,))
    assert clipped < 0.97 * stats.loss(rounding(weight, stats).numbers() - weight)


def test_four_symmetric_bits_use_all_codes() -> None:
    """The larger extreme of a group has code 0, whatever its sign, and is exact."""
    grid = IntegerGrid(4, 32, True, "float16")
    weight = torch.linspace(-1, 0.75, 32).repeat(2, 1) * torch.tensor([[1.0], [-1.0]])
    rows = nearest(weight, grid)
    assert rows.scales.scale.sign().flatten().tolist() == [1.0, -1.0]
    assert (rows.codes[:, 0] == 0).all()
    assert torch.equal(rows.numbers()[:, 0], weight[:, 0])
    assert rows.codes.amax() == 14
    assert (rows.numbers() - weight).abs().amax() <= 1 / 16 + 1e-6


@pytest.mark.parametrize("grid", GRIDS, ids=["symmetric", "zeros", "channel"])
def test_clipping_never_loses_more(grid: IntegerGrid) -> None:
    """Of uncorrelated inputs: groups are clipped for themselves."""
    weight, stats = weight_and_inputs()
    weight[:, ::40] *= 6
    stats.hessian = torch.diag(stats.hessian.diagonal())
    clipped = nearest(weight, grid, clipped_scales(weight, stats.hessian, grid)).numbers()
    assert stats.loss(clipped - weight) < stats.loss(nearest(weight, grid).numbers() - weight)


def test_each_side_has_a_clipping_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, stats = weight_and_inputs()
    weight[:, ::40] = weight[:, ::40].abs() * 2
    stats.hessian = torch.diag(stats.hessian.diagonal())

    def loss() -> float:
        scales = clipped_scales(weight, stats.hessian, GRIDS[1])
        return stats.loss(nearest(weight, GRIDS[1], scales).numbers() - weight)

    separate = loss()
    monkeypatch.setattr("quire.compress.clipping._MOST_DIFFERENCE", 0.0)
    assert separate < 0.95 * loss()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_moved_scales_leave_the_layers_results(tmp_path: Path, family: str) -> None:
    """In any family: GQA, biases, norms of 1 + w, fused weights."""
    write_model(tmp_path, family)
    parts = ModelParts(tmp_path, CPU)
    hidden = parts.embed(SAMPLES.calibration[:1])[0]
    layer, run = parts.layer(0), LayerRunner(parts, 0, len(hidden))
    before, spec = run(layer, hidden), parts.spec.layers[0]
    moved = foldings(spec, linears_of(layer))
    assert len(moved) == 4
    for folding in moved:
        drawn = torch.Generator().manual_seed(9)
        scale = torch.rand(folding.linear.k, generator=drawn) * 3 + 0.2
        folding.apply(layer, folding.shared(scale), torch.bfloat16)
    torch.testing.assert_close(run(layer, hidden), before, atol=1e-4, rtol=1e-3)


def test_weights_are_corrected_for_inputs_with_errors() -> None:
    """Half of what would undo an error that is linear; nothing where there is none."""
    drawn = torch.Generator().manual_seed(5)
    weight, x = (torch.randn(n, 16, generator=drawn) for n in (6, 300))
    stats = InputStatistics.empty(x)
    for piece in x.split(90):
        stats.add(piece, piece * 1.2)
    torch.testing.assert_close(corrected(weight, stats, 1e-6), weight * 1.1, atol=1e-4, rtol=1e-4)
    stats.errors = None
    assert corrected(weight, stats, 1e-6) is weight


@torch.no_grad()
def test_learned_rounding_is_for_half_corrected_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of a later layer have errors, and its targets are half the way to the exact ones."""
    seen, learn = list[tuple[list[torch.Tensor], list[torch.Tensor]]](), RoundingLearner.learn

    def noted(
        self: RoundingLearner, inputs: list[torch.Tensor], targets: list[torch.Tensor], *rest: int
    ) -> object:
        seen.append((inputs, targets))
        return learn(self, inputs, targets, *rest)

    monkeypatch.setattr(RoundingLearner, "learn", noted)
    write_model(tmp_path / "base")
    recipe = Recipe(method="autoround", group_size=32, steps=2)
    quantize(tmp_path / "base", tmp_path / "out", recipe)
    parts, exact = ModelParts(tmp_path / "base", CPU), seen[0][0]
    for index, (inputs, targets) in enumerate(seen):
        layer, run = parts.layer(index), LayerRunner(parts, index, 48)
        own, exact = run.each(layer, inputs), run.each(layer, exact)
        assert torch.equal(own[0], exact[0]) == (index == 0)
        torch.testing.assert_close(targets[0], (own[0] + exact[0]) / 2)
    assert len(seen) > 1


@torch.no_grad()
def test_errors_of_inputs_are_those_from_the_exact_layer(tmp_path: Path) -> None:
    write_model(tmp_path)
    parts, name = ModelParts(tmp_path, CPU), "mlp.down_proj"
    layer, exact, run = parts.layer(0), parts.layer(0), LayerRunner(parts, 0, 48)
    inputs = parts.embed(SAMPLES.calibration)
    same = input_statistics(layer, run, inputs, [name], ExactLayer(exact, inputs))[name]
    assert same.errors is not None
    assert not same.errors.any()
    weight_of(linears_of(layer)["mlp.gate_up_proj"]).mul_(0.5)
    changed = input_statistics(layer, run, inputs, [name], ExactLayer(exact, inputs))[name]
    assert changed.errors is not None
    assert changed.errors.diagonal().sum() > 0.0


@torch.no_grad()
def test_learned_rounding_comes_closer_to_the_layers_results(tmp_path: Path) -> None:
    """Closer than each weight for itself by GPTQ, as the layer's output is what is learned."""
    write_model(tmp_path)
    parts, grid = ModelParts(tmp_path, CPU), IntegerGrid(4, 32, False, "bfloat16")
    layer, inputs = parts.layer(0), parts.embed(SAMPLES.calibration)
    run, linears = LayerRunner(parts, 0, 48), linears_of(layer)
    targets, known = run.each(layer, inputs), input_statistics(layer, run, inputs, linears)
    weights = {name: weight_of(linear) for name, linear in linears.items()}
    scales = {name: clipped_scales(w, known[name].hessian, grid) for name, w in weights.items()}

    def error(codes: dict[str, IntegerCodes]) -> float:
        for name, rows in codes.items():
            set_weight(linears[name], rows.numbers())
        states = torch.stack(run.each(layer, inputs))
        return float(relative_error(states, torch.stack(targets), 1e-6))

    gptq = HessianRounding(grid, "static", 0.01)
    plain = error({name: nearest(w, grid, scales[name]) for name, w in weights.items()})
    compensated = error({name: gptq(w.clone(), known[name]) for name, w in weights.items()})
    learner = RoundingLearner(layer, run, grid, scales)
    learned = learner.learn(inputs, targets, 200, 0)
    for linear in linears.values():
        set_linear(linear, reference.linear)
    assert error(learned) < 0.9 * compensated < 0.9 * plain


def test_weights_next_to_a_code_are_fixed_first_and_stay() -> None:
    weight, grid = weight_and_inputs()[0], GRIDS[1]
    learned = LearnedWeight(grid, weight, grid.scales_of(weight))
    before = learned.values.detach().clone()
    distance = (before - before.round()).abs()
    learned.fix(0.25)
    is_fixed = learned.values == learned.values.round()
    assert is_fixed.float().mean() == pytest.approx(0.25, abs=0.02)
    assert distance[is_fixed].amax() <= distance[~is_fixed].amin()
    assert torch.equal(learned.values[~is_fixed], before[~is_fixed])
    learned.values.data += 0.3
    learned.fix(0.5)
    assert torch.equal(learned.values[is_fixed], before.round()[is_fixed])
    learned.fix(1.0)
    assert torch.equal(learned.codes().numbers(), learned.numbers())


def test_each_tokens_error_is_relative_to_its_target() -> None:
    target = torch.tensor([[1.0, -1.0], [100.0, 100.0], [0.0, 0.0]])
    states = target * 1.1 + torch.tensor([[0.0], [0.0], [0.001]])
    expected = 0.02 + 0.02 + 2e-6 / 1e-6
    assert float(relative_error(states, target, 1e-6)) == pytest.approx(expected, rel=1e-3)


@torch.no_grad()
def test_a_blocks_error_is_that_of_its_output(tmp_path: Path) -> None:
    """Of attention for q, k and v; none for the weight as it is, which stays in its place."""
    write_model(tmp_path)
    parts = ModelParts(tmp_path, CPU)
    layer, run = parts.layer(0), LayerRunner(parts, 0, 48)
    inputs, linears = parts.embed(SAMPLES.calibration), linears_of(layer)
    linear, last = linears["self_attn.qkv_proj"], linears["self_attn.o_proj"]
    error = BlockError(layer, run, inputs, linear, last)
    weight = weight_of(linear)
    assert error(weight) == 0.0
    queries, values = weight.clone(), weight.clone()
    queries[:64] *= 1.1
    values[-32:] *= 1.1
    assert error(queries) > 0.0
    assert error(weight + (values - weight) / 2) == pytest.approx(error(values) / 4, rel=1e-3)
    assert weight_of(linear) is weight


def test_statistics_stop_at_the_last_wanted_input(tmp_path: Path) -> None:
    write_model(tmp_path)
    parts = ModelParts(tmp_path, CPU)
    layer, run = parts.layer(0), LayerRunner(parts, 0, 48)
    inputs = parts.embed(SAMPLES.calibration)
    names = ["self_attn.qkv_proj", "self_attn.o_proj"]
    found = input_statistics(layer, run, inputs, names)
    assert list(found) == names
    assert {stats.tokens for stats in found.values()} == {8 * 48}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_a_checkpoint(tmp_path: Path, method: str) -> None:
    """Gemma 2's layers have all that there is: norms of 1 + w, GQA, norms after, soft caps."""
    write_model(tmp_path / "base", "gemma2")
    recipe = Recipe(method=method, group_size=32, steps=3)
    quantize(tmp_path / "base", tmp_path / "out", recipe)
    pair = ModelParts(tmp_path / "base", CPU), ModelParts(tmp_path / "out", CPU)
    report = compare_models(*pair, SAMPLES.verification, [], lambda *_: None)
    assert report["hidden_cosine"]["mean"] > (0.99 if METHODS[method].is_eight_bit else 0.9)
    stored = Checkpoint.open(tmp_path / "out").entries
    plain = Checkpoint.open(tmp_path / "base").entries
    assert all(stored[name].dtype == plain[name].dtype for name in plain if "norm" in name)


@pytest.mark.parametrize(("method", "wanted"), [("awq+gptq", True), ("smoothquant+gptq", False)])
def test_four_bits_alone_are_searched_for_in_tf32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, wanted: bool
) -> None:
    seen, gptq = list[bool](), HessianRounding.__call__

    def noted(self: HessianRounding, *args: object) -> object:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return gptq(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(HessianRounding, "__call__", noted)
    write_model(tmp_path / "base")
    quantize(tmp_path / "base", tmp_path / "out", Recipe(method=method, group_size=32))
    assert set(seen) == {wanted}
    assert not torch.backends.cuda.matmul.allow_tf32


def test_groups_in_order_of_activations_are_stored(tmp_path: Path) -> None:
    write_model(tmp_path / "base")
    recipe = Recipe(method="gptq", group_size=32, act_order="group")
    quantize(tmp_path / "base", tmp_path / "out", recipe)
    checkpoint = Checkpoint.open(tmp_path / "out")
    wanted = {name for name in checkpoint.entries if name.endswith(".g_idx")}
    assert len(wanted) == 14
    for _, tensor in checkpoint.tensors(wanted):
        assert torch.bincount(tensor).tolist() == [32] * (len(tensor) // 32)


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8+gptq"])
def test_corrected_weights_come_closer_to_the_base_model(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "base")

    def divergence(out: Path) -> float:
        quantize(tmp_path / "base", out, Recipe(method=method, group_size=32))
        pair = ModelParts(tmp_path / "base", CPU), ModelParts(out, CPU)
        report = compare_models(*pair, SAMPLES.calibration, [], lambda *_: None)
        return float(report["kl_divergence"]["mean"])

    with_correction = divergence(tmp_path / "corrected")
    monkeypatch.setattr("quire.compress.input_statistics._SHARE", 0.0)
    assert with_correction < 0.8 * divergence(tmp_path / "plain")
