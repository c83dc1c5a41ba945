"""A missing method says what to use, whether the class is asked or an object."""

from __future__ import annotations

import abc
import copy
import dataclasses
import pickle
import re
import sys
from typing import Any

import pytest
from child_process import run_to_end

import quire
from quire.compat.method_names import _OF_CLASS, METHODS, what_to_use
from quire.compat.missing_names import ForeignMethods
from quire.core.request_output import CompletionOutput, RequestOutput, RequestTimes
from quire.errors import ConfigError
from quire.tokenizer.transformers_api import TransformersTokenizer

# public names of the classes of vLLM 0.11 and later that serve requests
ENGINE_METHODS = """
    abort add_lora add_request check_health collective_rpc dead_error do_log_stats encode errored
    from_engine_args from_vllm_config generate get_supported_tasks get_tokenizer
    init_weight_transfer_engine is_paused is_running is_sleeping is_stopped is_tracing_enabled
    list_loras pause_generation pin_lora remove_lora reset_encoder_cache reset_mm_cache
    reset_prefix_cache resume_generation scale_elastic_ep shutdown sleep start_profile stop_profile
    update_weights wait_for_requests_to_drain wake_up
"""
STEP_METHODS = """
    abort_request add_lora add_request apply_model collective_rpc do_log_stats
    do_log_stats_with_interval from_engine_args from_vllm_config get_metrics
    get_num_unfinished_requests get_supported_tasks get_tokenizer has_unfinished_requests
    has_unfinished_requests_dp is_sleeping list_loras pin_lora remove_lora reset_encoder_cache
    reset_mm_cache reset_prefix_cache sleep start_profile step stop_profile validate_outputs wake_up
"""
# the same of its SamplingParams, fields of older versions included
SAMPLING_NAMES = """
    all_stop_token_ids allowed_token_ids bad_words bad_words_token_ids best_of clone detokenize
    eos_token_id extra_args flat_logprobs frequency_penalty from_optional guided_decoding ignore_eos
    include_stop_str_in_output logit_bias logits_processors logprobs max_tokens min_p min_tokens n
    output_kind presence_penalty prompt_logprobs repetition_penalty sampling_type seed skip_clone
    skip_reading_prefix_cache skip_special_tokens spaces_between_special_tokens stop stop_token_ids
    structured_outputs temperature thinking_token_budget top_k top_p truncate_prompt_tokens
    update_from_generation_config update_from_tokenizer verify
"""


class LLMEngine(ForeignMethods):
    """By its name, as the table knows it; without a model."""

    value = 7


@pytest.mark.parametrize("asked", [LLMEngine, LLMEngine()])
def test_a_known_name_says_what_to_use(asked: Any) -> None:
    with pytest.raises(AttributeError, match=r"^LLMEngine has no add_lora; merge the") as error:
        asked.add_lora  # noqa: B018
    assert error.value.obj is None, "Python would add a name that is merely alike"
    with pytest.raises(AttributeError, match=r"^LLMEngine has no abort; use abort_request$"):
        asked.abort  # noqa: B018
    with pytest.raises(AttributeError, match=r"^LLMEngine has no vlaue$") as error:
        asked.vlaue  # noqa: B018
    assert error.value.obj is asked, "from which Python finds `value`"
    assert not hasattr(asked, "add_lora")
    assert getattr(asked, "nope", None) is None


def test_copies_and_pickles_see_what_they_always_see() -> None:
    args = quire.EngineArgs(model="quire-tiny", max_num_seqs=3)
    assert copy.deepcopy(args) == pickle.loads(pickle.dumps(args)) == args


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (quire.AsyncLLM, ENGINE_METHODS),
        (quire.LLMEngine, STEP_METHODS),
        (quire.SamplingParams, SAMPLING_NAMES),
        (quire.PoolingParams, "clone dimensions task truncate_prompt_tokens use_activation verify"),
    ],
)
def test_each_method_of_vllms_class_is_there_or_known(cls: type, names: str) -> None:
    for name in names.split():
        assert hasattr(cls, name) or what_to_use([cls.__name__], name), name


@pytest.mark.parametrize("cls", [quire.LLMEngine, quire.AsyncLLM])
def test_nothing_inherited_hides_the_advice_of_a_class(cls: type) -> None:
    assert [name for name in _OF_CLASS[cls.__name__] if name in dir(cls)] == []


