"""Owns the making of quire-tiny and its draft, from nothing to the files that Quire ships.

    python training/train_quire_tiny.py --out src/quire/bundled

Five stages, in this order: tokenizer, target, draft, eval, card. Each leaves its files in the work
folder, so `--stages` can run some of them again. Worker processes make the text of `data/` while
the GPU trains, so most of it is seen only once. Needs one GPU, torch, transformers, tokenizers and
matplotlib; without a GPU it runs, slowly. To try all of it on a CPU in a few minutes:

    python training/train_quire_tiny.py --out /path/to/try --small --steps 6 --tokens 1024 \\
        --log-every 1 --no-compile
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from batches import Batch, Stream
from card import card, plot
from chat_format import SPECIALS
from data import MIX, plain_chat
from data.products import vocabulary
from data.queries import make_query
from model import Recipe, load, new_model, save
from optimizer import Optimizer
from scores import evaluate
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

VOCAB = 2048
TARGET = Recipe(
    name="quire-tiny",
    seed=1,
    shape={
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    },
)
DRAFT = Recipe(
    name="quire-tiny-draft",
    seed=2,
    shape={
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
)

# ---------------------------------------------------------------- 1. tokenizer


def make_tokenizer(args: argparse.Namespace) -> None:
    tokenizer = build_tokenizer()
    sample = "naïve café — 東京 🚲\n\ttabs  and\r\nspaces"
    assert tokenizer.decode(tokenizer.encode(sample).ids) == sample
    assert tokenizer.get_vocab_size() == VOCAB
    tokenizer.save(str(args.work / "tokenizer.json"))


def build_tokenizer() -> Tokenizer:
    """Byte-level BPE: any UTF-8 text survives encode and decode."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIALS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(tokenizer_texts(), trainer)
    return tokenizer


def tokenizer_texts() -> list[str]:
    """Chats of all tasks alike, and many queries: their words should be single tokens."""
    rng = random.Random(11)
    chats = [plain_chat(task, rng) for task in MIX for _ in range(1200)]
    queries = [make_query(rng).text for _ in range(40000)]
    return [text for chat in chats for _, text in chat] + queries


# ---------------------------------------------------------------- 2. target, 3. draft


def train_target(args: argparse.Namespace) -> None:
    train_model(TARGET, args.minutes, None, args)


def train_draft(args: argparse.Namespace) -> None:
    """The draft learns to guess what the target would say."""
    teacher = load(args.work / TARGET.name, args.device, attention="packed")
    train_model(DRAFT, args.draft_minutes, teacher, args)


def train_model(
    recipe: Recipe, minutes: float, teacher: Any | None, args: argparse.Namespace
) -> None:
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    model = new_model(recipe, VOCAB).to(args.device)
    with closing(Stream(args.work, args.workers, args.tokens, recipe.seed, args.device)) as stream:
        run = train(model, stream, Clock(minutes, args.steps), teacher, args)
    save(model, args.work / recipe.name, tokenizer)
    record(args.work, "training", {recipe.name: run})


def train(
    model: Any, stream: Stream, clock: Clock, teacher: Any | None, args: argparse.Namespace
) -> dict[str, Any]:
    """Train until the clock says stop. Returns the loss curve and what was spent."""
    optimizer = Optimizer(model, args.muon_lr, args.adam_lr)
    losses = torch.compile(losses_of) if args.compile else losses_of
    curve: list[dict[str, float]] = []
    total = torch.zeros((), device=stream.device)  # stays there: reading it would wait for the GPU
    while (rate := clock.rate()) > 0.002:
        loss, entropy = losses(model, stream.next(), teacher)
        torch.autograd.backward(loss)
        optimizer.step(rate)
        clock.tick()
        total += entropy.detach()
        if clock.step % args.log_every == 0:
            mean = round(total.item() / args.log_every, 4)
            tokens = clock.step * stream.tokens
            curve.append({"step": clock.step, "tokens": tokens, "loss": mean, "lr": round(rate, 3)})
            total.zero_()
            if len(curve) % 10 == 1:
                unseen = f"unseen text {stream.fresh / 1e6:.0f}M"
                print(f"{curve[-1]}  {clock.seconds():.0f} s, {unseen}", flush=True)
    return {
        "curve": curve,
        "steps": clock.step,
        "tokens": clock.step * stream.tokens,
        "minutes": round(clock.seconds() / 60, 2),
        "distinct_tokens": stream.fresh,
    }


class Clock:
    """Counts steps and time, and sets the learning rate by how much of them is over."""

    def __init__(self, minutes: float, steps: int | None) -> None:
        self.minutes, self.steps = minutes, steps
        self.step, self.start = 0, 0.0

    def tick(self) -> None:
        self.step += 1
        if self.step == 8:
            self.start = time.time()  # compiling is not counted

    def seconds(self) -> float:
        return time.time() - self.start if self.start else 0.0

    def rate(self) -> float:
        """Short warm-up, constant rate, linear decay to zero over the second half."""
        done = self.step / self.steps if self.steps else self.seconds() / (60 * self.minutes)
        return min(1.0, (self.step + 1) / 150, (1 - done) / 0.5)


