"""Rates at which a checkpoint gets into a GPU, and the time until an engine is ready on it.

    python benchmarks/gpu_loading.py --shapes llama-3.2-1b llama-3.1-8b

Writes a checkpoint with random weights in the shape of a model, in shards of 4 GiB, and starts an
engine on it in a new process, several times. The files are in the page cache then, as they are when
a server starts again; the first start also compiles what is not in Triton's cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record
import torch
from safetensors.torch import save_file
from torch import Tensor
from workloads.backends import shape_folder
from workloads.vocabulary import make_folder

SHARD_BYTES = 4 << 30

START = """
import json, sys, time
begin = time.monotonic()
from quire.config import EngineConfig
from quire.engine.startup.start_engine import start_engine
config = EngineConfig.from_options(model=sys.argv[1], device="cuda", max_model_len=8192)
core, info = start_engine(config, begin=begin)
print(json.dumps({"ready_s": time.monotonic() - begin, "phases": info.seconds}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["llama-3.2-1b", "llama-3.1-8b"])
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--results", type=Path, default=record.RESULTS, help="folder")
    args = parser.parse_args()
    record.require_gpu()
    rows = []
    for shape in args.shapes:
        with tempfile.TemporaryDirectory() as folder:
            num_bytes = write_checkpoint(shape_folder(shape), Path(folder))
            for _ in range(args.starts):
                rows.append({"shape": shape, "bytes": num_bytes} | start(Path(folder)))
                rate = num_bytes / rows[-1]["phases"]["weights"] / 1e9
                print(f"{shape}: ready after {rows[-1]['ready_s']:.1f} s, weights {rate:.1f} GB/s, "
                      f"{rows[-1]['phases']}", flush=True)  # fmt: skip
    found = {"gpu": torch.cuda.get_device_name(), "rows": rows}
    print(record.save("gpu_loading", found, args.results))


def start(folder: Path) -> dict[str, Any]:
    """Start an engine; seconds until it is ready, as a whole and by phase."""
    begin = time.monotonic()
    command = [sys.executable, "-c", START, str(folder)]
    env = record.installed()
    output = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    whole = time.monotonic() - begin
    return json.loads(output.splitlines()[-1]) | {"process_s": round(whole, 2)}


def write_checkpoint(shape: Path, folder: Path, device: str = "cuda") -> int:
    """Random bfloat16 weights under the names of Llama checkpoints; returns their bytes.

    device: draws them.
    """
    make_folder(shape, folder)
    config = json.loads((folder / "config.json").read_text())
    shard: dict[str, Tensor] = {}
    shard_of: dict[str, str] = {}
    total = size = 0
    for name, dimensions in tensors(config):
        shard[name] = torch.randn(dimensions, device=device).mul_(0.02).bfloat16().cpu()
        size += shard[name].nbytes
        if size >= SHARD_BYTES:
            total += write_shard(shard, shard_of, folder)
            size = 0
    total += write_shard(shard, shard_of, folder)
    index = {"metadata": {"total_size": total}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def write_shard(shard: dict[str, Tensor], shard_of: dict[str, str], folder: Path) -> int:
    """Write the tensors gathered so far, and note where they are; returns their bytes."""
    name = f"model-{len(set(shard_of.values())) + 1:05d}.safetensors"
    save_file(shard, folder / name, metadata={"format": "pt"})
    shard_of |= dict.fromkeys(shard, name)
    size = sum(tensor.nbytes for tensor in shard.values())
    shard.clear()
    return size


def tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a Llama model's weights."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        yield f"{prefix}.self_attn.q_proj.weight", (heads * head_dim, hidden)
        yield f"{prefix}.self_attn.k_proj.weight", (kv_heads * head_dim, hidden)
        yield f"{prefix}.self_attn.v_proj.weight", (kv_heads * head_dim, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, heads * head_dim)
        yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


if __name__ == "__main__":
    main()
