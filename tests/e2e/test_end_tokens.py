"""Tokens that end an answer."""

from __future__ import annotations

import json
from pathlib import Path

from quire import LLM, SamplingParams, StructuredOutputs
from quire.model_folder import BUNDLED_FOLDER


def test_answers_end_with_the_tokenizers_end_where_a_models_files_have_another(
    tmp_path: Path,
) -> None:
    """As training with another chat template leaves them."""
    bundled = BUNDLED_FOLDER / "quire-tiny"
    for file in bundled.iterdir():
        (tmp_path / file.name).symlink_to(file)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((bundled / name).read_text()) | {"eos_token_id": 7}
        (tmp_path / name).unlink()
        (tmp_path / name).write_text(json.dumps(settings))
    other, constraint = LLM(str(tmp_path)), StructuredOutputs(regex="[a-z ]*")
    message = [{"role": "user", "content": "red runing shoes"}]
    for structured in (None, constraint):
        params = SamplingParams(temperature=0, max_tokens=24, structured_outputs=structured)
        answer = other.chat(message, params, use_tqdm=False)[0].outputs[0]
        assert (answer.text, answer.finish_reason) == ("red running shoes", "stop")
