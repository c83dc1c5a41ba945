"""The model of benchmarks/faults.py and soak.py: it loads, and one token alone makes NaN logits."""

from __future__ import annotations

from pathlib import Path

from reliability.model import POISON, write_poisoned_model

from quire import LLM, SamplingParams


def test_one_token_makes_logits_nan_and_no_other(tmp_path: Path) -> None:
    with LLM(str(write_poisoned_model(tmp_path / "model")), dtype="float32") as llm:
        asked = SamplingParams(max_tokens=2, temperature=0)
        prompts = [[200, 201], [200, POISON, 201], list(range(200, 2000))]
        outputs = llm.generate(prompts, asked, raise_errors=False, use_tqdm=False)
        assert [output.error is None for output in outputs] == [True, False, True]
        assert POISON not in llm.get_tokenizer().encode("".join(map(chr, range(1, 2000))))
