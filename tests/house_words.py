"""Words that names no longer use, and how many uses are left."""

# A word of ours: the field's word for it. Names are split at underscores and capitals.
OLD_WORDS = {
    "adopt adopts adopted": "load_processed, load",
    "apart": "subprocess, separate",
    "beat beats unwatched": "heartbeat",
    "begun": "started",
    "departure departures": "disconnect, completion",
    "exchange exchanges": "result, dialog, reduce",
    "folk": "what they are: requests, callers, processes",
    "form forms": "format (of a weight), grammar or structured output (of an answer)",
    "headcount": "in-flight counter",
    "keeper keepers": "supervisor",
    "kept": "stored, cached",
    "mailbox": "output queue",
    "neighbour neighbours": "cost model",
    "news": "outputs, deltas, updates",
    "normed": "normalized, residual",
    "place places": "row, slot, index, position, address",
    "product products": "matmul, gemm, linear",
    "reception": "request gate",
    "rehearse rehearsed rehearsal": "warm_up",
    "room rooms": "workspace, capacity, space",
    "settle settled settling": "resolve, resolved",
    "sharing": "work partition",
    "spread": "hadamard",
    "tell tells told untold": "notify, describe, report, send",
    "turned turning": "rope",
    "turns": "messages (of a chat), interleaved (of rows)",
    "narrow narrowed narrowing narrows": "from_float, round, in 8 bits",
    "visit visits": "request context",
    "way ways": "config, path, kernel",
    "widen widened widening widens": "dequantize (codes), convert, to_float",
    "wish wishes wishing wished": "sampling params, logits processors, request",
}

# Names that other software gave.
ALLOWED = {
    "_Metering.visit", "compare_exchange_strong", "file.tell", "generic_visit", "itertools.product",
    "scaled_dot_product_attention", "visit_BinOp", "visit_Call", "visit_Compare",
    "visit_Dict", "visit_For",
    "visit_FunctionDef", "visit_Name", "visit_Subscript", "visit_While",
    "kept_token_ids", "_kept_token_ids", "param.narrow", "slots.narrow",
}  # fmt: skip

# Uses that are left in the package: they may only become fewer.
KNOWN: dict[str, int] = {}

# The same in C++: products of numbers, and what a tile of softmax keeps.
KNOWN_IN_NATIVE: dict[str, int] = {"kept": 11, "place": 2, "product": 3, "products": 7}

# The same in benchmarks/ and training/: the products of a shop, the turns of a chat.
KNOWN_IN_PROGRAMS: dict[str, int] = {"form": 2, "products": 9, "turns": 10}

# The same in tests/. A room is a folder of `src/`, with a level in ARCHITECTURE.md.
KNOWN_IN_TESTS: dict[str, int] = {"room": 25, "rooms": 3}

# Phrases that no file has, in code, comments, docstrings or pages (files are read in lower case):
# what to write instead. Only phrases without an ordinary meaning here.
OLD_TEXT = {
    r"\bwish(es|ed|ing)?\b": "sampling parameters, request",
    r"\bneighbours?\b": "adjacent",
    r"\bmailbox(es)?\b": "output queue",
    r"\brehears(e|es|ed|al|als|ing)\b": "warm up",
    r"\bkeepers?\b": "supervisor",
    r"\bfolk\b": "who it is: callers, processes",
    r"\bhead ?count\b": "number in flight",
    r"\bunwatched\b": "without heartbeat",
    r"\bnormed\b": "normalized",
    r"\buntold\b": "not reported",
    r"\bmend(s|ed|ing)?\b": "correct, fix",
    r"\bhung up on\b": "disconnected",
    r"\bturned by\b": "rotated by (RoPE, Hadamard)",
    r"\brope turn(s|ed)?\b": "RoPE rotates",
    r"\brun-time form\b": "run-time format",
    r"\basks? for a form\b": "structured output",
    r"\bwhat is so\b": "what is always done, fixed behaviour",
    r"\bwhose they are\b": "of which requests",
    r"\bif it comes late\b": "after which bound",
    r'"""those of\b': "the noun that it returns",
    r"\bwiden(s|ed|ing)?\b": "dequantize (codes), convert (numbers)",
    r"\blayers/rotary\b": "layers/rope.py",
    r"\b(the|a|one|this|its) fronts?\b(?! doors)": "frontend",
}

# Phrases that no text in `src/` has (messages, help, docstrings): what to write instead.
OLD_PHRASES = {
    r"; give\b": "what the value must be ('must be an integer >= 1, not 0'), or '; use', '; set'",
    r"\bwhoever\b": "who it is: the caller, the process",
    r"Nothing is\.": "what is returned",
    r"\bThe form's\b": "the format's, the grammar's",
    r"(?<![Tt]here )\b(is|are) no (?!longer\b|more\b)": "is not a, are not",
    r"\b(raise|lower) the (former|latter)\b": "the name of the setting",
}  # fmt: skip
