"""vLLM's own endpoint tests against a Quire server, adapted only in how the server is started.

    pip download vllm==0.33.0 --no-deps --no-binary vllm     # or a clone of its repository
    python endpoint_suites.py --source vllm-0.33.0 [--only FILE ...]

Needs `pip install pytest-asyncio requests` besides the extra `test`. Nothing of vLLM is imported or
stored: its test files are copied to a temporary folder, beside stand-ins for the few names of the
package `vllm` that they import (endpoint_suites/). The model is the bundled one, served under the
name that a test asks for, so tests that need a clever model, an image or an adapter cannot pass;
EXPECTED says which failures are Quire's choice or the model's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import record

HERE = Path(__file__).parent
STAND_INS = HERE / "endpoint_suites"
FILES = (
    *("anthropic/test_messages.py", "openai/models/test_models.py"),
    *("openai/chat_completion/test_batched_chat_completions.py",),
    *("openai/chat_completion/test_chat.py", "openai/chat_completion/test_chat_completion.py"),
    *("openai/chat_completion/test_chat_echo.py",),
    *("openai/chat_completion/test_chat_logit_bias_validation.py",),
    *("openai/chat_completion/test_completion_with_function_calling.py",),
    *("openai/chat_completion/test_enable_force_include_usage.py",),
    *("openai/chat_completion/test_extra_content_fields.py",),
    *("openai/chat_completion/test_include_reasoning.py",),
    *("openai/chat_completion/test_logprob_token_ids.py",),
    *("openai/chat_completion/test_root_path.py",),
    *("openai/chat_completion/test_thinking_token_budget.py",),
    *("openai/completion/test_completion.py", "openai/completion/test_prompt_validation.py"),
    *("openai/completion/test_token_in_token_out.py", "openai/test_chunked_prompt.py"),
    *("openai/responses/test_basic.py", "openai/responses/test_simple.py"),
    *("openai/responses/test_stateful.py", "openai/responses/test_structured_output.py"),
    *("openai/test_return_token_ids.py", "openai/test_return_tokens_as_ids.py"),
    *("pooling/embed/test_online.py", "pooling/embed/test_online_dimensions.py"),
    *("pooling/scoring/test_bi_encoder_online.py",),
    *("serve/instrumentator/test_basic.py", "serve/instrumentator/test_metrics.py"),
    *("serve/instrumentator/test_uds.py", "serve/tokenize/test_tokenization.py"),
)
# a part of a test's name → why it cannot pass: "choice" (refused by name, docs/http-api.md),
# "model" (the bundled model is too small, or another one is needed), "vllm" (vLLM's own insides)
EXPECTED = {
    "[zephyr-lora]": "choice",  # no adapters
    "test_check_models": "choice",  # likewise
    "test_kv_transfer_": "choice",  # no transfer of KV between engines
    "test_extra_fields_allowed": "choice",  # unknown fields of a message are refused by name
    "test_custom_role": "choice",  # roles are a fixed list
    "test_translategemma_": "choice",  # likewise fields of a part of a message
    "test_invocations": "choice",  # SageMaker's path
    "test_per_request_metrics_": "choice",  # times are in /metrics and traces
    "test_chat_completion_stream_options": "choice",  # usage has more details than vLLM's
    "test_long_seed": "vllm",  # the words of pydantic's messages
    "test_chat_logit_bias_": "vllm",  # likewise
    "test_chat_completion_request_": "vllm",  # unit tests of its classes
    "test_completion_request_": "vllm",
    "test_null_top_logprobs_": "vllm",
    "request_decouples_top_k": "vllm",
    "test_responses_api_logprobs_with_return": "vllm",
    "test_function_tool_use": "model",  # the bundled template shows no tools
    "test_no_args_tool_call": "model",
    "test_named_tool_use": "model",
    "test_max_tokens_with_tool_choice": "model",
    "test_include_reasoning.py": "model",  # the bundled model does not reason
    "with_long_prompts": "model",  # more than its 4,096 tokens of context
    "test_single_completion": "model",  # its tokens differ
    "test_echo_logprob_completion": "model",  # ids of the prompt are its padding
}


def main() -> None:
    """Run the suite and write results/endpoint_suites.json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, required=True, help="vLLM's source tree")
    parser.add_argument("--only", nargs="*", default=(), help="parts of file names")
    parser.add_argument("--name", default="endpoint_suites", help="of the result file")
    args = parser.parse_args()
    files = [f for f in FILES if not args.only or any(part in f for part in args.only)]
    with tempfile.TemporaryDirectory() as folder:
        rows = run(args.source, Path(folder), files)
    show(rows)
    if not args.only:
        record.save(args.name, {"source": args.source.name, "tests": rows})


def run(source: Path, folder: Path, files: list[str]) -> list[dict[str, str]]:
    """Copy the tests and run them, file by file; one row for each test."""
    tests = folder / "tests"
    shutil.copytree(STAND_INS, folder, dirs_exist_ok=True)
    for name in ("conftest.py", "openai/responses/conftest.py"):
        _copy(source, tests, name)
    rows: list[dict[str, str]] = []
    for name in files:
        _copy(source, tests, name)
        rows += _run_file(folder, name)
    return rows


def _copy(source: Path, tests: Path, name: str) -> None:
    target = tests / "entrypoints" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "tests" / "entrypoints" / name, target)
    while target != tests:
        target = target.parent
        (target / "__init__.py").touch()


def _run_file(folder: Path, name: str) -> list[dict[str, str]]:
    report = folder / "report.jsonl"
    report.unlink(missing_ok=True)
    paths = [str(folder), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": ":".join(paths), "SUITE_REPORT": str(report)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suite_report", "-p", "no:cacheprovider"]
    command += ["-W", "ignore", "--tb=short", "-c", "/dev/null", "--rootdir", str(folder)]
    command += ["-o", "asyncio_mode=auto", f"tests/entrypoints/{name}"]
    subprocess.run(command, cwd=folder, env=environment, timeout=900, check=False)
    if not report.exists():
        return [{"test": name, "outcome": "error", "why": "the file cannot be collected"}]
    return [json.loads(line) for line in report.read_text().splitlines()]


def kind_of(row: dict[str, str]) -> str:
    """passed, skipped, choice, model, vllm or missing."""
    if row["outcome"] != "failed":
        return row["outcome"]
    return next((kind for part, kind in EXPECTED.items() if part in row["test"]), "missing")


def show(rows: list[dict[str, str]]) -> None:
    """Print a table of counts by file, and the failures that are nobody's choice."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        name = re.sub(r"^tests/entrypoints/|::.*", "", row["test"])
        counts.setdefault(name, Counter())[kind_of(row)] += 1
    for name, count in counts.items():
        print(f"{name:60s}", dict(count))
    print("all:", dict(Counter(map(kind_of, rows))))
    for row in rows:
        if kind_of(row) in ("missing", "error"):
            print(row["test"].removeprefix("tests/entrypoints/"), "\n   ", row["why"][:200])


if __name__ == "__main__":
    main()
