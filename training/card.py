"""Owns the model card: the blanks of `card.md` filled from the figures, and the loss plotted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from data import MIX

TESTS = {
    "rewrite": "Query rewriting, exact match",
    "json": "JSON extraction, exact match",
    "facts": "Facts from the system prompt",
    "talk": "Small talk, phrases kept from training",
    "paraphrases": "Small talk, hand-written paraphrases",
}


def card(metrics: dict[str, Any], configs: dict[str, dict[str, Any]]) -> str:
    """The card of the models named in `configs` (their config.json), the target first."""
    template = (Path(__file__).parent / "card.md").read_text()
    blanks = {
        **metrics["set_up"],
        **text_blanks(*(metrics["scores"][name]["text"] for name in configs)),
        **run_blanks(metrics["training"]),
        "shapes": shape_rows(metrics["scores"], configs),
        "scores": score_rows(*(metrics["scores"][name] for name in configs)),
        "accepted": acceptance_rows(metrics["scores"]["draft acceptance"]),
        "vocab": next(iter(configs.values()))["vocab_size"],
        "words": metrics["set_up"]["query_words"],
        "mix": ", ".join(f"{task} {share:.0%}" for task, share in MIX.items()),
    }
    return re.sub(r"<<([\w-]+)>>", lambda blank: str(blanks[blank[1]]), template)


def shape_rows(scores: dict[str, Any], configs: dict[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"| {name} | {scores[name]['parameters']:,} | {shape['num_hidden_layers']} "
        f"| {shape['hidden_size']} | {shape['intermediate_size']} "
        f"| {shape['num_attention_heads']} / {shape['num_key_value_heads']} |"
        for name, shape in configs.items()
    )


def score_rows(target: dict[str, Any], draft: dict[str, Any]) -> str:
    """A row for each task, and one for each kind of question in it."""
    rows = []
    for task, label in TESTS.items():
        rows.append((label, target[task], draft[task]))
        kinds = [kind for kind, value in target[task].items() if isinstance(value, dict)]
        rows += [(f"- {kind}", target[task][kind], draft[task][kind]) for kind in kinds]
    return "\n".join(
        f"| {label} | {ours['count']} | {ours['right']} % | {theirs['right']} % |"
        for label, ours, theirs in rows
    )


def acceptance_rows(accepted: dict[str, dict[str, float]]) -> str:
    return "\n".join(
        f"| {task} | {figures['greedy_acceptance']} % | {figures['sampled_acceptance']} % "
        f"| {figures['target_entropy_nats']} |"
        for task, figures in accepted.items()
    )


def text_blanks(target: dict[str, float], draft: dict[str, float]) -> dict[str, object]:
    return {
        "ppl": target["perplexity_per_token"],
        "bpb": target["bits_per_byte"],
        "text_tokens": f"{target['tokens']:,}",
        "draft_ppl": draft["perplexity_per_token"],
        "draft_bpb": draft["bits_per_byte"],
    }


def run_blanks(runs: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {
        f"{name}_{figure}": f"{value:,}"
        for name, run in runs.items()
        for figure, value in run.items()
        if figure != "curve"
    }


def plot(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """The loss of each run over the tokens it has seen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.4), dpi=90)
    for name, run in runs.items():
        tokens = [point["tokens"] / 1e6 for point in run["curve"]]
        losses = [point["loss"] for point in run["curve"]]
        axes.plot(tokens, losses, label=name, linewidth=1.2)
    axes.set(
        xlabel="million tokens",
        ylabel="cross-entropy (nats, weighted)",
        yscale="log",
        title="Training loss",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