def test_params_say_what_to_use() -> None:
    params = quire.SamplingParams(seed=1)
    for asked in (quire.SamplingParams, params):
        with pytest.raises(AttributeError, match=r"from_optional; use SamplingParams, and leave"):
            asked.from_optional  # noqa: B018
        with pytest.raises(AttributeError, match=r"^SamplingParams has no temprature$") as error:
            asked.temprature  # noqa: B018
        assert error.value.obj is asked, "from which Python finds `temperature`"
    with pytest.raises(AttributeError, match=r"has no logits_processors; use logit_bias, bad_w"):
        params.logits_processors = [print]
    assert params == pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params.clone()


def test_a_subclass_says_it_and_may_have_another_base() -> None:
    class Mine(LLMEngine, abc.ABC):
        """A program's own."""

    with pytest.raises(AttributeError, match=r"^Mine has no abort; use abort_request$"):
        Mine().abort  # noqa: B018


def test_advice_is_that_of_the_class() -> None:
    """Methods of models are no advice for what has none."""
    output = CompletionOutput(0)
    with pytest.raises(AttributeError, match=r"^CompletionOutput has no quantize$"):
        output.quantize  # noqa: B018
    assert what_to_use(["AsyncEngine"], "quantize")
    assert what_to_use(["AsyncLLM"], "stream") == "use generate, which streams"
    assert what_to_use(["LLM"], "stream") == METHODS["stream_generate"]


def test_a_subclass_of_engine_args_has_arguments_of_its_own() -> None:
    class Mine(quire.EngineArgs):  # type: ignore[misc]  # made at run time
        def __init__(self, label: str, **options: Any) -> None:
            super().__init__(**options)
            self.label = label

    mine = Mine(label="a", model="quire-tiny", max_num_seqs=3, max_model_len=64)
    quire.LLM.from_engine_args(mine).close()
    assert (mine.label, mine.max_num_seqs) == ("a", 3)


@pytest.mark.parametrize("cls", [quire.LLM, quire.LLMEngine, quire.AsyncLLM])
def test_fields_of_a_subclass_are_no_settings(cls: Any) -> None:
    @dataclasses.dataclass
    class Mine(quire.EngineArgs):  # type: ignore[misc]  # made at run time
        label: str = "a"

    engine = cls.from_engine_args(Mine(model="quire-tiny", max_model_len=64))
    getattr(engine, "shutdown", getattr(engine, "close", None))()


@pytest.mark.parametrize("name", ["from_pretrained", "add_lora", "create_chat_completion"])
def test_a_class_is_asked_before_a_model_is_loaded(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^LLM has no {name}; {re.escape(METHODS[name])}"):
        getattr(quire.LLM, name)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_num_seq": 3}, r"^unknown setting 'max_num_seq'; did you mean 'max_num_seqs'\?"),
        ({"temperature": 3}, r"^temperature is a sampling param; use SamplingParams"),
        ({"xyzzy": 3}, r"^unknown setting 'xyzzy'; leave it out; `quire serve --help`"),
    ],
)
def test_engine_args_refuse_unknown_names_as_llm_does(options: dict[str, Any], text: str) -> None:
    for cls in (quire.EngineArgs, quire.AsyncEngineArgs):
        with pytest.raises(ConfigError, match=text):
            cls(**options)
    with pytest.raises(AttributeError, match=r"^EngineArgs has no create_engine_config; use LLM"):
        quire.EngineArgs().create_engine_config()


@pytest.mark.parametrize(
    ("asked", "name", "text"),
    [
        (RequestOutput("x", None, [], [], RequestTimes(0.0)), "text", r"use outputs\[0\]"),
        (RequestOutput("x", None, [], [], RequestTimes(0.0)), "lora_request", "leave it out: it"),
        (CompletionOutput(0), "routed_experts", "leave it out: it is None"),
        (RequestTimes(0.0), "first_token_ts", "use first_token$"),
        (TransformersTokenizer, "from_pretrained", "use AutoTokenizer of transformers"),
        (quire.AsyncEngine, "from_engine_args", "use AsyncLLM.from_engine_args"),
    ],
)
def test_outputs_and_tokenizers_say_it_too(asked: Any, name: str, text: str) -> None:
    cls = asked.__name__ if isinstance(asked, type) else type(asked).__name__
    with pytest.raises(AttributeError, match=f"^{cls} has no {name}; {text}"):
        getattr(asked, name)
    assert copy.deepcopy(asked) == asked


def test_a_call_of_a_model_says_what_to_use() -> None:
    with quire.LLM(max_model_len=64) as llm, pytest.raises(TypeError, match=r"; use generate for"):
        llm("text", max_tokens=3)  # type: ignore[operator]


def test_the_table_is_not_read_where_nothing_is_missing() -> None:
    code = "import sys, quire.llm; print('quire.compat.method_names' in sys.modules)"
    done = run_to_end([sys.executable, "-c", code], check=True)
    assert done.stdout == "False\n"
