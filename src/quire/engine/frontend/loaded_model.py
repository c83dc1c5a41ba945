"""LoadedModel: a model in this process, and its life: loaded, asleep or closed.

How requests are run is up to its subclasses (offline_engine.py, llm_engine.py).
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, Literal

from quire.config import EngineConfig
from quire.core.messages import EngineStats
from quire.engine.frontend.inline_engine import InlineEngine
from quire.engine.frontend.input_processor import InputProcessor
from quire.engine.frontend.prompt_options import refuse_unknown
from quire.engine.startup.start_engine import start_engine
from quire.errors import ConfigError
from quire.processes import check_process
from quire.tokenizer.tokenizer import Tokenizer


class LoadedModel:
    """One model. tokenizer: its own. info: the fixed facts of its engine.

    Raises ConfigError or CheckpointError where the model cannot be loaded, and ConfigError for
    requests while it sleeps or after it was closed.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer) -> None:
        self._config, self.tokenizer = config, tokenizer
        core, self.info = start_engine(config)
        self._engine: InlineEngine | None = InlineEngine(core)
        self._is_closed = False
        self._inputs = InputProcessor(tokenizer, self.info, config.model.seed)
        self.eos_token_ids = self._inputs.eos_token_ids
        self._num_requests = 0
        self._lock = threading.Lock()
        self._thread: int | None = None  # in which an on_output or on_answer runs
        self._process = os.getpid()

    @property
    def _call_lock(self) -> threading.Lock:
        """The lock of a call. Raises as `_check_caller` does."""
        self._check_caller()
        return self._lock

    def _check_caller(self) -> None:
        """Raise ConfigError for a caller that would wait for ever.

        That is an on_output or on_answer, which would wait for itself, and a forked process.
        """
        check_process(self._process, "this LLM was made")
        if self._thread == threading.get_ident():
            text = "on_output and on_answer are part of a call of this LLM, which makes no other"
            raise ConfigError(f"{text} one meanwhile; call it afterwards, or use AsyncEngine")

    @property
    def stats(self) -> EngineStats:
        """The engine's current gauges and counters."""
        return self._awake().stats

    def reset_prefix_cache(self, **options: Any) -> Literal[True]:
        """Clear the prefix cache. options: of vLLM's method, as in all methods."""
        refuse_unknown(options)
        with self._call_lock:
            self._awake().reset_prefix_cache()
        return True

    def sleep(self, level: int = 1, **options: Any) -> None:
        """Free the memory of weights and KV cache until `wake_up`.

        level: 1 or 2, as in vLLM; the weights are read again from their files in both. Raises
        InvalidRequestError for others.
        """
        from quire.compat.sleep_tags import check_level  # a start needs none

        check_level(level)
        refuse_unknown(options)
        with self._call_lock:
            if self._engine is not None:
                self._engine = None
                _free_memory()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Load the model again, if it sleeps. tags: "weights" and "kv_cache", as in vLLM.

        Raises ConfigError, also after it was closed, or CheckpointError, and InvalidRequestError
        for other tags.
        """
        from quire.compat.sleep_tags import check_tags  # a start needs none

        check_tags(tags or ())
        with self._call_lock:
            self._check_open()
            if self._engine is None:
                core, self.info = start_engine(self._config)
                self._engine = InlineEngine(core)
                self._inputs.set_limits(self.info.limits)

    def is_sleeping(self) -> bool:
        """Whether the model is not in memory."""
        return self._engine is None

    def close(self) -> None:
        """Free all memory, for good, even if it is interrupted.

        Calls of other threads end with a ConfigError at their next step. Raises ConfigError, and
        leaves the model as it is, in an on_output or a forked process.
        """
        self._check_caller()
        self._is_closed = True
        try:
            self.sleep()
        finally:
            self._inputs.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("this LLM was closed; make another one")

    def _awake(self) -> InlineEngine:
        check_process(self._process, "this LLM was made")
        self._check_open()
        if self._engine is None:
            raise ConfigError("this LLM sleeps; call wake_up()")
        return self._engine

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests)


def _free_memory() -> None:
    """Collect what an engine left, also on a GPU."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
