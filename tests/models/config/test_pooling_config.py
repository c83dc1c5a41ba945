"""What a checkpoint's files say of its embeddings, and what of it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.core.pooling_params import PoolingParams
from quire.errors import CheckpointError
from quire.models.config.pooling_config import read_pooling

KIND = "sentence_transformers.models."
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": KIND + "Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": KIND + "Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": KIND + "Normalize"},
]
LAST = {
    "word_embedding_dimension": 48,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_lasttoken": True,
    "include_prompt": True,
}
MEAN = LAST | {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}


def write(folder: Path, modules: Any, pooling: Any) -> Path:
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize(
    ("modules", "pooling", "wanted", "found"),
    [
        (None, None, "auto", ("last", True)),
        (None, None, "mean", ("mean", True)),
        (MODULES, LAST, "auto", ("last", True)),
        (MODULES, MEAN, "auto", ("mean", True)),
        (MODULES[:2], MEAN, "auto", ("mean", False)),
        (MODULES[:2], MEAN, "last", ("last", False)),
        (None, MEAN, "auto", ("mean", True)),
        (MODULES, {"embedding_dimension": 48, "pooling_mode": "lasttoken"}, "auto", ("last", True)),
        (MODULES, {"pooling_mode": "mean"}, "auto", ("mean", True)),
        (MODULES[:1], None, "mean", ("mean", False)),
    ],
)
def test_what_the_files_say(
    tmp_path: Path, modules: Any, pooling: Any, wanted: Any, found: tuple[Any, bool]
) -> None:
    folder = write(tmp_path, modules, pooling)
    expected = PoolingParams(pooling=found[0], normalize=found[1])
    assert read_pooling(folder, wanted, 48) == expected


@pytest.mark.parametrize(
    ("modules", "pooling", "problem"),
    [
        (MODULES, None, "1_Pooling/config.json cannot be read"),
        (MODULES, LAST | {"pooling_mode_lasttoken": False}, "pooling_mode is missing, but one"),
        (MODULES, LAST | {"pooling_mode_mean_tokens": True}, "is mean and last, but one"),
        (MODULES, {"pooling_mode_cls_token": True}, "is pooling_mode_cls_token.*set pooling to"),
        (MODULES, {"pooling_mode": "weightedmean"}, "pooling_mode is weightedmean"),
        (MODULES, LAST | {"word_embedding_dimension": 47}, "is 47, but the model's states have 48"),
        (MODULES[:1], None, "no Pooling module"),
        ([*MODULES, {"path": "3_Dense", "type": KIND + "Dense"}], LAST, "type is Dense, which is"),
        ([MODULES[0], MODULES[1] | {"path": "../x"}], LAST, "leads out of the checkpoint"),
        ({"a": 1}, LAST, "a JSON list of objects"),
        ([1], LAST, "a JSON list of objects"),
    ],
)
def test_what_is_refused(tmp_path: Path, modules: Any, pooling: Any, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read_pooling(write(tmp_path, modules, pooling), "auto", 48)
