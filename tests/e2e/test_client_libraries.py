"""Libraries built on OpenAI's API against one server; skipped where they are not installed.

Those for version 3 of OpenAI's client are in the extra test, those for 2 in clients-openai2.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from child_process import run_to_end
from server_process import end_server, running_server

# Loads anyio's part for asyncio now. pytest parses it, for anyio has a plugin, and CPython 3.11
# fails to parse where a finalizer's warning becomes an error meanwhile.
anyio.run(anyio.sleep, 0)

MODEL = "quire-tiny"
KEY = "secret"
QUESTION = "who are you"
ANSWER = re.compile("Quire")


def needs(name: str) -> pytest.MarkDecorator:
    """Skips the test, before its server starts, where a module is not installed."""
    root = name.partition(".")[0]
    is_there = importlib.util.find_spec(root) is not None and importlib.util.find_spec(name)
    return pytest.mark.skipif(not is_there, reason=f"{name}: see the extra clients-openai2")


@pytest.fixture(scope="module")
def base(module_server: str) -> str:
    return f"{module_server}/v1"


@pytest.fixture(scope="module")
def module_server() -> Iterator[str]:
    with running_server("--api-key", KEY) as (process, url):
        yield url
        end_server(process)


@needs("litellm")
def test_litellm(base: str) -> None:
    litellm = importlib.import_module("litellm")
    server: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": base, "api_key": KEY}
    messages = [{"role": "user", "content": QUESTION}]
    reply = litellm.completion(**server, messages=messages, temperature=0)
    assert ANSWER.search(reply.choices[0].message.content)
    assert reply.usage.completion_tokens > 0
    chunks = list(litellm.completion(**server, messages=messages, temperature=0, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == reply.choices[0].message.content
    vectors = litellm.embedding(**server, input=["a", "b"], encoding_format="float")
    assert len(vectors.data[1]["embedding"]) == 256
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**server, messages=messages, temperature=-1)
    too_long = [{"role": "user", "content": "long " * 20_000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**server, messages=too_long)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**server | {"api_key": "wrong"}, messages=messages)


@needs("litellm")
def test_litellm_as_vllm(base: str) -> None:
    """Its provider for vLLM servers sends vLLM's fields, too."""
    litellm = importlib.import_module("litellm")
    reply = litellm.completion(
        model=f"hosted_vllm/{MODEL}",
        api_base=base,
        api_key=KEY,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        top_k=1,
        min_tokens=2,
    )
    assert ANSWER.search(reply.choices[0].message.content)


@needs("langchain_openai")
def test_langchain(base: str) -> None:
    module = importlib.import_module("langchain_openai")
    chat = module.ChatOpenAI(model=MODEL, base_url=base, api_key=KEY, temperature=0)
    whole = chat.invoke(QUESTION)
    assert ANSWER.search(whole.content)
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream(QUESTION)) == whole.content
    schema = {
        "title": "Item",
        "type": "object",
        "properties": {"size": {"enum": [1, 2]}},
        "required": ["size"],
        "additionalProperties": False,
    }
    found = chat.with_structured_output(schema, method="json_schema").invoke(QUESTION)
    assert found["size"] in (1, 2)
    embeddings = module.OpenAIEmbeddings(
        model=MODEL, base_url=base, api_key=KEY, check_embedding_ctx_length=False
    )
    assert len(embeddings.embed_query("red shoes")) == 256


@needs("llama_index.llms.openai_like")
def test_llama_index(base: str) -> None:
    module = importlib.import_module("llama_index.llms.openai_like")
    llm = module.OpenAILike(
        model=MODEL, api_base=base, api_key=KEY, is_chat_model=True, temperature=0, max_tokens=32
    )
    types = importlib.import_module("llama_index.core.llms")
    message = types.ChatMessage(role="user", content=QUESTION)
    whole = llm.chat([message]).message.content
    assert ANSWER.search(whole)
    assert "".join(part.delta or "" for part in llm.stream_chat([message])) == whole
    plain = module.OpenAILike(
        model=MODEL, api_base=base, api_key=KEY, is_chat_model=False, max_tokens=4
    )
    assert plain.complete("A list is").text


@needs("instructor")
def test_instructor(base: str) -> None:
    instructor, openai = map(importlib.import_module, ("instructor", "openai"))
    pydantic: Any = importlib.import_module("pydantic")
    literal = importlib.import_module("typing").Literal
    bounded = {"extra": "forbid"}  # of other fields the bundled model writes thousands of tokens
    item = pydantic.create_model("Item", __config__=bounded, size=(literal["small", "large"], ...))
    client = openai.OpenAI(base_url=base, api_key=KEY, max_retries=0)
    asked = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    found = asked.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_model=item
    )
    assert found.size in ("small", "large")


@needs("pydantic_ai.models.openai")
def test_pydantic_ai(base: str) -> None:
    ai, openai = map(importlib.import_module, ("pydantic_ai", "openai"))
    models = importlib.import_module("pydantic_ai.models.openai")
    providers = importlib.import_module("pydantic_ai.providers.openai")

    async def answers() -> list[str]:
        async with openai.AsyncOpenAI(base_url=base, api_key=KEY) as client:
            provider = providers.OpenAIProvider(openai_client=client)
            kinds = (models.OpenAIChatModel, models.OpenAIResponsesModel)
            agents = [
                ai.Agent(kind(MODEL, provider=provider), model_settings={"temperature": 0})
                for kind in kinds
            ]
            return [(await agent.run(QUESTION)).output for agent in agents]

    for answer in asyncio.run(answers()):
        assert ANSWER.search(answer)


@needs("agents")
def test_openai_agents(base: str) -> None:
    agents, openai = map(importlib.import_module, ("agents", "openai"))
    agents.set_tracing_disabled(True)

    async def answers() -> list[str]:
        async with openai.AsyncOpenAI(base_url=base, api_key=KEY) as client:
            kinds = (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel)
            runs = [
                agents.Runner.run(
                    agents.Agent(
                        name="helper",
                        model=kind(model=MODEL, openai_client=client),
                        model_settings=agents.ModelSettings(temperature=0),
                    ),
                    QUESTION,
                )
                for kind in kinds
            ]
            return [(await run).final_output for run in runs]

    for answer in asyncio.run(answers()):
        assert ANSWER.search(answer)


@needs("llm")
def test_llm(base: str, tmp_path: Path) -> None:
    text = f"- model_id: ours\n  model_name: {MODEL}\n  api_base: {base}\n  api_key_name: ours\n"
    (tmp_path / "extra-openai-models.yaml").write_text(text)
    (tmp_path / "keys.json").write_text(f'{{"ours": "{KEY}"}}')
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path)}
    for more in ([], ["--no-stream"]):
        command = [sys.executable, "-m", "llm", "-m", "ours", "-o", "temperature", "0", *more]
        done = run_to_end([*command, QUESTION], env=environment)
        assert ANSWER.search(done.stdout), done.stderr
