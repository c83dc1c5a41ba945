"""What scripts for vLLM import for their command lines."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import pytest

import quire
from quire.cli.vllm_scripts import EngineArgs, FlexibleArgumentParser, print_embeddings
from quire.config import EngineConfig
from quire.errors import NoEffectWarning


def parser_of_a_script() -> argparse.ArgumentParser:
    """As vLLM's offline examples make theirs."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.set_defaults(model="quire-tiny", runner="pooling", enforce_eager=True)
    parser.add_argument_group("Sampling parameters").add_argument("--max-tokens", type=int)
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def test_options_are_settings_of_an_engine() -> None:
    words = [
        "--max_model_len",
        "4K",
        "--tensor-parallel-size=1",
        "--max-tokens",
        "5",
        "-ctk",
        "f16",
    ]
    given = vars(parser_of_a_script().parse_args(words))
    assert given.pop("max_tokens") == 5
    config = EngineConfig.from_options(**given)
    assert (config.model.max_model_len, config.device.enforce_eager) == (4096, True)
    assert config.model.model == "quire-tiny"


def test_engine_args_hold_settings() -> None:
    args = EngineArgs(model="quire-tiny", max_num_seqs=3, tensor_parallel_size=1)
    older = EngineArgs(model="quire-tiny", disable_log_requests=True)  # a server's name
    with pytest.warns(NoEffectWarning, match="disable_log_requests has no effect"):
        quire.LLM.from_engine_args(older).close()
    config = EngineConfig.from_options(**asdict(args))
    assert config == EngineConfig.from_options(max_num_seqs=3)
    parsed = parser_of_a_script().parse_args(["--max-num-seqs", "3", "--no-enforce-eager"])
    assert EngineConfig.from_options(**asdict(EngineArgs.from_cli_args(parsed))) == config


def test_an_option_that_is_refused_ends_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser_of_a_script().parse_args(["--tensor-parallel-size", "2"])
    assert "--tensor-parallel-size 2 is not supported" in capsys.readouterr().err
    with pytest.warns(NoEffectWarning, match="--swap-space has no effect"):
        parser_of_a_script().parse_args(["--swap-space", "4"])


def test_the_begin_of_a_vector(capsys: pytest.CaptureFixture[str]) -> None:
    assert quire.print_embeddings is print_embeddings
    print_embeddings([0.5] * 8)
    assert capsys.readouterr().out == (
        "Embeddings: [0.5000, 0.5000, 0.5000, 0.5000, ...] (size=8)\n"
    )
