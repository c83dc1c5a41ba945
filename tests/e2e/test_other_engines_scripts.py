"""Scripts as their authors wrote them for vLLM run with nothing but the import line changed.

The model's name comes from the command line, as the bundled model stands in for theirs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from child_process import run_to_end

GENERATE = """\
from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The capital of France is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=1)


def main():
    llm = LLM(model=MODEL, trust_remote_code=True, tensor_parallel_size=1, swap_space=4)
    outputs = llm.generate(prompts, sampling_params)
    print("-" * 60)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt:    {prompt!r}")
        print(f"Output:    {generated_text!r}")
    ids = [{"prompt_token_ids": output.prompt_token_ids} for output in outputs]
    again = llm.generate(ids, sampling_params, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in again] == [o.outputs[0].token_ids for o in outputs]
    assert all(output.outputs[0].finished() and output.finished for output in outputs)


if __name__ == "__main__":
    main()
"""

# the shape of vLLM's examples/basic/offline_inference
ARGUMENTS = """\
from vllm import LLM, EngineArgs, FlexibleArgumentParser


def create_parser():
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model=MODEL, runner="generate")
    parser.add_argument_group("Sampling parameters").add_argument("--max-tokens", type=int)
    return parser


def main(args):
    max_tokens = args.pop("max_tokens")
    llm = LLM(**args)
    sampling_params = llm.get_default_sampling_params()
    if max_tokens is not None:
        sampling_params.max_tokens = max_tokens
    outputs = llm.generate(["Hello, my name is"], sampling_params)
    print(len(outputs[0].outputs[0].token_ids), "tokens")


if __name__ == "__main__":
    main(vars(create_parser().parse_args(["--max-tokens", "3", "--tensor-parallel-size", "1"])))
"""

CHAT = """\
from vllm import LLM

llm = LLM(model=MODEL, max_model_len=1024, gpu_memory_utilization=0.5, enforce_eager=True)
sampling_params = llm.get_default_sampling_params()
sampling_params.max_tokens = 24
sampling_params.temperature = 0.0

conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "who are you"},
]
outputs = llm.chat(conversation, sampling_params, use_tqdm=False)
print(outputs[0].outputs[0].text)

conversations = [conversation for _ in range(4)]
outputs = llm.chat(messages=conversations, sampling_params=sampling_params, use_tqdm=True)
assert len({output.outputs[0].text for output in outputs}) == 1

template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
outputs = llm.chat(
    conversations, sampling_params=sampling_params, use_tqdm=False, chat_template=template
)
assert outputs[0].prompt_token_ids

tokenizer = llm.get_tokenizer()
text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
outputs = llm.generate({"prompt_token_ids": token_ids}, sampling_params=sampling_params.clone())
print(outputs[0].outputs[0].text)
"""

EMBED = """\
from vllm import LLM, PoolingParams

llm = LLM(model=MODEL, runner="pooling", enforce_eager=True)
prompts = ["Hello, my name is", "The future of AI is"]
for prompt, output in zip(prompts, llm.embed(prompts)):
    embeds = output.outputs.embedding
    trimmed = ((str(embeds[:16])[:-1] + ", ...]") if len(embeds) > 16 else embeds)
    print(f"Prompt: {prompt!r} \\nEmbeddings: {trimmed} (size={len(embeds)})")
outputs = llm.embed(prompts, pooling_params=PoolingParams(dimensions=8), use_tqdm=False)
assert [len(output.outputs.embedding) for output in outputs] == [8, 8]
(output,) = llm.encode("Hello, my name is", pooling_task="embed")
print(output.outputs.data.shape)
text_1 = "What is the capital of France?"
texts_2 = ["The capital of Brazil is Brasilia.", "The capital of France is Paris."]
for text_2, output in zip(texts_2, llm.score(text_1, texts_2)):
    print(f"Pair: {[text_1, text_2]!r} Score: {output.outputs.score}")
