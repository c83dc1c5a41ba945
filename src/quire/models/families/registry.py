"""From the class that a checkpoint names to the class that computes it."""

from __future__ import annotations

from quire.models.families.llama import LlamaForCausalLM
from quire.models.families.phi3 import Phi3ForCausalLM
from quire.models.families.qwen2 import Qwen2ForCausalLM
from quire.models.families.qwen3 import Qwen3ForCausalLM

# family → class; the families are those of architecture.FAMILIES
MODELS: dict[str, type[LlamaForCausalLM]] = {
    "llama": LlamaForCausalLM,
    "mistral": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
    "phi3": Phi3ForCausalLM,
}
