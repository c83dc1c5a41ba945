"""vLLM's own endpoint tests against a Quire server, adapted only in how the server is started.

    pip download vllm==0.33.0 --no-deps --no-binary vllm     # or a clone of its repository
    python endpoint_suites.py --source vllm-0.33.0 [--only PART ...]

Needs `pip install fastapi pytest-asyncio requests` besides the extra `test`. Nothing of vLLM is
stored: its test files are copied to a temporary folder, beside stand-ins for the few names of the
package `vllm` that they import (endpoint_suites/). The model is the bundled one under a template
with tools (endpoint_suites/suite_model.py), served under the name that a test asks for.
Tests that need a clever model, an image or an adapter cannot pass; REASONS says which failures are
Quire's choice or the model's. With --only, rows of earlier runs stay in the result file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import record

HERE = Path(__file__).parent
STAND_INS = HERE / "endpoint_suites"
# folder → its files; each folder is one run of pytest
FILES = {
    "anthropic": "messages",
    "launchers": "shutdown",
    "openai": "chunked_prompt return_token_ids return_tokens_as_ids",
    "openai/chat_completion": "batched_chat_completions chat chat_completion chat_echo "
    "chat_logit_bias_validation completion_with_function_calling enable_force_include_usage "
    "extra_content_fields include_reasoning logprob_token_ids root_path thinking_token_budget",
    "openai/completion": "completion prompt_validation token_in_token_out",
    "openai/models": "models",
    "openai/responses": "basic simple stateful structured_output errors",
    "pooling/basic": "truncation",
    "pooling/embed": "online online_dimensions online_long_text",
    "pooling/scoring": "bi_encoder_online",
    "pooling/token_embed": "online",
    "serve/instrumentator": "basic metrics orca_metrics uds",
    "serve/middleware": "optional_middleware",
    "serve/tokenize": "tokenization",
}
HELPERS = (
    "entrypoints/conftest.py",
    "entrypoints/openai/chat_completion/test_serving_chat.py",
    "entrypoints/openai/responses/conftest.py",
    "entrypoints/pooling/scoring/util.py",
    "models/language/pooling/embed_utils.py",
    "models/utils.py",
    "ci_envs.py",
)
# modules of vLLM that its tests read replies with
MODULES = ("utils/serial_utils.py", "utils/mem_constants.py", "entrypoints/pooling/utils.py")
# a part of a test's name or error → its kind and why it cannot pass. Kinds: "choice" (refused by
# name, docs/http-api.md), "model" (it needs another model), "vllm" (it tests vLLM's own insides)
REASONS = {
    "zephyr-lora": ("choice", "no adapters"),
    "test_check_models": ("choice", "no adapters"),
    "test_kv_transfer_": ("choice", "no transfer of KV blocks between engines"),
    "test_extra_fields_allowed": ("choice", "unknown fields of a message are refused by name"),
    "test_extra_content_fields": ("choice", "unknown fields of a part are refused by name"),
    "test_custom_role": ("choice", "roles are a fixed list"),
    "test_per_request_metrics_": ("choice", "times are in /metrics and traces, not in answers"),
    "test_no_request_id_header": ("choice", "each response has its x-request-id"),
    "test_v2_endpoint_accepts": ("choice", "Cohere's /v2/embed"),
    "test_orca_metrics": ("choice", "no load reports in headers; /load and /metrics have them"),
    "test_padding": ("choice", "prompts are never padded"),
    "test_online_long_text": ("choice", "a text beyond the context is not embedded in chunks"),
    "'BadRequestError'": ("choice", "the error's type is OpenAI's, invalid_request_error"),
    "out of vocabulary": ("choice", "the words of the error differ"),
    "logit_bias['bad1']": ("choice", "an error names the first wrong field"),
    "enable-force-include-usage": ("choice", "usage is sent where a request asks for it"),
    "logit_bias_invalid": ("choice", "the words of the error differ"),
    "must be provided and non-empty": ("choice", "the words of the error differ"),
    "use_beam_search": ("choice", "tokens are drawn, without beams"),
    "test_invocations_chat_request": ("choice", "/invocations answers messages as a chat"),
    "compute_maxsim": ("model", "another model's scores"),
    "not 5000": ("model", "token ids beyond the bundled vocabulary"),
    "test_echo_logprob_completion": ("model", "ids of the prompt are its padding"),
    "test_long_seed": ("vllm", "the words of pydantic's messages"),
    "'Reply'": ("vllm", "a unit test of its classes"),
    "Reply(": ("vllm", "a unit test of its classes"),
    "Mock": ("vllm", "a unit test of its classes"),
    "rejects_unknown_reasoning_effort": ("vllm", "a unit test of its classes"),
    "n_parameter_exceeds": ("vllm", "a unit test of its classes"),
    "request_decouples_top_k": ("vllm", "a unit test of its classes"),
    "test_responses_api_logprobs_with_return": ("vllm", "a unit test of its classes"),
    "test_errors.py": ("vllm", "a unit test of its classes"),
    "test_health_check_engine_dead": ("vllm", "a unit test of its classes"),
    "took more than": ("model", "a model that does not end a constrained answer"),
    "test_function_tool_use": ("model", "the bundled model calls no tools"),
    "test_no_args_tool_call": ("model", "the bundled model calls no tools"),
    "test_anthropic_tool_call": ("model", "the bundled model calls no tools"),
    "test_anthropic_streaming_cache_usage": ("model", "its tokenizer needs more tokens"),
    "test_complex_message_content": ("model", "the bundled model cannot add"),
    "== {'result': 2}": ("model", "the bundled model cannot add"),
    "'TypeScript' != 'TypeScript'": ("model", "the bundled model gives the same answer twice"),
    "test_include_reasoning": ("model", "the bundled model does not reason"),
    "reasoning_tokens": ("model", "the bundled model does not reason"),
    "test_reasoning_item": ("model", "the bundled model does not reason"),
    "CompletionUsa": ("model", "its tokenizer needs another number of tokens"),
    "iteration_tokens_total_sum": ("model", "its tokens fill a block, so a prompt is cached"),
    "<|im_start|>": ("model", "another chat template"),
}
KINDS = ("passed", "missing", "choice", "model", "vllm", "skipped")


def main() -> None:
    """Run the suite and write results/endpoint_suites.json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, required=True, help="vLLM's source tree")
    parser.add_argument("--only", nargs="*", default=(), help="parts of file names")
    parser.add_argument("--results", type=Path, default=record.RESULTS, help="where they are saved")
    args = parser.parse_args()
    earlier = _saved(args.results) if args.only else {"files": [], "failed": []}
    with tempfile.TemporaryDirectory() as folder:
        rows = run(args.source, Path(folder), args.only)
    files, failed = counts(rows), failures(rows)
    ran = {row["file"] for row in files}
    files += [row for row in earlier["files"] if row["file"] not in ran]
    failed += [row for row in earlier["failed"] if row["test"].partition("::")[0] not in ran]
    files.sort(key=lambda row: str(row["file"]))
    failed.sort(key=lambda row: row["test"])
    measured = {"source": args.source.name, "files": files, "failed": failed}
    record.save("endpoint_suites", measured, args.results)
    show([row for row in files if row["file"] in ran], failed, ran)


