"""What tests of `LLM` on the bundled model send, and what they read of its answers."""

from __future__ import annotations

from quire import RequestOutput, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8)
CHAT = [{"role": "user", "content": "red runing shoes"}]


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]
