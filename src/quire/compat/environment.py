"""Environment variables of other engines, which are not read here, and what to use instead."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from quire.options import flag_of

# Quire's setting: its variable if it has one, and the variables of other engines
VARIABLES: Mapping[str, tuple[str | None, tuple[str, ...]]] = {
    "model": (None, ("LLAMA_ARG_MODEL", "LLAMA_ARG_HF_REPO")),
    "api_key": ("QUIRE_API_KEY", ("VLLM_API_KEY", "LLAMA_API_KEY")),
    "host": (None, ("OLLAMA_HOST", "LLAMA_ARG_HOST")),
    "port": (None, ("LLAMA_ARG_PORT", "VLLM_PORT")),
    "max_model_len": (None, ("OLLAMA_CONTEXT_LENGTH", "LLAMA_ARG_CTX_SIZE")),
    "max_num_seqs": (None, ("OLLAMA_NUM_PARALLEL", "LLAMA_ARG_N_PARALLEL")),
    "idle_unload_seconds": (None, ("OLLAMA_KEEP_ALIVE",)),
    "kv_cache_dtype": (None, ("OLLAMA_KV_CACHE_TYPE",)),
    "kv_cache_memory_bytes": (None, ("VLLM_CPU_KVCACHE_SPACE",)),
    "batch_invariant": (None, ("VLLM_BATCH_INVARIANT",)),
    "threads": (None, ("LLAMA_ARG_THREADS",)),
    "max_queued_requests": (None, ("OLLAMA_MAX_QUEUE",)),
    "model_memory_bytes": (None, ("OLLAMA_MAX_LOADED_MODELS",)),
    "log_level": (None, ("VLLM_LOGGING_LEVEL",)),
    "allowed_origins": (None, ("OLLAMA_ORIGINS",)),
    "hub_folder": ("HF_HOME", ("OLLAMA_MODELS", "LLAMA_CACHE")),
}

_PREFIXES = ("VLLM_", "LLAMA_ARG_", "OLLAMA_")


def own_spelling(name: str) -> str:
    """The way to give a setting here: by its own variable, or as an option."""
    return VARIABLES[name][0] or flag_of(name)


def unread_variables(environ: Mapping[str, str], given: Collection[str]) -> Iterator[str]:
    """Sentences on the variables of other engines whose settings are not among those given."""
    for name, (own, others) in VARIABLES.items():
        if name in given or (own and own in environ):
            continue
        for variable in others:
            if environ.get(variable):
                yield f"{variable} is not read; use {own_spelling(name)}"
    known = {variable for _, others in VARIABLES.values() for variable in others}
    foreign = {name for name, value in environ.items() if value and name.startswith(_PREFIXES)}
    rest = sorted(foreign - known)
    if rest:
        verb = "is" if len(rest) == 1 else "are"
        yield f"{', '.join(rest)} {verb} not read; use options (quire serve --help)"
