"""Arguments of from_pretrained in transformers and llama-cpp-python, as engine settings."""

from __future__ import annotations

from quire.compat import phrases as say
from quire.compat.foreign_name import DEFAULT, ForeignName, alias, no_effect, only

_T, _LP = "transformers", "llama-cpp-python"

TRANSFORMERS_NAMES: tuple[ForeignName, ...] = (
    alias("pretrained_model_name_or_path", "model", _T),
    alias("torch_dtype", "dtype", _T),
    alias("load_in_8bit", "quantization", _T, values={True: "int8", False: DEFAULT},
          arity="switch"),
    alias("load_in_4bit", "quantization", _T, values={True: "nf4", False: DEFAULT},
          arity="switch"),
    alias("device_map", "device", _T, others=False, text=say.ONE_DEVICE, fix="use device",
          values={"auto": DEFAULT, 0: "cuda", "cuda": "cuda", "cuda:0": "cuda", "cpu": "cpu"}),
    only("max_memory", _T, (), say.ONE_DEVICE, "use gpu_memory_utilization"),
    only("offload_folder", _T, (), say.ONE_DEVICE, "leave it out"),
    no_effect("attn_implementation", _T, say.OWN_KERNELS),
    no_effect("low_cpu_mem_usage", _T, "weights are read once, into their place"),
    no_effect("use_safetensors", _T, "safetensors and GGUF files alone are read"),
    no_effect("use_fast", _T, "tokenizer.json is read"),
    only("cache_dir", _T, (), say.HUB_CLIENT, say.HF_HOME),
    only("local_files_only", _T, (False,), say.HUB_CLIENT, "set HF_HUB_OFFLINE=1"),
    only("token", _T, (False,), say.HUB_CLIENT, "set HF_TOKEN"),
    only("use_auth_token", _T, (False,), say.HUB_CLIENT, "set HF_TOKEN"),
    only("force_download", _T, (False,), say.HUB_CLIENT, "run hf download --force-download"),
    only("subfolder", _T, ("",), "a model is a whole folder", "download it, and name that folder"),
    only("variant", _T, (), "weights have one name", "name a folder with those files"),
    only("bnb_4bit_compute_dtype", _T, (), "activations have one data type", "use dtype"),
    *(
        only(name, _LP, (), say.NO_FILES, say.DOWNLOAD)
        for name in ("repo_id", "filename", "hf_model_repo_id", "additional_files")
    ),
    only("hf_pretrained_model_name_or_path", _LP, (), "it is of the tokenizer", "use tokenizer"),
    only("hf_tokenizer_config_path", _LP, (), say.TEMPLATE, "use chat_template"),
    only("clip_model_path", _LP, (), say.TEXT_ONLY, "leave it out"),
    only("draft_model_num_pred_tokens", _LP, (), say.ONE_TOKEN, "leave it out"),
)  # fmt: skip
