"""The banner of `quire serve` when it is ready: addresses, models, and an example request."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.server.settings import ServerSettings
from quire.version import __version__

# paths and bodies of example requests
CHAT = "/v1/chat/completions", '{"messages": [{"role": "user", "content": "hello"}]}'
COMPLETION = "/v1/completions", '{"prompt": "Once upon a time"}'
TOKEN_IDS = "/v1/completions", '{"prompt": [1, 2, 3], "return_token_ids": true}'


def example_request(config: EngineConfig) -> tuple[str, str]:
    """The path and body of a request that a model with these settings can answer."""
    from quire.tokenizer.load_tokenizer import has_chat_template  # not while processes start

    if config.model.skip_tokenizer_init:
        return TOKEN_IDS
    return CHAT if has_chat_template(config) else COMPLETION


def ready_text(
    infos: Sequence[EngineInfo],
    on_demand: Mapping[str, str],
    url: str,
    seconds: float,
    *,
    key: str,
    admin: str = "",
    example: tuple[str, str] = CHAT,
) -> str:
    """The whole text.

    url: of `base_url`. on_demand: the models that are not loaded yet, and for now why they cannot
    be, or "". key: of `key_in_shell`.
    admin: where the admin endpoints are, if anywhere. example: of `example_request`.
    """
    auth = f' -H "Authorization: Bearer {key}"' if key else ""
    is_unix = url.startswith("unix:")
    socket = shlex.quote(url.removeprefix("unix:"))
    base = f"--unix-socket {socket} http://localhost" if is_unix else url
    path, body = example
    spent = infos[0].seconds if len(infos) == 1 else {}
    if spent:
        spent = {"processes": max(0.0, seconds - sum(spent.values()))} | spent
    phases = ", ".join(f"{name} {each:.1f} s" for name, each in spent.items() if each >= 0.05)
    after = f"{seconds:.1f} s{f' ({phases})' if phases else ''}"
    lines = [
        f"Quire {__version__} is ready at {url} after {after}",
        *map(_model_text, infos),
        *(
            f"  model     {name}: loaded on demand{', but refused; the log says why' * bool(why)}"
            for name, why in on_demand.items()
        ),
        *([] if is_unix else [f"  page      {url}/"]),
        *([f"  admin     {admin}"] if admin else []),
        f"  try       curl {base}{path}{auth} -H 'Content-Type: application/json' \\",
        f"              -d '{body}'",
    ]
    return "\n".join(lines)


def key_in_shell(settings: ServerSettings, *, from_environment: bool) -> str:
    """Shell text in place of the API key in the example request; empty if there is none.

    from_environment: the setting api_key is that of $QUIRE_API_KEY.
    """
    if from_environment:
        return "$QUIRE_API_KEY" if "," not in (settings.api_key or "") else "${QUIRE_API_KEY%%,*}"
    if settings.api_key_file is not None:
        path = shlex.quote(settings.api_key_file)
        return rf"$(grep -m 1 -v '^\s*\(#\|$\)' {path})"
    return "YOUR_KEY" if settings.api_key is not None else ""


def _numbers(info: EngineInfo) -> str:
    """The model's data type and weight format as text."""
    weights = "" if info.quantization == "none" else f" with {info.quantization} weights"
    return f"{info.dtype}{weights}"


def _model_text(info: EngineInfo) -> str:
    limits, num_bytes = info.limits, info.kv_cache_bytes
    kv_dtype = "" if info.kv_cache_dtype in ("", info.dtype) else f" in {info.kv_cache_dtype}"
    return f"""\
  model     {info.model_name}: {_numbers(info)} on {info.device}, context {limits.max_model_len:,}
  KV cache  {limits.max_kv_tokens:,} tokens: {info.num_blocks:,} blocks of {info.block_size}, \
{num_bytes / 2**20:,.0f} MiB{kv_dtype}"""
