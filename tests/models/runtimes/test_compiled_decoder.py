"""Decoders of compiled code: the bits of a model's modules, layer by layer; what is not served."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from harness import PagedModel, PagedRequest, load_folder
from msgspec.structs import replace
from torch import Tensor

from quire.array_types import Ints
from quire.core.layer_spec import NormSpec, UnsupportedModelError
from quire.hub import resolve_model
from quire.kernels.cpu import native
from quire.kernels.cpu.array_ops import address, embedding
from quire.kernels.cpu.native_linear import pack_floats
from quire.kernels.cpu.row_ops import in_float32
from quire.kernels.ragged_batch import RaggedBatch
from quire.kernels.torch_dtypes import dtype_name, torch_dtype
from quire.kvcache.host_kv_cache import HostCache
from quire.kvcache.kv_sizes import kv_name
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaForCausalLM
from quire.models.prepared.prepared_reader import StoredArrays
from quire.models.prepared.prepared_weights import arrays_of, stored_arrays
from quire.models.runtimes import compiled_decoder
from quire.models.runtimes.compiled_decoder import FEW_TOKENS, CompiledDecoder
from quire.models.runtimes.torch_model import TorchModel

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels were not built")

FAMILIES = [
    *("gemma2_d16", "gemma2_d256"),
    *("llama_biased_d16", "llama_yarn_d16", "llama_mqa_d80", "llama_d96"),
    *("phi3_partial", "qwen3_windows"),
]
FEW = (1, 1, 9, 20)  # tokens of a step: of two decodes, and of parts of prompts
MANY = (1, 1, 30, 50)
HEAD_NORM = NormSpec(module="self_attn.q_norm", size=96, eps=1e-6)
Model = tuple[LlamaForCausalLM, ModelConfig]


class PagedDecoder(PagedModel):
    """The compiled decoder over a model's weights, with the angles that the model has.

    NumPy's cos and sin differ from PyTorch's in the last bit, now and then.
    """

    def __init__(
        self, model: LlamaForCausalLM, model_config: ModelConfig, kv: str = "auto"
    ) -> None:
        super().__init__(model, model_config)
        self.decoder = CompiledDecoder(model_config.spec, stored_arrays(model), self.block_size)
        vars(self.decoder)["_rotary"] = self
        dtype = kv_name(kv, str(model.model.norm.weight.dtype).removeprefix("torch."))
        layers = model_config.spec.kv_layers
        self.cache = HostCache.allocate(layers, len(self.free), self.block_size, dtype)
        self.heartbeats = 0

    def up_to(self, end: int) -> tuple[Any, Any]:
        """See `RopeTable.up_to`."""
        cos, sin = self.model.model.rotaries[0](torch.arange(end))
        angles = arrays_of({"cos": cos, "sin": sin})
        return angles["cos"], angles["sin"]

    def run(self, input_ids: Ints, batch: RaggedBatch) -> Tensor:
        """See `PagedModel`."""
        states = self.decoder.with_cache(self.cache).forward(input_ids, batch, self.heartbeat)
        return torch.from_numpy(in_float32(states.logits(slice(None))))

    def heartbeat(self) -> None:
        self.heartbeats += 1


def logits(paged: PagedModel, paces: tuple[int, ...] = FEW) -> list[Tensor]:
    """Logits of three steps of requests that advance together."""
    requests = [PagedRequest([(7 * i + 3 * n) % 500 + 3 for i in range(3 * n)]) for n in paces]
    return [part for _ in range(3) for part in paged.step(list(zip(requests, paces, strict=True)))]


def assert_same_bits(model: Model, kv: str = "auto", paces: tuple[int, ...] = FEW) -> None:
    dtype, same = model[0].model.norm.weight.dtype, torch.equal
    modules = PagedModel(*model, dtype=torch_dtype(kv_name(kv, dtype_name(dtype))))
    ours, theirs = logits(PagedDecoder(*model, kv), paces), logits(modules, paces)
    if model[1].logit_soft_cap is not None:
        # tanh is NumPy's or PyTorch's; modules round the norm that follows a norm of an output
        error = 4e-6 if dtype == torch.float32 else 0.06
        same = partial(torch.allclose, rtol=0.0, atol=error)
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(
    family: str, dtype: str, checkpoint: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_folder(checkpoint(family)[0], dtype=dtype)
    assert sum(FEW) <= FEW_TOKENS < sum(MANY)
    assert_same_bits(model, paces=MANY)
    assert_same_bits(model)
    # so that the second is another call's first
    monkeypatch.setattr(compiled_decoder, "_TOGETHER", 1)
    assert_same_bits(model)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("kv", ["auto", "fp8", "int8"])
@pytest.mark.parametrize("paces", [FEW, MANY], ids=["few", "many"])
def test_weight_formats_and_kv_dtypes(quantization: str, kv: str, paces: tuple[int, ...]) -> None:
    """The head is tied: rows are looked up in another copy of its weight."""
    folder = resolve_model("quire-tiny")
    assert_same_bits(load_folder(folder, "bfloat16", quantization=quantization), kv, paces)


@pytest.mark.parametrize("quantization", ["int8", "w8a16", "int4", "nf4", "mxfp4"])
def test_biases_with_each_weight_format(quantization: str, checkpoint: Callable) -> None:
    assert_same_bits(load_folder(checkpoint("llama_biased_d16")[0], quantization=quantization))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, checkpoint: Callable) -> None:
    """With its own angles."""
    folder, theirs = checkpoint(family)
    model, model_config = load_folder(folder)
    paged = PagedDecoder(model, model_config)
    paged.decoder = CompiledDecoder(model_config.spec, stored_arrays(model), paged.block_size)
    prompt = [(7 * i * i + 3) % 500 for i in range(150)]
    with torch.inference_mode():
        expected = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
    assert (paged.prefill(prompt, chunk=40) - expected).abs().max().item() <= 1e-4


class SomeStates(PagedDecoder):
    """Logits after some tokens of each step; those of the others are zeros."""

    needed = np.array([1, 5, 10])  # a decode, and some of parts of prompts
    is_compiled = True

    def run(self, input_ids: Ints, batch: RaggedBatch) -> Tensor:
        """See `PagedModel`."""
        modules = TorchModel(self.model, self.kv, torch.device("cpu"))
        host = self.decoder.with_cache(self.cache) if self.is_compiled else modules
        states = host.forward(input_ids, batch, needed=self.needed)
        assert states.finite().tolist() == [True] * len(input_ids)
        found = torch.zeros(len(input_ids), self.model.spec.vocab_size)
        found[self.needed] = torch.from_numpy(in_float32(states.logits(slice(None))))
        return found


class SomeStatesOfModules(SomeStates):
    is_compiled = False


@pytest.mark.parametrize("paces", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("kind", [SomeStates, SomeStatesOfModules])
def test_states_of_some_tokens_are_those_among_all(
    kind: type[SomeStates], paces: tuple[int, ...], checkpoint: Callable
) -> None:
    """The same bits, as a row of a product does not depend on the others; all keys are written."""
    model = load_folder(checkpoint("gemma2_d16")[0])
    whole, some = (
        torch.cat(logits(paged(*model), paces)).view(3, sum(paces), -1)
        for paged in (PagedDecoder if kind.is_compiled else PagedModel, kind)
    )
    assert torch.equal(some[:, kind.needed], whole[:, kind.needed])
    assert some.count_nonzero() == some[:, kind.needed].count_nonzero()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_states_of_some_tokens_with_quantized_weights(quantization: str) -> None:
    """The same bits, but for four bits with AMX, which go through tiles from 10 rows on."""
    if quantization == "int4" and native.instruction_set() == "amx":
        pytest.skip("kernels for few and for many rows round differently")
    model = load_folder(resolve_model("quire-tiny"), "bfloat16", quantization=quantization)
    whole, some = (
        torch.cat(logits(paged(*model))).view(3, sum(FEW), -1)
        for paged in (PagedDecoder, SomeStates)
    )
    assert torch.equal(some[:, SomeStates.needed], whole[:, SomeStates.needed])


def test_fewer_layers_are_those_of_the_caches(checkpoint: Callable) -> None:
    """Step tuning runs fewer layers. Each call sends a heartbeat."""
    model, model_config = load_folder(checkpoint("qwen3_windows")[0])
    ours, theirs = PagedDecoder(model, model_config), PagedModel(model, model_config)
    whole = logits(ours)
    assert ours.heartbeats == 3
    first = PagedDecoder(model, model_config)
    del first.cache.layers[1:], theirs.kv[1:]
    found = logits(first)
    assert all(torch.equal(a, b) for a, b in zip(found, logits(theirs), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(found, whole, strict=True))


@pytest.mark.parametrize(
    ("family", "block_size", "reason"),
    [
        ("llama", 16, "heads of 8 "),
        ("llama_d96", 12, "heads of 96 in blocks of 12"),
        ("llama_dynamic", 16, "depend on a sequence's length"),
        ("qwen3_moe", 16, "mixture of 5 experts"),
    ],
)
def test_shapes_that_are_left_to_the_modules(
    family: str, block_size: int, reason: str, checkpoint: Callable
) -> None:
    model_config = ModelConfig.from_folder(checkpoint(family)[0])
    with pytest.raises(UnsupportedModelError, match=reason):
        CompiledDecoder(model_config.spec, StoredArrays({}, {}), block_size)


def test_a_tensor_that_nothing_reads_is_refused(checkpoint: Callable) -> None:
    """A family with Llama's names and more would run, wrongly, without what the rest does."""
    model, model_config = load_folder(checkpoint("llama_d96")[0])
    stored = stored_arrays(model)
    name = "model.layers.1.post_feedforward_layernorm.weight"
    more = StoredArrays({**stored.arrays, name: np.ones(48, np.float32)}, stored.formats)
    CompiledDecoder(model_config.spec, stored, 16)
    with pytest.raises(UnsupportedModelError, match=f"nothing reads the tensor {name}"):
        CompiledDecoder(model_config.spec, more, 16)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention": {"sinks": True}}, "^attention sinks"),
        ({"attention": {"value_dim": 48}}, "^values of 48 dimensions beside keys of 96"),
        ({"attention": {"query_norm": HEAD_NORM}}, "^a norm of queries alone"),
        ({"attention": {"num_kv_heads": 1}}, "^layers with different heads"),
        ({"pre_mlp_norm": {"eps": 0.1}}, "^norms with different eps"),
        ({"mlp": {"activation": "relu2"}}, "^activation relu2"),
    ],
)
def test_a_layer_that_is_not_computed_is_refused_by_name(
    changes: dict[str, dict[str, Any]], reason: str, checkpoint: Callable
) -> None:
    """Though every tensor that Llama has is there."""
    model, model_config = load_folder(checkpoint("llama_d96")[0])
    spec, ((part, values),) = model_config.spec, changes.items()
    layer = spec.layers[-1]
    changed = replace(layer, **{part: replace(getattr(layer, part), **values)})
    layers = (changed,) * 2 if "value_dim" in values else (spec.layers[0], changed)
    with pytest.raises(UnsupportedModelError, match=reason):
        CompiledDecoder(replace(spec, layers=layers), stored_arrays(model), 16)


