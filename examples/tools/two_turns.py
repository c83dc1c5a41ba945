"""A conversation with a tool, in two turns: the model calls it, and answers from its result.

docs/tools.md says how to start a server for it. The bundled model does not know when to call a
tool, so the first request forces the call; leave tool_choice out for a model trained on tools.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import Any

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"

HOURS = {
    "pharmacy": "We are open Monday to Friday from 9:30 am to 6 pm, Saturday and Sunday closed.",
    "bakery": "We are open Monday to Saturday from 6 am to 2 pm, Sunday closed.",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "opening_hours",
            "description": "When a shop is open.",
            "parameters": {
                "type": "object",
                "properties": {"shop": {"enum": list(HOURS)}},
                "required": ["shop"],
                "additionalProperties": False,
            },
        },
    }
]
FORCED = {"type": "function", "function": {"name": "opening_hours"}}


def opening_hours(shop: str) -> str:
    """The tool itself."""
    return HOURS[shop]


def answer(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The assistant's next message."""
    body = {"messages": messages, "tools": TOOLS, "temperature": 0, **fields}
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
    except urllib.error.HTTPError as error:  # what is wrong, and the fix
        sys.exit(f"HTTP {error.code}: {error.read().decode()}")
    except OSError as error:
        sys.exit(f"no server answers at {URL} ({error}); docs/tools.md says how to start one")
    return message


def main() -> None:
    """Both turns."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "what are your opening hours?"}]
    called = answer(messages, tool_choice=FORCED)
    messages.append(called)
    for call in called["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        print(f"{call['function']['name']}({arguments})")
        result = opening_hours(**arguments)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(answer(messages)["content"])


if __name__ == "__main__":
    main()
