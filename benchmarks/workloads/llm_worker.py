"""A process with one `quire.LLM`, driven by lines of JSON: one request in, one answer out.

Started with PYTHONPATH at the tree whose build it runs, so it imports nothing of this folder and of
quire only what is public. Requests:

    {"do": "load", "options": {"model": PATH, "device": "cpu"}}    seconds, cpu_seconds
    {"do": "generate", "prompts": [[7, 9]], "max_tokens": 16}      the same, tokens
    {"do": "quit"}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Serve commands on standard input until it ends. Libraries' output goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    llm: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        if request["do"] == "quit":
            return
        if request["do"] == "load":
            from quire import LLM

            llm, tokens = LLM(**request["options"]), 0
        else:
            tokens = generate(llm, request["prompts"], request["max_tokens"])
        answer = {"seconds": time.perf_counter() - begin, "tokens": tokens}
        answer["cpu_seconds"] = time.process_time() - cpu_begin
        print(json.dumps(answer), file=answers)


def generate(llm: Any, prompts: list[list[int]], max_tokens: int) -> int:
    """Answer all prompts at once, greedily; returns the number of tokens of the answers."""
    from quire import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs)


if __name__ == "__main__":
    main()
