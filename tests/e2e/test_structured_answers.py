"""Forms through the whole engine, on a random model that would never keep to them by itself."""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams, StructuredOutputs
from quire.config import EngineConfig
from quire.core.messages import AbortRequests, AddRequest, ErrorKind, RequestDelta
from quire.engine.core.engine_core import EngineCore
from quire.engine.startup.start_engine import start_engine
from quire.errors import InvalidRequestError
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.grammar_matcher import Matcher
from quire.sampling import structured_mask
from quire.server.api.common.chat_request import ChatRequest

EOS = 2  # of tiny_model, whose other tokens are the bytes
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y", None]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CHOICES = ["yes", "no", "not at all", "naïve"]
PATTERN = r"[a-f]{2,4}-\d{3}"
LARK = 'start: ("ab" | "cd")+ "!"'

GRAMMARS = [
    StructuredOutputs(json=PERSON),
    StructuredOutputs(regex=PATTERN),
    StructuredOutputs(choice=CHOICES),
    StructuredOutputs(grammar=LARK),
]
CROWD = [
    *GRAMMARS,
    None,
    StructuredOutputs(regex="[a-f]{60}"),
    StructuredOutputs(regex="[xyz]{60}"),
]


def follows_grammar(text: str, grammar: StructuredOutputs) -> bool:
    """Whether it is what was asked for, by other means than the engine's."""
    match grammar.kind:
        case "json":
            import jsonschema

            jsonschema.validate(json.loads(text), json.loads(grammar.text))
            return True
        case "choice":
            return text in CHOICES
        case "regex":
            return re.fullmatch(PATTERN, text) is not None
    return re.fullmatch("(ab|cd)+!", text) is not None


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), dtype="float32", threads=1, num_blocks=200, max_num_seqs=16)


def answers(llm: LLM, sampling: list[SamplingParams]) -> list[tuple[str, list[int], str | None]]:
    outputs = llm.generate(["some text"] * len(sampling), sampling, use_tqdm=False)
    return [
        (o.text, o.token_ids, o.finish_reason) for [o] in (output.outputs for output in outputs)
    ]


def test_a_mixed_batch_follows_its_grammars_and_other_rows_are_unchanged(llm: LLM) -> None:
    free = [SamplingParams(max_tokens=30, seed=i, temperature=0.7 * (i % 2)) for i in range(3)]
    alone = [answers(llm, [params])[0] for params in free]
    formed = [
        SamplingParams(
            max_tokens=300,
            seed=seed,
            temperature=0.8 * (seed > 0),
            repetition_penalty=1.1,
            bad_words=["q"],
            structured_outputs=grammar,
        )
        for grammar in GRAMMARS
        for seed in range(3)
    ]
    solo = [answers(llm, [params])[0] for params in formed]
    mixed = answers(llm, [*formed, *free])
    assert mixed == solo + alone
    for (text, _, reason), params in zip(solo, formed, strict=True):
        assert params.structured_outputs is not None
        if reason == "stop":
            assert follows_grammar(text, params.structured_outputs), text
    assert sum(reason == "stop" for _, _, reason in solo) >= 9


def test_greedy_is_the_best_of_the_tokens_that_lead_somewhere(llm: LLM) -> None:
    """Compared with banning all other tokens explicitly, one step at a time."""
    grammar = StructuredOutputs(choice=CHOICES)
    params = SamplingParams(temperature=0, max_tokens=30, structured_outputs=grammar)
    (text, token_ids, reason) = answers(llm, [params])[0]
    spelled = [choice.encode() for choice in CHOICES]
    prompt, answer = llm.tokenizer.encode("some text"), b""
    while True:
        allowed = {
            token_id
            for token_id in range(3, 259)
            if any(
                word.startswith(answer + llm.tokenizer.token_bytes(token_id)) for word in spelled
            )
        }
        if not allowed:
            break
        allowed |= {EOS} if answer in spelled else set()
        bias = {token_id: -100.0 for token_id in range(512) if token_id not in allowed}
        step = SamplingParams(temperature=0, max_tokens=1, logit_bias=bias)
        (token_id,) = llm.generate([prompt], step, use_tqdm=False)[0].outputs[0].token_ids
        if token_id == EOS:
            break
        prompt, answer = [*prompt, token_id], answer + llm.tokenizer.token_bytes(token_id)
    assert text == answer.decode()
    assert reason == "stop"
    assert [i for i in token_ids if i != EOS] == prompt[len(llm.tokenizer.encode("some text")) :]