@pytest.mark.parametrize(
    "name",
    [
        *("model.norm.weight", "model.layers.1.post_attention_layernorm.weight"),
        *("model.layers.1.self_attn.qkv_proj.bias", "model.embed_tokens.weight"),
        "model.rotary.inv_freq",
    ],
)
def test_a_tensor_of_another_shape_is_refused(name: str, checkpoint: Callable) -> None:
    model, model_config = load_folder(checkpoint("llama_biased_d16")[0])
    stored = stored_arrays(model)
    short = StoredArrays({**stored.arrays, name: stored.arrays[name][:3]}, stored.formats)
    shape = list(stored.arrays[name].shape)
    reason = f"{name} is {[3, *shape[1:]]}, not {shape}"
    with pytest.raises(UnsupportedModelError, match=re.escape(reason)):
        CompiledDecoder(model_config.spec, short, 16)


def test_a_bias_of_the_head_is_refused(checkpoint: Callable) -> None:
    model, model_config = load_folder(checkpoint("llama_d96")[0])
    assert model_config.spec.head is not None
    spec = replace(model_config.spec, head=replace(model_config.spec.head, bias=True))
    with pytest.raises(UnsupportedModelError, match="a bias of the head"):
        CompiledDecoder(spec, stored_arrays(model), 16)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"quantization": "fp8"}, "qkv_proj is in fp8, and no compiled kernel reads fp8 weights$"),
        ({"dtype": "float16"}, "activations of float16"),
    ],
)
def test_formats_that_the_pytorch_modules_serve(options: dict[str, str], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        PagedDecoder(*load_folder(resolve_model("quire-tiny"), **options))


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_head_of_an_odd_size_is_padded(quantization: str, checkpoint: Callable) -> None:
    options = {"quantization": quantization, "dtype": "bfloat16"}
    model, model_config = load_folder(checkpoint("llama_biased_d16")[0], **options)
    paged = PagedDecoder(model, model_config)
    head = paged.decoder._weights.head
    assert head is not None
    assert (model_config.vocab_size, head.outputs) == (509, 512)
    assert_same_bits((model, model_config), paces=FEW)


def test_a_step_of_few_tokens_is_two_native_calls(
    checkpoint: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers with all norms and the check of its states, and the head."""
    calls, library = list[str](), native.compiled()

    class Library:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(library, name)

    paged = PagedDecoder(*load_folder(checkpoint("llama_d96")[0]))
    monkeypatch.setattr(native, "compiled", Library)
    logits(paged)
    assert calls == ["quire_cpu_layers", "quire_cpu_linear"] * 3


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize("count", [0, 5])
def test_the_address_of_an_array(count: int, is_writable: bool) -> None:
    """Weights that are mapped from a file cannot be written."""
    array = np.arange(9, dtype=np.int64)[2 : 2 + count]
    array.flags.writeable = is_writable
    assert address(array) == array.ctypes.data
    if count:
        with pytest.raises(TypeError, match=r"not .*contiguous"):
            address(array[::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_found_in_a_packed_table(dtype: torch.dtype) -> None:
    weight = torch.randn(48, 10).to(dtype)
    packed = pack_floats(weight)
    arrays = arrays_of({"plain": weight, "packed": packed.packed})
    ids = np.array([0, 47, 16, 15, 16])
    rows = embedding(ids, dataclasses.replace(packed, packed=arrays["packed"]))
    assert rows.flags.c_contiguous
    assert np.array_equal(rows, embedding(ids, arrays["plain"]))
    assert np.array_equal(rows, arrays["plain"][ids])
