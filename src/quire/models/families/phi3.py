"""Phi-3: Llama whose checkpoints hold the fused weights already, and whose rope may be partial."""

from __future__ import annotations

from typing import ClassVar

from quire.models.families.llama import LlamaForCausalLM


class Phi3ForCausalLM(LlamaForCausalLM):
    """Phi-3 with its head."""

    packed_modules: ClassVar[dict[str, dict[str, str]]] = {}