def losses_of(model: Any, batch: Batch, teacher: Any | None) -> tuple[Tensor, Tensor]:
    """(what is minimised, next-token cross-entropy), both over the weighted tokens."""
    share = batch.weights / batch.weights.sum()
    mine = logits_of(model, batch).float()
    entropy = (F.cross_entropy(mine, batch.labels, reduction="none") * share).sum()
    if teacher is None:
        return entropy, entropy
    with torch.no_grad():
        target = logits_of(teacher, batch).float().log_softmax(-1)
    gap = F.kl_div(mine.log_softmax(-1), target, reduction="none", log_target=True).sum(-1)
    return 0.9 * (gap * share).sum() + 0.1 * entropy, entropy


def logits_of(model: Any, batch: Batch) -> Tensor:
    """[T, V] for a packed batch."""
    with torch.autocast(batch.ids.device.type, torch.bfloat16):
        hidden = model.model(
            input_ids=batch.ids,
            position_ids=batch.positions,
            use_cache=False,
            cu_seq_lens_q=batch.bounds,
            max_length_q=batch.longest,
        ).last_hidden_state
        return F.linear(hidden[0], model.get_input_embeddings().weight)


# ---------------------------------------------------------------- 4. held-out scores


def score_models(args: argparse.Namespace) -> None:
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    target, draft = (load(args.work / recipe.name, args.device) for recipe in (TARGET, DRAFT))
    share = 0.02 if args.small else 1.0
    record(args.work, "scores", evaluate(target, draft, tokenizer, share, args.work))
    record(args.work, "set_up", set_up(args))


def set_up(args: argparse.Namespace) -> dict[str, Any]:
    """The card's entries on how the models were made."""
    gpu = args.device == "cuda"
    length = f"--minutes {args.minutes:g} --draft-minutes {args.draft_minutes:g}"
    if args.steps:
        length = f"--steps {args.steps}"
    return {
        "date": args.date,
        "hardware": f"one {torch.cuda.get_device_name().removeprefix('NVIDIA ')}" if gpu else "CPU",
        "command": f"python training/train_quire_tiny.py --out src/quire/bundled {length}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokens_a_step": f"{args.tokens:,}",
        "muon_lr": args.muon_lr,
        "adam_lr": args.adam_lr,
        "query_words": f"{len(vocabulary()):,}",
    }


# ---------------------------------------------------------------- 5. card


def write_card(args: argparse.Namespace) -> None:
    """Copy the models to the output folder, and write what is known about them."""
    metrics = json.loads((args.work / "metrics.json").read_text())
    configs = {}
    for name in (TARGET.name, DRAFT.name):
        shutil.copytree(args.work / name, args.out / name, dirs_exist_ok=True)
        configs[name] = json.loads((args.out / name / "config.json").read_text())
    shutil.copyfile(args.work / "examples.json", args.out / "examples.json")
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    plot(metrics["training"], args.out / "loss.png")
    (args.out / "README.md").write_text(card(metrics, configs))
    size = sum(file.stat().st_size for file in args.out.rglob("*") if file.is_file())
    print(f"wrote {args.out}: {size:,} bytes")


# ---------------------------------------------------------------- all of it

STAGES = {
    "tokenizer": make_tokenizer,
    "target": train_target,
    "draft": train_draft,
    "eval": score_models,
    "card": write_card,
}


def main() -> None:
    args = arguments()
    torch.set_float32_matmul_precision("high")
    args.work.mkdir(parents=True, exist_ok=True)
    for name, stage in STAGES.items():
        if name in args.stages:
            stage(args)


def record(work: Path, section: str, figures: dict[str, Any]) -> None:
    """Keep figures in the work folder for the card."""
    path = work / "metrics.json"
    metrics = json.loads(path.read_text()) if path.exists() else {}
    metrics[section] = metrics.get(section, {}) | figures
    path.write_text(json.dumps(metrics))


def stage_names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(STAGES):
        raise argparse.ArgumentTypeError(f"no stage {', '.join(unknown)}: use {','.join(STAGES)}")
    return names


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("src/quire/bundled"))
    work = Path(tempfile.gettempdir(), "quire-tiny")
    add("--work", type=Path, default=work, help="keeps what stages hand on")
    add("--stages", type=stage_names, default=",".join(STAGES))
    add("--minutes", type=float, default=9, help="training time of the target")
    add("--draft-minutes", type=float, default=4)
    add("--steps", type=int, help="train so many steps instead, to try the script")
    add("--tokens", type=int, default=131072, help="tokens a step")
    add("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    add("--muon-lr", type=float, default=0.02)
    add("--adam-lr", type=float, default=0.004)
    add("--log-every", type=int, default=20)
    add("--date", default=time.strftime("%Y-%m-%d"))
    add("--no-compile", dest="compile", action="store_false")
    add("--small", action="store_true", help="tiny held-out sets, to try the script")
    args = parser.parse_args()
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    return args


if __name__ == "__main__":
    main()
