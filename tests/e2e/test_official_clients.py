"""The official clients of OpenAI and Anthropic against one server with the bundled model."""

from __future__ import annotations

import re
from collections.abc import Iterator

import anthropic
import openai
import pytest
from server_process import end_server, running_server

MODEL = "quire-tiny"
HELLO = [{"role": "user", "content": "hello"}]
KEY = "secret"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server("--api-key", KEY) as (process, url):
        yield url
        end_server(process)


@pytest.fixture
def ours(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def theirs(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def test_models(ours: openai.OpenAI, theirs: anthropic.Anthropic) -> None:
    assert [model.id for model in ours.models.list()] == [MODEL]
    page = theirs.models.list(limit=1)
    assert [(model.id, model.lifecycle) for model in page] == [(MODEL, "active")]
    assert page.has_more is False
    assert theirs.models.retrieve(MODEL).id == MODEL
    assert list(theirs.models.list(lifecycle=["retired"])) == []
    with pytest.raises(anthropic.NotFoundError, match="not served here"):
        theirs.models.retrieve("other")


def test_chat_whole_and_streamed(ours: openai.OpenAI) -> None:
    whole = ours.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    chunks = list(
        ours.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_structured_outputs(ours: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    reply = ours.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    content = reply.choices[0].message.content
    assert content is not None
    assert re.fullmatch(r'\s*\{\s*"a"\s*:\s*[12]\s*\}\s*', content)


def test_completions(ours: openai.OpenAI) -> None:
    reply = ours.completions.create(model=MODEL, prompt="A list is", max_tokens=3, logprobs=2)
    assert reply.choices[0].logprobs is not None
    assert len(reply.choices[0].logprobs.tokens or []) == 3


def test_a_text_is_scored(ours: openai.OpenAI) -> None:
    """Without output tokens the prompt has the same log-probabilities, whole and streamed."""
    sampling_fields = {"model": MODEL, "prompt": "A list is a thing.", "echo": True, "logprobs": 1}
    scored = ours.completions.create(**sampling_fields, max_tokens=0)
    (choice,) = scored.choices
    answered = ours.completions.create(**sampling_fields, max_tokens=1).choices[0].logprobs
    assert (choice.text, choice.finish_reason) == (sampling_fields["prompt"], "length")
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0
    assert choice.logprobs is not None
    assert answered is not None
    tokens, scores = choice.logprobs.tokens or [], choice.logprobs.token_logprobs or []
    assert len(tokens) == len(scores) == scored.usage.prompt_tokens
    assert tokens == (answered.tokens or [])[:-1]
    assert scores[1:] == pytest.approx((answered.token_logprobs or [])[1:-1], abs=1e-4)
    chunks = list(ours.completions.create(**sampling_fields, max_tokens=0, stream=True))
    parts = [chunk.choices[0] for chunk in chunks]
    assert "".join(part.text for part in parts) == choice.text
    assert parts[-1].finish_reason == "length"
    assert [t for part in parts for t in (part.logprobs and part.logprobs.tokens) or []] == tokens


def test_responses_whole_and_streamed(ours: openai.OpenAI) -> None:
    whole = ours.responses.create(model=MODEL, input="hello", temperature=0)
    assert whole.status == "completed"
    assert whole.output_text
    with ours.responses.stream(model=MODEL, input="hello", temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    again = ours.responses.create(
        model=MODEL, input=[*whole.output, {"role": "user", "content": "and?"}]
    )
    assert again.output_text


def test_a_cut_response_is_incomplete(ours: openai.OpenAI) -> None:
    cut = ours.responses.create(model=MODEL, input="hello", temperature=0, max_output_tokens=2)
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert cut.usage is not None
    assert cut.usage.output_tokens == 2


def test_embeddings(url: str, ours: openai.OpenAI) -> None:
    """The client asks for base64 by default; both formats have the same numbers."""
    texts = ["red shoes", "blue shoes"]
    coded = ours.embeddings.create(model=MODEL, input=texts)
    plain = ours.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [item.index for item in coded.data] == [0, 1]
    assert [len(item.embedding) for item in coded.data] == [256, 256]
    for one, other in zip(coded.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(number**2 for number in one.embedding) == pytest.approx(1.0, abs=1e-5)
    root = ours.with_options(base_url=url)
    ids = [root.post("/tokenize", cast_to=dict, body={"prompt": t})["tokens"] for t in texts]
    short = ours.embeddings.create(model=MODEL, input=ids, dimensions=32)
    assert short.usage.prompt_tokens == short.usage.total_tokens == sum(map(len, ids))
    scale = sum(number**2 for number in coded.data[0].embedding[:32]) ** 0.5
    head = [number / scale for number in coded.data[0].embedding[:32]]
    assert short.data[0].embedding == pytest.approx(head, abs=1e-5)
    with pytest.raises(openai.BadRequestError) as refused:
        ours.embeddings.create(model=MODEL, input="a", dimensions=257)
    assert refused.value.param == "dimensions"
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]: too large: 5000 tokens"):
        ours.embeddings.create(model=MODEL, input=[[5], [5] * 5000])


def test_messages_whole_and_streamed(theirs: anthropic.Anthropic) -> None:
    whole = theirs.messages.create(model=MODEL, messages=HELLO, max_tokens=60)
    assert whole.content[0].type == "text"
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with theirs.messages.stream(model=MODEL, messages=HELLO, max_tokens=60) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert final.usage.output_tokens > 0
    assert final.stop_reason in ("end_turn", "max_tokens")


def test_tokens_are_counted_as_they_are_used(theirs: anthropic.Anthropic) -> None:
    count = theirs.messages.count_tokens(model=MODEL, messages=HELLO)
    usage = theirs.messages.create(model=MODEL, messages=HELLO, max_tokens=1).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_become_the_clients_own(
    url: str, ours: openai.OpenAI, theirs: anthropic.Anthropic
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ours.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        ours.chat.completions.create(model="other", messages=HELLO)
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        theirs.messages.create(model=MODEL, messages=HELLO, max_tokens=0)
    with pytest.raises(anthropic.NotFoundError):
        theirs.messages.create(model="other", messages=HELLO, max_tokens=3)
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as stranger_there,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger_there.messages.create(model=MODEL, messages=HELLO, max_tokens=3)
