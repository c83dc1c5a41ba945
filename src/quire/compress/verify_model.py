"""Runs a base model and its quantized copy side by side, layer by layer, and measures the loss.

In memory at any time: the hidden states of the text in both, and one decoder layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire.compress.layer_stream import LayerRunner, Notify
from quire.compress.model_parts import ModelParts
from quire.compress.quality_metrics import (
    AnswerMetrics,
    cosine_similarity,
    finite,
    pooled_cosine_similarity,
)
from quire.compress.task_answers import Task, count_right
from quire.compress.text_samples import Windows
from quire.errors import CheckpointError
from quire.models.config.pooling_config import read_pooling


@torch.no_grad()
def compare_models(
    base: ModelParts, quantized: ModelParts, windows: Windows, tasks: list[Task], notify: Notify
) -> dict[str, Any]:
    """The figures of a quality report of models with the same layers.

    tasks: questions with right answers, perhaps none.
    """
    assert base.spec == quantized.spec
    samples = [*windows, *(task.ids for task in tasks)]
    states = [parts.embed(samples) for parts in (base, quantized)]
    layers, length, found = [], max(map(len, samples)), dict[str, Any]()
    for index in range(len(base.spec.layers)):
        notify("verifying", index, len(base.spec.layers))
        states = [
            finite(_after_layer(parts, index, own, length), f"layer {index}", found)
            for parts, own in zip((base, quantized), states, strict=True)
        ]
        layers.append(cosine_similarity(*(own[: len(windows)] for own in states)))
    notify("verifying", len(base.spec.layers), len(base.spec.layers))
    found["layers"] = layers
    return _finals(found, base, quantized, samples, states, tasks)


def _after_layer(parts: ModelParts, index: int, states: list[Tensor], length: int) -> list[Tensor]:
    layer, run = parts.layer(index), LayerRunner(parts, index, length)
    return run.each(layer, states)


def _pooled(parts: ModelParts, base: list[Tensor], quantized: list[Tensor]) -> dict[str, Any]:
    """The figure of embeddings; none for a model whose pooling is not known or not supported."""
    try:
        pooling = read_pooling(parts.checkpoint.folder, "auto", parts.spec.hidden_size).pooling
    except CheckpointError:  # it can answer, or be served with another pooling
        return {}
    return {"pooled_cosine": pooled_cosine_similarity(base, quantized, pooling)}


def _finals(
    found: dict[str, Any],
    base: ModelParts,
    quantized: ModelParts,
    samples: Windows,
    states: list[list[Tensor]],
    tasks: list[Task],
) -> dict[str, Any]:
    """The figures found, those after the last norm, and of logits where the model has a head."""
    count = len(samples) - len(tasks)
    finals = [
        finite([parts.final_norm()(each) for each in own], "the last norm", found)
        for parts, own in zip((base, quantized), states, strict=True)
    ]
    windows = [own[:count] for own in finals]
    found |= {
        "windows": count,
        "tokens": sum(map(len, samples[:count])),
        "hidden_cosine": cosine_similarity(*windows),
        **_pooled(base, *windows),
        "bytes": {"base": base.num_bytes, "quantized": quantized.num_bytes},
    }
    heads = base.head(), quantized.head()
    if heads[0] is None or heads[1] is None:
        return found
    metrics = AnswerMetrics()
    for ids, *pair in zip(samples[:count], *windows, strict=True):
        logits = [head(own) for head, own in zip(heads, pair, strict=True) if head]
        metrics.add(ids, *finite(logits, "the head", found))
    right = [
        count_right(tasks, [own.argmax(-1) for own in map(head, each[count:])])
        for head, each in zip(heads, finals, strict=True)
        if head is not None
    ]
    answers = {"count": len(tasks), "right_base": right[0], "right_quantized": right[1]}
    return {**found, **metrics.report(), **({"tasks": answers} if tasks else {})}
