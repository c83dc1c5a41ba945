"""`quire serve --dry-run`: what the models would take in memory, as a table or as JSON."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from quire.config import EngineConfig
from quire.engine.processes.fleet_memory import limit_problems
from quire.engine.processes.fleet_model import ModelSpec
from quire.engine.startup.device_policy import device_type
from quire.engine.startup.footprint import BASE_BYTES, Footprint
from quire.engine.startup.machine_limits import available_bytes, check_threads
from quire.engine.startup.memory_plan import CONTEXT_BYTES, DeviceMemory, MemoryPlan, plan_memory
from quire.engine.startup.resolved_config import check_start
from quire.errors import ConfigError, UserError
from quire.tokenizer.load_tokenizer import load_tokenizer

_GIB = 2**30
_LEAST_FOR_REASONS = 28  # columns, with the space between all


def dry_run(
    models: Sequence[ModelSpec],
    args: Namespace,
    in_flags: Callable[[str], str],
    limit: int | None = None,
) -> int:
    """Plan each model as if it were alone; returns the exit status, 1 if one does not fit.

    args: may have gpu_memory_gib, of a GPU that need not be there. in_flags: `CommandParser`'s.
    limit: model_memory_bytes, which are shared. Raises ConfigError or CheckpointError, with the
    errors of all models that are wrong.
    """
    gpu_memory_gib: float | None = vars(args).get("gpu_memory_gib")
    plans, errors = list[MemoryPlan](), list[UserError]()
    for model in models:
        try:
            plans.append(_plan(model, gpu_memory_gib, limit))
        except UserError as error:
            errors.append(error)
    if errors:
        errors[0].args = ("\nerror: ".join(map(str, errors)),)
        raise errors[0]
    if limit is not None:
        sizes = [
            Footprint(weights=sum(plan.weights.values()), kv_cache=plan.kv_cache) for plan in plans
        ]
        problems = limit_problems(list(zip(models, sizes, strict=True)), limit)
        plans = [
            replace(plan, problem=plan.problem or problems.get(model.name))
            for model, plan in zip(models, plans, strict=True)
        ]
    if args.json:
        print(json.dumps([plan.as_json() for plan in plans], indent=1))
    else:
        console = Console(highlight=False)
        for plan in plans:
            show(plan, console, in_flags)
    return int(any(plan.problem for plan in plans))


def _plan(model: ModelSpec, gib: float | None, limit: int | None = None) -> MemoryPlan:
    """The plan of a model. Raises what a start would that reads no weights, in the same order.

    gib: memory of a GPU that need not be there. limit: of all models.
    """
    config = model.config
    try:
        check_start(config, device_type(config) if gib is None else "cuda")
        memory = device_memory(config, gib)
        if memory.device == "cpu" and config.device.threads is not None:  # it is that of this one
            check_threads(config.device.threads)
        plan = plan_memory(config, memory, limit)
        load_tokenizer(config)
    except UserError as error:
        raise model.explain(error) from error
    return plan


def device_memory(config: EngineConfig, gpu_memory_gib: float | None) -> DeviceMemory:
    """The memory to plan for, read from the device unless it is given. Raises ConfigError."""
    wanted = config.device.device
    if gpu_memory_gib is not None:
        if wanted == "cpu":
            raise ConfigError("gpu_memory_gib is for GPUs, but device is 'cpu'; set one of them")
        if not 0.0 < gpu_memory_gib < 2**20:
            raise ConfigError(f"gpu_memory_gib must be > 0, not {gpu_memory_gib}")
        total = int(gpu_memory_gib * _GIB)
        return DeviceMemory("cuda", total, total, CONTEXT_BYTES)
    if device_type(config) == "cuda":
        import torch

        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            return DeviceMemory("cuda", total, free)
        if wanted == "cuda":
            raise ConfigError(
                "device is 'cuda', but PyTorch finds no GPU; set gpu_memory_gib to plan for one"
            )
    available = available_bytes()
    return DeviceMemory("cpu", available, available, BASE_BYTES)


def show(plan: MemoryPlan, console: Console, in_flags: Callable[[str], str]) -> None:
    """Print the memory plan of one model."""
    console.print(f"{plan.model} on {plan.device}, {_gib(plan.total)}", style="bold")
    console.print(_table(plan, console))
    if plan.problem is not None:
        console.print(f"  it does not fit: {in_flags(plan.problem)}\n", soft_wrap=True)
        return
    fits = ", ".join(f"{count:,} of {length:,}" for length, count in plan.at_once().items())
    console.print(f"  context  {plan.max_model_len:,} tokens a request (max_model_len)")
    console.print(f"  at once  {fits} tokens\n", soft_wrap=True)


def _table(plan: MemoryPlan, console: Console) -> Table:
    """The bytes by purpose. With few columns in the terminal, lines are broken and no digit cut."""
    rows = [(name, f"{size:,}", _gib(size), why) for name, size, why in _rows(plan)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    console.width = max(console.width, sum(widths) + _LEAST_FOR_REASONS)
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("memory for", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("because of", style="dim", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _rows(plan: MemoryPlan) -> list[tuple[str, int, str]]:
    taken, reserve = plan.total - plan.free, plan.total - plan.budget
    rows = [
        ("others", taken, "what is in use already"),
        ("process", plan.context, "CUDA" if plan.device == "cuda" else "Python, PyTorch"),
        *((f"weights, {name}", size, "") for name, size in plan.weights.items()),
        ("activations", plan.activations, f"{plan.max_num_batched_tokens:,} tokens a step"),
        ("logits", plan.logits, f"{plan.max_num_seqs:,} requests"),
        ("graphs", plan.graphs, "recorded steps"),
        ("workspace", plan.workspace, "kernels' code, scratch"),
    ]
    shown = [row for row in rows if row[1]]
    shown.append(("KV cache", plan.kv_cache, f"{plan.num_blocks:,} blocks of {plan.block_size}"))
    left = plan.budget - taken - plan.fixed - plan.kv_cache
    shown.append(("left", left, "missing" if left < 0 else ""))
    return [*shown, ("kept free", reserve, "gpu_memory_utilization")] if reserve else shown


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.2f} GiB"
