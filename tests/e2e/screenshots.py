"""Makes the pictures of the page in docs/images: `python tests/e2e/screenshots.py`.

A server on the bundled model, some two dozen clients that call a shop, and a headless Chromium.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from chromium import Chromium, find_chromium

from quire.bench.client import stream_request
from quire.bench.local_server import local_server

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
EXAMPLES = json.loads((ROOT / "src/quire/bundled/examples.json").read_text())

SERVER = ["--num-blocks", "1024", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"]
NUM_CLIENTS = 22
SECONDS = 62.0  # the page shows the last minute


def body(rng: random.Random) -> dict[str, Any]:
    """A request: mostly a call to a shop with a long system prompt, else something of its own."""
    messages = rng.choice([e["messages"] for e in EXAMPLES if e["task"] == "voice_bot"])
    if rng.random() < 0.25:
        words = [word for e in EXAMPLES for word in e["messages"][-1]["content"].split()]
        content = " ".join(rng.choices(words, k=rng.randint(20, 200)))
        messages = [{"role": "user", "content": content}]
    return {
        "messages": messages,
        "max_tokens": rng.randint(20, 120),
        "ignore_eos": rng.random() < 0.6,
        "temperature": 0.8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def load(url: str) -> None:
    """ClientOutboxes that call again and again, until this is cancelled."""

    async def client(number: int) -> None:
        rng = random.Random(number)
        while True:
            await asyncio.sleep(rng.expovariate(2.0))
            await stream_request(f"{url}/v1/chat/completions", json.dumps(body(rng)).encode())

    await asyncio.gather(*map(client, range(NUM_CLIENTS)))


def shoot(browser: Chromium, name: str) -> None:
    for scheme in ("light", "dark"):
        browser.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        browser.run("new Promise((resolve) => setTimeout(resolve, 700))")
        browser.screenshot(IMAGES / f"page-{name}-{scheme}.webp", "webp")


def talk(browser: Chromium, url: str) -> None:
    """The playground with an example and two questions more."""
    browser.resize(1240, 800)
    browser.open(url)
    example = (
        "[...document.querySelectorAll('#examples button')].find((b) => /hours/.test(b.innerText))"
    )
    browser.wait(example)
    browser.run(
        "document.querySelector('#set-temperature').value = 0;"
        "document.querySelector('#settings').dispatchEvent(new Event('input', {bubbles: true}))"
    )
    browser.run(f"{example}.click()")
    for number, question in enumerate(["is there any parking?", "thanks, goodbye!"], 2):
        browser.wait(f"document.querySelectorAll('.again').length === {number - 1}")
        browser.run("document.querySelector('#prompt').focus()")
        browser.type(question)
        browser.press("Enter")
    browser.wait("document.querySelectorAll('.again').length === 3")
    browser.wait("document.querySelector('#pulse').dataset.state === 'idle'")


async def main() -> None:
    """Make all of them."""
    path = find_chromium()
    assert path is not None, "needs a chromium on the PATH"
    IMAGES.mkdir(exist_ok=True)
    browser = Chromium(path)
    try:
        async with local_server(SERVER) as url:
            await asyncio.to_thread(talk, browser, url)
            await asyncio.to_thread(shoot, browser, "chat")
            clients = asyncio.create_task(load(url))
            browser.resize(1240, 1230)
            browser.run("location.hash = 'engine'")
            await asyncio.sleep(SECONDS)
            await asyncio.to_thread(shoot, browser, "engine")
            clients.cancel()
    finally:
        browser.close()


if __name__ == "__main__":
    asyncio.run(main())