def test_other_sampling_params_apply_within_the_grammar(llm: LLM) -> None:
    def one(**sampling_fields: Any) -> tuple[str, list[int], str | None]:
        return answers(llm, [SamplingParams(temperature=0, max_tokens=40, **sampling_fields)])[0]

    letters = StructuredOutputs(regex="[ab]{1,12}")
    text, token_ids, reason = one(structured_outputs=letters, ignore_eos=True)
    assert (len(text), reason) == (12, "stop")  # the form ends what nothing else does
    assert EOS not in token_ids
    text, _, reason = one(structured_outputs=letters, min_tokens=6, logit_bias={EOS: 100})
    assert (len(text), reason) == (6, "stop")
    text, _, reason = one(structured_outputs=letters, logit_bias={EOS: 100})
    assert (len(text), reason) == (1, "stop")
    (b,) = llm.tokenizer.encode_inside("b")
    text, _, _ = one(structured_outputs=letters, ignore_eos=True, logit_bias={b: 100}, stop=["bbb"])
    assert text == ""
    text, _, reason = one(structured_outputs=StructuredOutputs(choice=["ab"]), min_tokens=30)
    assert (text, reason) == ("ab", "stop")
    text, _, reason = one(structured_outputs=StructuredOutputs(regex="a{60}"))
    assert (text, reason) == ("a" * 40, "length")
    stop = [5]
    _, token_ids, reason = one(
        structured_outputs=letters, stop_token_ids=stop, logit_bias={5: 100, EOS: -100}
    )
    assert (len(token_ids), token_ids[-1], reason) == (2, 5, "stop")


def test_a_dead_end_ends_its_request_alone(llm: LLM) -> None:
    (a,) = llm.tokenizer.encode_inside("a")
    stuck = SamplingParams(
        max_tokens=9, structured_outputs=StructuredOutputs(regex="a+"), bad_words=["a"]
    )
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        llm.generate(["text"], stuck, use_tqdm=False)
    fine = SamplingParams(max_tokens=3, structured_outputs=StructuredOutputs(regex="a{3}"))
    assert answers(llm, [fine])[0][1] == [a] * 3


def test_a_bad_grammar_is_refused_before_anything_runs(llm: LLM) -> None:
    steps = llm.stats.num_steps
    for fields in ({"regex": r"(a)\1"}, {"json": {"not": {}}}, {"grammar": "start: x"}):
        params = SamplingParams(structured_outputs=StructuredOutputs(**fields))
        with pytest.raises(InvalidRequestError, match=r"structured_outputs\.\w+: "):
            llm.generate("text", params, use_tqdm=False)
    assert llm.stats.num_steps == steps


# ------------------------------------------------------------------ the core by itself


def engine(model: Path, **options: Any) -> EngineCore:
    config = EngineConfig.from_options(
        model=str(model), dtype="float32", threads=1, max_model_len=256, **options
    )
    return start_engine(config)[0]


def add(core: EngineCore, name: str, grammar: StructuredOutputs | None, **more: Any) -> None:
    sampling = SamplingParams(max_tokens=60, seed=len(name), structured_outputs=grammar)
    message = AddRequest(
        request_id=name,
        prompt_token_ids=[10 + len(name)] * 40,
        sampling=sampling,
        eos_token_ids=[EOS],
        **more,
    )
    core.handle(message)


def run(core: EngineCore) -> dict[str, list[RequestDelta]]:
    deltas: dict[str, list[RequestDelta]] = {}
    while core.has_work:
        for delta in core.step().deltas:
            deltas.setdefault(delta.request_id, []).append(delta)
    return deltas


