"""The families of decoders, by name, and the class names of config.json that mean them. No torch.

Every family is computed by the modules of llama.py, from the description of its layers. To add a
family: a table of facts as in gemma2.py, and its name here (docs/models.md).
"""

from __future__ import annotations

from quire.models.families.family import Family
from quire.models.families.gemma2 import GEMMA2
from quire.models.families.mistral import MISTRAL
from quire.models.families.phi3 import PHI3
from quire.models.families.qwen2 import QWEN2
from quire.models.families.qwen3 import QWEN3
from quire.models.families.qwen3_moe import QWEN3_MOE

LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM", "LlamaModel"),
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
)
FAMILIES = {
    family.name: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, PHI3, GEMMA2)
}

# class named in config.json → family
ARCHITECTURES = {
    architecture: family for family in FAMILIES.values() for architecture in family.architectures
}
