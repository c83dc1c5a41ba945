"""Levels of rooms and sub-rooms: what may import what, and which modules need no torch."""

from __future__ import annotations

# A room imports from rooms of a lower level, and from itself. Modules at the root are rooms too.
LEVELS = {
    "version": -3, "array_types": -3, "dtypes": -3, "plain_values": -3,
    "errors": -2, "processes": -1.5, "options": -1,
    "compat": 0, "background": 0, "line_writer": -1, "logs": 0, "model_folder": -1, "config": 0.5,
    "config_file": -0.5, "input_file": -1, "last_use": -1, "locked_folder": -1, "fair_queue": 0.5,
    "shared_memory": 0, "framed_child": 0.5, "killable_process": 0.6, "gguf": 0, "hub": 1,
    "kernels": 1,
    "core": 2,
    "tokenizer": 3, "quantization": 3, "kvcache": 3, "sampling": 3,
    "scheduler": 4, "grammar": 4, "layers": 4, "bench": 4,
    "models": 5,
    "engine": 6, "compress": 6,
    "server": 7,
    "llm_options": 7, "llm": 8, "cli": 9, "__init__": 10, "__main__": 10,
}  # fmt: skip

# The same inside rooms: a sub-room or a module at a room's root imports from lower ones and itself.
SUBLEVELS = {
    "engine": {"core": 0, "gpu": 1, "startup": 2, "frontend": 3, "processes": 4, "profile": 4},
    "server": {
        "http": 0, "parsing": 0, "settings": 1,
        "admission": 2, "model_registry": 3, "model_loading": 4,
        "api.common": 5, "api.openai": 6, "api.anthropic": 6, "api.llama_cpp": 6, "api.ollama": 6,
        "ops": 7, "app": 8, "uvicorn_server": 8, "worker": 9,
    },
    "kernels.triton": {
        "launch": 0, "step": 1, "sampling": 1, "attention": 1, "gemm": 2, "hopper": 3,
        "ops": 4, "invariant": 5, "triton_operations": 6, "compile": 7,
    },
    "models": {
        "checkpoints": 0, "checkpoint_formats": 1, "families": 1, "config": 2, "prepared": 3,
        "loading": 4, "runtimes": 4,
    },
}  # fmt: skip

# Imports that break this today. Whoever corrects one deletes its line; none may be added.
KNOWN_UPWARD_IMPORTS: set[tuple[str, str]] = set()

# Circles of imports between modules, today. Whoever breaks one deletes its line.
KNOWN_CIRCLES: set[tuple[str, str]] = set()

# Files of one name, where the folders make the difference plain.
SAME_NAMES = {
    "options.py": {"", "cli"},  # what an option is; options of the command line
    "chat.py": {"cli", "server/api/openai"},  # `quire chat`; the route of chat completions
    "demo.py": {"cli", "bench"},  # `quire demo`; the requests that it sends
}

TORCH_FREE = [
    "quire",
    "quire.cli",
    "quire.compat",
    "quire.config",
    "quire.errors",
    "quire.hub",
    "quire.core",
    "quire.tokenizer",
    "quire.quantization",
    "quire.scheduler",
    "quire.grammar",
    "quire.kvcache.block_pool",
    "quire.kvcache.kv_cache_manager",
    "quire.kernels.formats",
    "quire.kernels.ragged_batch",
    "quire.kernels.sampling_math",
    "quire.kernels.cpu.native",
    "quire.kernels.cpu.row_ops",
    "quire.kernels.cpu.native_structs",
    "quire.engine.frontend.async_engine",
    "quire.engine.core.input_batch",
    "quire.engine.startup.null_engine",
    "quire.engine.core.pooler",
    "quire.engine.processes.engine_process",
    "quire.engine.core.running_requests",
    "quire.engine.startup.start_engine",
    "quire.engine.processes.server_supervisor",
    "quire.sampling.sampler",
    "quire.llm",
    "quire.logs",
    "quire.server",
    "quire.bench",
]