def tokens(deltas: list[RequestDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


@pytest.fixture(scope="module")
def undisturbed(tiny_model: Path) -> dict[str, list[int]]:
    core = engine(tiny_model, num_blocks=200)
    for index, grammar in enumerate(CROWD):
        add(core, "r" * (index + 1), grammar)
    return {name: tokens(deltas) for name, deltas in run(core).items()}


def test_preempted_requests_continue_within_their_grammars(
    tiny_model: Path, undisturbed: dict[str, list[int]]
) -> None:
    core = engine(tiny_model, num_blocks=16, max_num_seqs=7)
    for index, grammar in enumerate(CROWD):
        add(core, "r" * (index + 1), grammar)
    # all are admitted together, however long their grammars take
    wait([compiled for _, compiled in core._grammars._pending.values()], timeout=60)
    deltas = run(core)
    assert core.stats.num_preemptions > 0
    assert {name: tokens(parts) for name, parts in deltas.items()} == undisturbed
    assert not core._grammars.ready


def test_another_engine_continues_within_the_grammar(
    tiny_model: Path, undisturbed: dict[str, list[int]]
) -> None:
    core = engine(tiny_model, num_blocks=200)
    for index, grammar in enumerate(GRAMMARS):
        name = "r" * (index + 1)
        started = undisturbed[name][: max(1, len(undisturbed[name]) // 2)]
        if len(started) < len(undisturbed[name]):
            add(core, name, grammar, output_token_ids=started)
    for name, deltas in run(core).items():
        expected = undisturbed[name]
        assert tokens(deltas) == expected[max(1, len(expected) // 2) :]
        assert [d.finish_reason for d in deltas if d.finish_reason] != ["error"]


def test_a_continuation_outside_the_grammar_ends_with_an_error(tiny_model: Path) -> None:
    core = engine(tiny_model, num_blocks=200)
    add(core, "a", GRAMMARS[1], output_token_ids=[EOS + 1])
    add(core, "bystander", None)
    deltas = run(core)
    assert deltas["a"][-1].finish_reason == "error"
    assert len(tokens(deltas["bystander"])) > 0


def test_aborted_requests_leave_nothing(tiny_model: Path) -> None:
    core = engine(tiny_model, num_blocks=200)
    add(core, "early", GRAMMARS[0])
    core.handle(AbortRequests(request_ids=["early"]))  # its matcher is still being made
    add(core, "late", GRAMMARS[0])
    while not core.stats.num_running:
        core.step()
    core.handle(AbortRequests(request_ids=["late"]))
    deltas = run(core)
    assert {name: d[-1].finish_reason for name, d in deltas.items()} == {"late": "abort"}
    assert not core._grammars.ready
    assert not core.has_work


# Each letter is any of 240 rules, and each of these is in any of 240 others.
_COUNT = range(240)
COSTLY = "\n".join(
    [
        f'start: "!" ({"|".join(f"c{i}" for i in _COUNT)})+',
        f"a: {'|'.join(f'b{i}' for i in _COUNT)}",
        *(f'c{i}: a "{chr(97 + i % 26)}"?\nb{i}: X' for i in _COUNT),
        "X: /[a-z ]/",
    ]
)


def test_masks_that_take_too_long_end_their_requests_alone(
    tiny_model: Path, undisturbed: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured_mask, "MASK_SECONDS", 0.1)
    core, slowest = engine(tiny_model, num_blocks=200), 0.0
    costly = StructuredOutputs(grammar=COSTLY)
    add(core, "costly", costly)
    add(core, "with the same grammar", costly)
    for index, grammar in enumerate(CROWD):
        add(core, "r" * (index + 1), grammar)
    wait([compiled for _, compiled in core._grammars._pending.values()], timeout=60)
    deltas: dict[str, list[RequestDelta]] = {}
    while core.has_work:
        begin = time.monotonic()
        for delta in core.step().deltas:
            deltas.setdefault(delta.request_id, []).append(delta)
        slowest = max(slowest, time.monotonic() - begin)
    reason = "it takes too long to find the tokens that may come next; make it simpler"
    for name in ("costly", "with the same grammar"):
        assert len(tokens(deltas[name])) in (1, 2)
        *_, last = deltas.pop(name)
        assert (last.finish_reason, last.error_param) == ("error", "structured_outputs.grammar")
        assert last.error == f"structured_outputs.grammar: {reason}"
    assert {name: tokens(parts) for name, parts in deltas.items()} == undisturbed
    assert slowest < 1.0  # masks took many times this in this thread, one after another
    add(core, "later", costly)
    assert run(core)["later"][0].error == f"structured_outputs.grammar: {reason}"


def test_slow_masks_of_one_caller_hold_up_others_for_a_bounded_time(
    tiny_model: Path, undisturbed: dict[str, list[int]]
) -> None:
    core = engine(tiny_model, num_blocks=400, max_num_seqs=64)
    known = StructuredOutputs(json=PERSON)
    for name in ("first", "second"):
        add(core, name, known, caller="costly")
        run(core)
    for number in range(40):
        another = StructuredOutputs(grammar=f"{COSTLY}\n// {number}")
        add(core, f"costly {number}", another, caller="costly")
    for index, grammar in enumerate(CROWD):
        add(core, "r" * (index + 1), grammar, caller="other")
    add(core, "known", known, caller="costly")
    wait([compiled for _, compiled in core._grammars._pending.values()], timeout=60)
    deltas = run(core)
    last = {name: parts.pop() for name, parts in deltas.items() if name.startswith("costly")}
    limited = [delta for delta in last.values() if delta.error_kind is ErrorKind.CALLER_LIMIT]
    assert len(limited) > 30
    assert limited[0].error == (
        "structured_outputs.grammar: finding the tokens that may come next has taken too long in "
        "your requests, and others wait; send it again in 25 s, or make their grammars simpler"
    )
    ended = deltas.pop("known")[-1]
    assert ended.finish_reason == "stop", ended.error
    found = {name: tokens(parts) for name, parts in deltas.items() if name not in last}
    assert found == undisturbed


def test_a_compile_error_of_a_grammar_reaches_its_caller_from_the_core(tiny_model: Path) -> None:
    """The frontend refuses it first; the core does not trust that."""
    core = engine(tiny_model, num_blocks=200)
    add(core, "bad", StructuredOutputs(regex="("))
    add(core, "good", StructuredOutputs(regex="a"))
    deltas = run(core)
    assert deltas["bad"][0].error == "structured_outputs.regex: unclosed group; correct it"
    assert deltas["good"][-1].finish_reason == "stop"


def test_every_field_of_a_structured_output_request_is_a_sampling_param() -> None:
    assert {"response_format", "structured_outputs"} <= set(ChatRequest.__struct_fields__)


def test_steps_in_flight_know_the_token_before(
    tiny_model: Path, undisturbed: dict[str, list[int]]
) -> None:
    core = engine(tiny_model, num_blocks=200)
    core._executor.max_in_flight = 2
    for index, grammar in enumerate(CROWD):
        add(core, "r" * (index + 1), grammar)
    assert {name: tokens(deltas) for name, deltas in run(core).items()} == undisturbed


def test_a_matcher_in_the_making_holds_nobody_up(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, go = engine(tiny_model, num_blocks=200), threading.Event()
    make = GrammarCompiler.matcher

    def slowly(self: GrammarCompiler, constraint: StructuredOutputs) -> Matcher:
        go.wait(10)
        return make(self, constraint)

    monkeypatch.setattr(GrammarCompiler, "matcher", slowly)
    add(core, "slow", GRAMMARS[1])
    add(core, "bystander", None)
    ended: list[str] = []
    while "bystander" not in ended:
        ended += [delta.request_id for delta in core.step().deltas if delta.finish_reason]
    assert core.has_work
    assert core.step().deltas == []  # waits a little, and does not hang
    go.set()
    assert run(core)["slow"][-1].finish_reason == "stop"