"""

STRUCTURED = """\
import json
from enum import Enum
from vllm import LLM, SamplingParams, StructuredOutputsParams

choice = StructuredOutputsParams(choice=["Positive", "Negative"])
regex = StructuredOutputsParams(regex=r"\\w{1,20}@\\w+\\.com\\n")
schema = {
    "type": "object",
    "properties": {"brand": {"enum": ["BMW", "Audi"]}, "doors": {"type": "boolean"}},
    "required": ["brand", "doors"],
}
grammar = StructuredOutputsParams(grammar=\"\"\"
root ::= "SELECT " column " FROM table_1"
column ::= "col_1" | "col_2"
\"\"\")


def generate_output(prompt, sampling_params, llm):
    outputs = llm.generate(prompts=prompt, sampling_params=sampling_params)
    return outputs[0].outputs[0].text


llm = LLM(model=MODEL, max_model_len=256)
answer = generate_output("wow!", SamplingParams(structured_outputs=choice), llm)
assert answer in ("Positive", "Negative")
text = generate_output(
    "An address:", SamplingParams(structured_outputs=regex, stop=["\\n"], max_tokens=80), llm
)
print(text)
as_map = SamplingParams(structured_outputs={"json": schema}, max_tokens=80)
assert json.loads(generate_output("A car:", as_map, llm))["brand"] in ("BMW", "Audi")
sql = generate_output("SQL:", SamplingParams(structured_outputs=grammar, max_tokens=50), llm)
assert sql in ("SELECT col_1 FROM table_1", "SELECT col_2 FROM table_1")
"""

# the shape of vLLM's examples/deployment/llm_engine_example
STEPS = """\
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

prompts = [
    ("A robot may", SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=1)),
    ("What is the meaning of life?", SamplingParams(n=2, temperature=0.8, top_p=0.95)),
]
parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
args = parser.parse_args(["--model", MODEL, "--max-model-len", "256"])
engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(args))
request_id = 0
while prompts or engine.has_unfinished_requests():
    if prompts:
        prompt, sampling_params = prompts.pop(0)
        engine.add_request(str(request_id), prompt, sampling_params)
        request_id += 1
    request_outputs: list[RequestOutput] = engine.step()
    for request_output in request_outputs:
        if request_output.finished:
            print(request_output.request_id, len(request_output.outputs), "answers")
"""

# the shape of vLLM's examples/deployment/async_llm_streaming
STREAMS = """\
import asyncio
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=MODEL, enforce_eager=True))
    params = SamplingParams(max_tokens=5, seed=42, output_kind=RequestOutputKind.DELTA)
    try:
        num_tokens = 0
        async for output in engine.generate(
            request_id="stream-1", prompt="The future of", sampling_params=params
        ):
            for completion in output.outputs:
                num_tokens += len(completion.token_ids)
            if output.finished:
                print(output.request_id, num_tokens, "tokens")
                break
    finally:
        engine.shutdown()


asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (GENERATE, ["Prompt:    'Hello, my name is'", "Output:    "]),
        (ARGUMENTS, ["3 tokens"]),
        (CHAT, ["Quire, a small voice assistant"]),
        (EMBED, ["Embeddings: [", "(size=256)", "Score: "]),
        (STRUCTURED, ["@"]),
        (STEPS, ["0 1 answers", "1 2 answers"]),
        (STREAMS, ["stream-1 5 tokens"]),
    ],
    ids=["generate", "arguments", "chat", "embed", "structured", "steps", "streams"],
)
def test_a_script_needs_another_import_line(
    script: str, printed: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "script.py"
    changed = re.sub("from vllm(?=[ .])", "from quire", script)
    file.write_text(changed.replace("MODEL", '"quire-tiny"'))
    done = run_to_end([sys.executable, str(file)])
    assert done.returncode == 0, done.stderr
    for text in printed:
        assert text in done.stdout
    assert "Traceback" not in done.stderr
