"""ServerSettings: the server's own settings. The engine's are in quire.config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.errors import ConfigError
from quire.options import MOST, MOST_BYTES, check_ranges, setting
from quire.server.http.allowed_hosts import AllowedHosts, parse_hosts
from quire.server.http.api_keys import ApiKeys, all_keys, listed
from quire.server.http.cors import ANY, parse_origins
from quire.server.http.listen_address import addresses
from quire.server.http.root_path import plain_root_path
from quire.server.parsing.template_variables import parse_template_defaults

_YEAR = 366 * 24 * 3600  # event loops cannot wait for any number of seconds
_SECONDS = (0.001, _YEAR)
_WHOLE_SECONDS = (0, _YEAR)
_PORTS = (0, 65535)
_BYTES = (1, MOST_BYTES)
_WAITING = (0, MOST)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Settings of the HTTP server: address, accepted requests, limits."""

    host: str = setting(
        "127.0.0.1", "address to listen on, or several (a,b); 0.0.0.0: all interfaces"
    )
    port: int = setting(8000, "port to listen on; 0: any free port", within=_PORTS)
    uds: str | None = setting(None, "path of a Unix socket to listen on, instead of host and port")
    root_path: str | None = setting(
        None, "path prefix, such as /llm, that a proxy leaves in requests"
    )
    api_key: str | None = setting(
        None,
        "key that requests must send; several by repeating the option or separated by "
        "commas; default: $QUIRE_API_KEY",
        is_list=True,
    )
    api_key_file: str | None = setting(None, "file with more such keys, one per line")
    share_prefix_cache: bool = setting(
        False, "let requests with different API keys share cached prefixes"
    )
    allowed_origins: str | None = setting(
        None,
        "origins whose web pages may call this server, separated by commas; localhost: "
        "those of this machine; *: all; none: none; default: * with an API key, none "
        "without",
        is_list=True,
    )
    allowed_hosts: str | None = setting(
        None,
        "names allowed in the Host header, separated by commas; *: all; default without "
        "an API key: IP addresses, and names of this machine and private networks",
        is_list=True,
    )
    max_queued_requests: int = setting(
        1024,
        "most answers that may wait besides the max-num-seqs that run; further requests get 429",
        within=_WAITING,
    )
    max_queued_tokens: int | None = setting(
        None,
        "most prompt tokens accepted beyond those that the KV cache holds; default: no limit",
        within=_WAITING,
    )
    queue_timeout: float | None = setting(
        None, "seconds after which a request that is still waiting gets 503", within=_SECONDS
    )
    request_timeout: float | None = setting(
        None,
        "seconds after which a request gets 504; a request may only set a shorter limit (then 408)",
        within=_SECONDS,
    )
    slow_reader_timeout: float = setting(
        30.0,
        "seconds without progress after which a client that does not read is disconnected",
        within=_SECONDS,
    )
    admin_port: int | None = setting(
        None,
        "port on 127.0.0.1 for the admin endpoints; default: no admin endpoints",
        within=_PORTS,
    )
    admin_uds: str | None = setting(
        None, "path of a Unix socket for the admin endpoints, instead of a port"
    )
    admin_api_key: str | None = setting(
        None, "key that admin requests must send; default: $QUIRE_ADMIN_API_KEY", is_list=True
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
    ] = setting(
        "auto", "format in which the model writes tool calls; auto: detected from its chat template"
    )
    reasoning_parser: Literal["auto", "none", "think", "mistral"] = setting(
        "auto",
        "format in which the model marks its reasoning; auto: detected from its chat template",
    )
    default_chat_template_kwargs: str | None = setting(
        None,
        'chat template variables as a JSON object, such as {"enable_thinking": false}; '
        "chat_template_kwargs of a request override them",
    )
    enable_force_include_usage: bool = setting(
        False,
        "send token counts in every chunk of a stream, even if the request does not ask for them",
    )
    return_tokens_as_token_ids: bool = setting(
        False,
        "spell tokens of log-probabilities as token_id:5 unless a request says otherwise",
    )
    model_load: Literal["at_start", "on_demand"] = setting(
        "at_start", "when to load models; on_demand: at the first request that names one"
    )
    model_memory_bytes: int | None = setting(
        None,
        "memory for all loaded models; idle ones are unloaded to stay below it; default: no limit",
        within=_BYTES,
    )
    model_load_timeout: float = setting(
        300.0, "seconds that a request waits for its model to load", within=_SECONDS
    )
    idle_unload_seconds: float | None = setting(
        None,
        "idle seconds after which a model that was loaded on demand is unloaded",
        within=_SECONDS,
    )
    max_body_bytes: int = setting(4 << 20, "largest request body", within=_BYTES)
    max_held_body_bytes: int | None = setting(
        None,
        "bytes of large request bodies that an API process holds at once; further ones get 429; "
        "default: 64 times max-body-bytes",
        within=_BYTES,
    )
    response_store_bytes: int = setting(
        64 << 20,
        "bytes of responses that /v1/responses stores, in a file that is deleted when the "
        "server ends; 0: none",
        within=(0, MOST_BYTES),
    )
    api_server_count: int = setting(
        1, "number of API processes (HTTP, tokenizer) that share the port", within=(1, 256)
    )
    engine_hang_timeout: int = setting(
        60,
        "seconds without a heartbeat (one per layer of a step) after which the engine or "
        "an API process is restarted; 0: never",
        within=_WHOLE_SECONDS,
    )
    engine_load_timeout: int = setting(
        600,
        "seconds without any processor time while an engine loads its model or an API process "
        "starts (their storage does not answer), after which it is killed; 0: never",
        within=_WHOLE_SECONDS,
    )
    shutdown_timeout: int = setting(
        30, "seconds for running requests to finish at shutdown", within=_WHOLE_SECONDS
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "lowest level that is logged"
    )
    log_format: Literal["text", "json"] = setting("text", "format of log lines")
    access_log: bool = setting(True, "log a line for each request, at level info")
    enable_request_id_headers: bool = setting(
        False, "send x-request-id in answers to probes (/health, /ping, /ready) too"
    )
    otlp_traces_endpoint: str | None = setting(
        None, "URL to send OpenTelemetry traces to; needs the extra `trace`"
    )
    gpu_hour_cost: float | None = setting(
        None,
        "cost of this server per hour; /metrics then reports the cost of tokens",
        within=(0.0, 1e9),
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.held_body_bytes < self.max_body_bytes:
            raise ConfigError(
                f"max_held_body_bytes is {self.held_body_bytes}, less than max_body_bytes; "
                f"set {self.max_body_bytes} or more, or lower max_body_bytes"
            )
        if self.allowed_origins is not None:
            parse_origins(self.allowed_origins)
        if self.allowed_hosts is not None:
            parse_hosts(self.allowed_hosts)
        parse_template_defaults(self.default_chat_template_kwargs)
        if self.uds == "":
            raise ConfigError("uds must not be empty; set a path, or leave it out")
        if self.root_path is not None:
            object.__setattr__(self, "root_path", plain_root_path(self.root_path))
        _check_url(self.otlp_traces_endpoint)
        for name in ("api_key", "admin_api_key"):
            keys = getattr(self, name)
            if keys is not None:  # the class is frozen
                object.__setattr__(self, name, ",".join(listed(keys, name)))
        self._check_admin()

    @property
    def held_body_bytes(self) -> int:
        """max_held_body_bytes, or by default 64 of the largest bodies."""
        held = self.max_held_body_bytes
        return 64 * self.max_body_bytes if held is None else held

    @property
    def origins(self) -> list[str]:
        """The origins that may call it from a browser; by default all, where a key is needed."""
        if self.allowed_origins is None:
            return [ANY] if self.keys.are_required else []
        return parse_origins(self.allowed_origins)

    @property
    def hosts(self) -> AllowedHosts:
        """The names of hosts that requests may be sent to. Reads the key file."""
        listed = [] if self.allowed_hosts is None else parse_hosts(self.allowed_hosts)
        return AllowedHosts(listed, bound=addresses(self.host), needs_key=self.keys.are_required)

    @property
    def keys(self) -> ApiKeys:
        """The API keys that the server accepts. Reads the key file; raises ConfigError."""
        return ApiKeys(all_keys(self.api_key, self.api_key_file))

    @property
    def admin_keys(self) -> ApiKeys:
        """The keys that the admin endpoints accept."""
        return ApiKeys(all_keys(self.admin_api_key, None))

    def _check_admin(self) -> None:
        if self.admin_uds == "":
            raise ConfigError("admin_uds must not be empty; set a path, or leave it out")
        if self.admin_port is not None and self.admin_uds is not None:
            raise ConfigError("admin_port and admin_uds exclude each other; set one of them")
        if self.admin_port is not None and self.admin_api_key is None:
            text = "admin_port needs a key, as every user of this machine can reach it; set "
            raise ConfigError(text + "admin_api_key (or $QUIRE_ADMIN_API_KEY), or use admin_uds")


def _check_url(url: str | None) -> None:
    if url is not None and not url.startswith(("http://", "https://")):
        example = "http://127.0.0.1:4318/v1/traces"
        raise ConfigError(f"otlp_traces_endpoint must be a URL such as {example}, not {url!r}")
