"""Owns the optimizer: Muon for matrices, AdamW for embeddings and norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Optimizer:
    """Both, stepped as one."""

    def __init__(self, model: Any, muon_lr: float, adam_lr: float) -> None:
        parameters = list(model.named_parameters())
        matrices = [p for name, p in parameters if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in parameters if p.ndim != 2 or "embed" in name]
        self.model, self.adam_lr = model, adam_lr
        self.muon = Muon(matrices, muon_lr)
        self.adam = torch.optim.AdamW(
            others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def step(self, scale: float) -> None:
        """Update the model at `scale` times the rates, and forget its gradients."""
        self.adam.param_groups[0]["lr"] = self.adam_lr * scale
        self.muon.step(scale)
        self.adam.step()
        self.model.zero_grad(set_to_none=True)


class Muon:
    """Momentum whose updates are made orthogonal (Jordan et al., 2024, "Muon").

    Matrices of one shape share one batched product.
    """

    def __init__(self, matrices: list[torch.nn.Parameter], lr: float) -> None:
        self.lr = lr
        shapes = sorted({tuple(m.shape) for m in matrices})
        self.groups = [[m for m in matrices if tuple(m.shape) == s] for s in shapes]
        self.momentum = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        for group, momentum in zip(self.groups, self.momentum, strict=True):
            weights: list[Tensor] = [m.data for m in group]
            grad = torch.stack([m.grad for m in group if m.grad is not None])
            momentum.lerp_(grad, 0.05)
            update = orthogonal(grad.lerp(momentum, 0.95))  # Nesterov's look ahead
            rate = self.lr * scale * max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
            torch._foreach_mul_(weights, 1 - 0.05 * self.lr * scale)  # weight decay
            torch._foreach_add_(weights, list(update.float().unbind()), alpha=-rate)


def orthogonal(x: Tensor) -> Tensor:
    """Newton-Schulz iteration: singular values of each matrix [..., M, N] are pushed towards 1."""
    tall = x.shape[-2] > x.shape[-1]
    x = (x.mT if tall else x).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x
