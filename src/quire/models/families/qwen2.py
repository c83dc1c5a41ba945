"""Qwen2 and Qwen2.5: Llama with biases on query, key and value, and windows in upper layers.

Both come from the architecture, so that nothing is left to say here but the name.
"""

from __future__ import annotations

from quire.models.families.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2 with its head."""
