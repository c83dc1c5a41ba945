"""The server's own settings; the engine's are in quire.config. The command line reads both."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.errors import ConfigError
from quire.server.keys import Keys, all_keys, listed
from quire.server.origins import listed_origins


def _setting(default: Any, help_text: str, *, is_list: bool = False) -> Any:
    return field(default=default, metadata={"help": help_text, "is_list": is_list})


_LEAST = {
    "max_body_bytes": 1,
    "api_server_count": 1,
    "engine_hang_timeout": 0,
    "shutdown_timeout": 0,
    "max_queued_requests": 0,
    "max_queued_tokens": 0,
    "model_memory_bytes": 1,
}
_MOST_PROCESSES = 256  # that speak HTTP
_SECONDS = (
    *("queue_timeout", "request_timeout", "slow_reader_timeout"),
    *("model_load_timeout", "idle_unload_seconds"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Where the server listens, whom it lets in, and how much it reads."""

    host: str = _setting("127.0.0.1", "address to listen on; 0.0.0.0 is every interface")
    port: int = _setting(8000, "port to listen on; 0 takes a free one")
    api_key: str | None = _setting(
        None,
        "key that requests must bring; of several, given so or with commas between, one; "
        "default: $QUIRE_API_KEY",
        is_list=True,
    )
    api_key_file: str | None = _setting(None, "file of more such keys, one per line")
    share_prefix_cache: bool = _setting(
        False, "let requests of different API keys share cached prefixes"
    )
    allowed_origins: str | None = _setting(
        None,
        "origins whose pages may call this from a browser, with commas between; * for all",
        is_list=True,
    )
    max_queued_requests: int = _setting(
        1024, "most answers that may wait, besides the max-num-seqs that run; more get 429"
    )
    max_queued_tokens: int | None = _setting(
        None, "most prompt tokens served at once, besides those that the KV cache holds"
    )
    queue_timeout: float | None = _setting(
        None, "seconds after which a request that has not begun to run gets 503"
    )
    request_timeout: float | None = _setting(
        None, "seconds after which a request gets 504; it may ask for less (then 408), not for more"
    )
    slow_reader_timeout: float = _setting(
        30.0, "seconds without progress after which a client that does not read is cut off"
    )
    admin_port: int | None = _setting(
        None, "port of 127.0.0.1 for the admin endpoints; default: there are none"
    )
    admin_uds: str | None = _setting(
        None, "path of a Unix socket for the admin endpoints, instead of a port"
    )
    admin_api_key: str | None = _setting(
        None, "key that admin requests must bring; default: $QUIRE_ADMIN_API_KEY", is_list=True
    )
    tool_call_parser: Literal[
        "auto",
        "none",
        "hermes",
        "llama3",
        "mistral",
        "mistral_args",
        "qwen3_coder",
        "glm45",
        "deepseek_v3",
        "deepseek_v31",
        "phi4_mini_json",
        "granite",
        "internlm",
    ] = _setting("auto", "how the model writes tool calls; auto: as its chat template shows")
    reasoning_parser: Literal["auto", "none", "think", "mistral"] = _setting(
        "auto", "how the model marks its thoughts; auto: as its chat template shows"
    )
    model_load: Literal["at_start", "on_demand"] = _setting(
        "at_start", "when models are loaded; on_demand: by the first request that names one"
    )
    model_memory_bytes: int | None = _setting(
        None, "memory of all loaded models; for more, idle ones are unloaded, default: no limit"
    )
    model_load_timeout: float = _setting(
        300.0, "seconds that a request waits for its model to be loaded"
    )
    idle_unload_seconds: float | None = _setting(
        None, "seconds after which an idle model that was loaded on demand is unloaded"
    )
    max_body_bytes: int = _setting(4 << 20, "largest request body")
    max_held_body_bytes: int | None = _setting(
        None,
        "bytes of large request bodies that an API process holds at once, more get 429; "
        "default: 64 times max-body-bytes",
    )
    api_server_count: int = _setting(1, "processes that speak HTTP, on one port")
    engine_hang_timeout: int = _setting(
        60,
        "seconds without a sign of life, one comes with each layer of a step, after which the "
        "engine is restarted; 0: never",
    )
    shutdown_timeout: int = _setting(30, "seconds that running requests get to finish at the end")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "least level logged")
    log_format: Literal["text", "json"] = _setting("text", "form of the log's lines")
    otlp_traces_endpoint: str | None = _setting(
        None, "URL that OpenTelemetry traces are sent to; needs the extra `trace`"
    )
    gpu_hour_cost: float | None = _setting(
        None, "what an hour of this server costs; /metrics then tells the cost of tokens"
    )

    def __post_init__(self) -> None:
        for name in ("port", "admin_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(f"{name} is {port}; give 0 to 65535")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"{name} is {value}; give {least} or more")
        if self.api_server_count > _MOST_PROCESSES:
            text = f"api_server_count is {self.api_server_count}"
            raise ConfigError(f"{text}; give at most {_MOST_PROCESSES}")
        for name in _SECONDS:
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; give a positive number of seconds")
        cost = self.gpu_hour_cost
        if cost is not None and not 0.0 <= cost < math.inf:
            raise ConfigError(f"gpu_hour_cost is {cost}; give 0 or more")
        if self.held_body_bytes < self.max_body_bytes:
            raise ConfigError(
                f"max_held_body_bytes is {self.held_body_bytes}, less than one body may have; "
                f"give {self.max_body_bytes} or more, or lower max_body_bytes"
            )
        if self.allowed_origins is not None:
            listed_origins(self.allowed_origins)
        _check_url(self.otlp_traces_endpoint)
        for name in ("api_key", "admin_api_key"):
            keys = getattr(self, name)
            if keys is not None:  # the class is frozen
                object.__setattr__(self, name, ",".join(listed(keys, name)))
        self._check_admin()

    @property
    def held_body_bytes(self) -> int:
        """As asked, or so much that many of the largest bodies find room."""
        held = self.max_held_body_bytes
        return 64 * self.max_body_bytes if held is None else held

    @property
    def origins(self) -> list[str]:
        """Those that may call it from a browser."""
        return [] if self.allowed_origins is None else listed_origins(self.allowed_origins)

    @property
    def keys(self) -> Keys:
        """Whom the server lets in. Reads the key file; raises ConfigError."""
        return Keys(all_keys(self.api_key, self.api_key_file))

    @property
    def admin_keys(self) -> Keys:
        """Whom the admin endpoints let in."""
        return Keys(all_keys(self.admin_api_key, None))

    def _check_admin(self) -> None:
        if self.admin_uds == "":
            raise ConfigError("admin_uds is empty; give a path, or leave it out")
        if self.admin_port is not None and self.admin_uds is not None:
            raise ConfigError("admin_port and admin_uds both place the admin endpoints; give one")
        if self.admin_port is not None and self.admin_api_key is None:
            text = "admin_port needs a key, as every user of this machine can reach it; give "
            raise ConfigError(text + "admin_api_key (or $QUIRE_ADMIN_API_KEY), or use admin_uds")


def _check_url(url: str | None) -> None:
    if url is not None and not url.startswith(("http://", "https://")):
        text = f"otlp_traces_endpoint is {url!r}; give a URL, such as "
        raise ConfigError(text + "http://127.0.0.1:4318/v1/traces")