def _saved(folder: Path) -> dict[str, list[dict[str, str]]]:
    file = folder / "endpoint_suites.json"
    return json.loads(file.read_text()) if file.exists() else {"files": [], "failed": []}


def run(source: Path, folder: Path, only: list[str]) -> list[dict[str, str]]:
    """Copy the tests and run them, a folder at a time; one row for each test."""
    sys.path.insert(0, str(STAND_INS))
    from suite_model import make_model

    make_model(folder / "model")
    tests = folder / "tests"
    shutil.copytree(STAND_INS, folder, dirs_exist_ok=True)
    for name in HELPERS:
        _copy(source / "tests", tests, name)
    for name in MODULES:
        _copy(source / "vllm", folder / "vllm", name)
    rows: list[dict[str, str]] = []
    for group, words in FILES.items():
        names = [f"{group}/test_{word}.py" for word in words.split()]
        chosen = [name for name in names if not only or any(part in name for part in only)]
        for name in chosen:
            _copy(source / "tests", tests, f"entrypoints/{name}")
        rows += _run_files(folder, chosen) if chosen else []
    return rows


def _copy(source: Path, package: Path, name: str) -> None:
    target = package / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / name, target)
    while target != package:
        target = target.parent
        (target / "__init__.py").touch()


def _run_files(folder: Path, names: list[str]) -> list[dict[str, str]]:
    report = folder / "report.jsonl"
    report.unlink(missing_ok=True)
    paths = [str(folder), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": ":".join(paths),
        "SUITE_REPORT": str(report),
        "SUITE_MODEL": str(folder / "model"),
        "SUITE_LOG": str(folder / "server.log"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suite_report", "-p", "no:cacheprovider"]
    command += ["-W", "ignore", "--tb=short", "-c", "/dev/null", "--rootdir", str(folder)]
    command += ["-o", "asyncio_mode=auto", "--continue-on-collection-errors"]
    command += ["-k", "not watermarked"]  # the same tests once more, with an option that is refused
    command += [f"tests/entrypoints/{name}" for name in names]
    subprocess.run(command, cwd=folder, env=environment, timeout=1800, check=False)
    return [json.loads(line) for line in report.read_text().splitlines()]


def kind_of(row: dict[str, str]) -> str:
    """One of KINDS."""
    if row["outcome"] in ("passed", "skipped"):
        return row["outcome"]
    text = row["test"] + " " + row["why"]
    return next((kind for part, (kind, _) in REASONS.items() if part in text), "missing")


def counts(rows: list[dict[str, str]]) -> list[dict[str, str | int]]:
    """How many tests of each file came out how."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[_short(row).partition("::")[0]][kind_of(row)] += 1
    return [{"file": file} | {kind: count[kind] for kind in KINDS} for file, count in found.items()]


def failures(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """A reason for each test that failed."""
    return [
        {"test": _short(row), "kind": kind_of(row), "why": _reason(row)}
        for row in rows
        if row["outcome"] not in ("passed", "skipped")
    ]


def _reason(row: dict[str, str]) -> str:
    text = row["test"] + " " + row["why"]
    return next((why for part, (_, why) in REASONS.items() if part in text), row["why"][:160])


def _short(row: dict[str, str]) -> str:
    return row["test"].removeprefix("tests/entrypoints/")


def show(files: list[dict[str, Any]], failed: list[dict[str, str]], ran: set[str]) -> None:
    """Print counts by file, and the failures that are nobody's choice."""
    for row in files:
        print(f"{row['file']:60s}", {kind: row[kind] for kind in KINDS if row[kind]})
    print("all:", {kind: sum(row[kind] for row in files) for kind in KINDS})
    for row in failed:
        if row["kind"] == "missing" and row["test"].partition("::")[0] in ran:
            print(row["test"], "\n   ", row["why"])


if __name__ == "__main__":
    main()
