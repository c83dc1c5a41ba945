"""`transformers`: one batch without padding, its own KV cache, scaled dot-product attention."""

from __future__ import annotations

import copy
import time
from functools import partial
from typing import Any

import torch

from peers.worker import WARM_UP, Load, Prompt, serve


class Transformers:
    """Options: `dtype`, "bfloat16" or "float32"."""

    def load(self, load: Load) -> dict[str, Any]:
        import transformers

        torch.set_num_threads(load.threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            load.model, dtype=getattr(torch, load.options["dtype"])
        )
        self._model.eval()
        self._make_cache = partial(transformers.DynamicCache, config=self._model.config)
        settings = load.options | {"attention": self._model.config._attn_implementation}
        return {"version": transformers.__version__, "settings": settings}

    @torch.inference_mode()
    def prefill(self, prompt: Prompt) -> int:
        self._cache = self._make_cache()
        prompts = torch.tensor([prompt])
        # the cache by position, as versions name it differently
        output = self._model(prompts, None, None, self._cache, use_cache=True, logits_to_keep=1)
        self._token = output.logits[:, -1:].argmax(-1)
        return int(self._token)

    @torch.inference_mode()
    def decode(self, streams: int, steps: int) -> tuple[float, int]:
        cache, token = copy.deepcopy(self._cache), self._token.expand(streams, 1)
        cache.batch_repeat_interleave(streams)
        for step in range(WARM_UP + steps):
            if step == WARM_UP:
                begin = time.perf_counter()
            output = self._model(token, None, None, cache, use_cache=True)
            token = output.logits[:, -1:].argmax(-1)
        return time.perf_counter() - begin, steps * streams


if __name__ == "__main__":
    serve(Transformers())
