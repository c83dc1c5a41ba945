"""Clients that leave before a whole answer: what the log says of the tokens they have cost."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from typing import Any

import pytest
from server_process import end_server, running_server

ENDLESS = ["--load-format", "null", "--max-model-len", "400000", "--num-blocks", "65536"]


@pytest.mark.parametrize(
    ("fields", "num_prompt_tokens", "reason"),
    [
        ({"prompt": [1, 2, 3]}, 3, "abort"),
        ({"prompt": [1, 2, 3], "n": 2}, 3, "abort"),
        ({"prompt": [[1, 2, 3], [4]]}, 4, "abort"),
        ({"prompt": [1, 2, 3], "timeout": 0.5}, 3, "error, deadline_exceeded"),
    ],
)
def test_the_log_counts_the_tokens_of_answers_that_nobody_waits_for(
    fields: dict[str, Any], num_prompt_tokens: int, reason: str
) -> None:
    body = json.dumps(fields | {"max_tokens": 150_000, "ignore_eos": True}).encode()
    header = {"Content-Type": "application/json"}
    with running_server(*ENDLESS, stderr=subprocess.PIPE) as (process, url):
        request = urllib.request.Request(f"{url}/v1/completions", body, header)
        with pytest.raises(OSError, match=r"timed out|408"):
            urllib.request.urlopen(request, timeout=2.0)
        log = end_server(process)
    found = re.search(rf"/v1/completions .* s, (\d+) \+ (\d+) tokens, {reason} ", log)
    assert found is not None, log
    assert int(found[1]) == num_prompt_tokens
    assert int(found[2]) > 100
