"""Reader of a tokenizer's files in a model's folder: reads and checks them, keeps nothing.

tokenizer.json is the tokenizer itself, tokenizer_config.json (with special_tokens_map.json and
added_tokens.json in older folders) names the special and added tokens, and the chat template is in
one of four files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError, is_failure
from quire.model_folder import NO_TOKENIZER, named_file, read_json, read_text, unreadable
from quire.tokenizer.pattern_check import slow_pattern
from quire.tokenizer.text_growth import MAX_GROWTH, growing_part

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
NO_MAX_LENGTH = int(1e30)
"""What `transformers` has where no file names the most tokens of a text."""
_LISTS = ("additional_special_tokens", "extra_special_tokens")  # or a map by roles
_OLDER = "added_tokens"  # of settings: the content of added_tokens.json
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class NoTokenizerError(CheckpointError):
    """A folder without a tokenizer."""


def check_folder(folder: Path) -> Path:
    """The folder itself, if it has a tokenizer, which is not read. Raises CheckpointError."""
    path, reason = folder / "tokenizer.json", folder / NO_TOKENIZER
    if reason.is_file():
        raise CheckpointError(read_text(reason))
    if not path.is_file():
        raise NoTokenizerError(f"{named_file(path)}: it does not exist; {_how_to_get_one(folder)}")
    return folder


def read_backend(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of tokenizer.json. Raises CheckpointError with the fix."""
    import tokenizers

    path = check_folder(folder) / "tokenizer.json"
    try:
        path.open("rb").close()  # of what it cannot open the library says that it is damaged
        backend = tokenizers.Tokenizer.from_file(str(path))
    except OSError as error:
        raise unreadable(named_file(path), error) from error
    except BaseException as error:  # the library raises the bare class, or panics
        if not is_failure(error):
            raise
        text = f"{named_file(path)}: damaged ({error}); download it again"
        raise CheckpointError(text) from error
    if (growing := growing_part(backend)) is not None:
        raise CheckpointError(
            f"{named_file(path)}: its {growing} may make more than {MAX_GROWTH} characters of one; "
            "use another tokenizer"
        )
    if (slow := slow_pattern(backend)) is not None:
        raise CheckpointError(
            f"{named_file(path)}: its {slow} may take very long on short texts; use another "
            "tokenizer"
        )
    backend.no_truncation()
    backend.no_padding()
    return backend


def _how_to_get_one(folder: Path) -> str:
    if not folder.is_dir():
        return "there is no such folder; name one with a model's tokenizer files"
    if (folder / "tokenizer.model").is_file():
        return (
            "convert tokenizer.model once: pip install transformers sentencepiece, then python -c "
            "\"from transformers import AutoTokenizer as A; p = '" + str(folder) + "'; "
            'A.from_pretrained(p).save_pretrained(p)"'
        )
    return "copy it from the model's page"


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json; in folders of the older kind, with what two more files say."""
    settings = _read_object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" in settings:
        return settings
    settings |= _read_object(folder / "special_tokens_map.json")
    path = folder / "added_tokens.json"
    added = _read_object(path)
    ids = added.values()
    if not all(type(token_id) is int for token_id in ids) or len({*ids}) < len(ids):
        raise CheckpointError(f"{path} must be a map of tokens to different ids; download it again")
    special = {flags["content"] for flags, _ in _special_tokens(settings)}
    listed = {
        token_id: {"content": text, "special": text in special, "normalized": text not in special}
        for text, token_id in added.items()
    }
    return settings | {_OLDER: listed}


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must be a JSON object; download it again")
    return content


def named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Name → text of the special tokens that have a role, such as eos_token."""
    texts = {name: _token_text(settings.get(name)) for name in TOKEN_NAMES}
    return {name: text for name, text in texts.items() if text is not None}


def listed_tokens(settings: dict[str, Any]) -> list[str]:
    """Texts of the special tokens that the settings name, those with usual roles first.

    tokenizer.json may have more control tokens, such as those of a chat template.
    """
    others = (flags["content"] for flags, _ in _special_tokens(settings))
    return [*dict.fromkeys([*named_tokens(settings).values(), *others])]


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_max_length(settings: dict[str, Any]) -> int:
    """The most tokens of a text."""
    value: Any = settings.get("model_max_length")
    is_length = isinstance(value, int | float) and 1 <= value < NO_MAX_LENGTH
    return int(value) if is_length else NO_MAX_LENGTH


def add_missing_tokens(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
    """Register tokens that only the settings list, as control tokens where they say so.

    As in `transformers`, a token with a role is a control token whatever tokenizer.json says; but
    one without an id there is left out, as the model has no row for it. So is a token that would
    get another id than added_tokens.json lists, which may be older. Raises CheckpointError if it is
    tokenizer_config.json that lists another.
    """
    known = {token.content: _flags(token) for token in backend.get_added_tokens_decoder().values()}
    for listed_id, flags in _listed_tokens(settings):
        token_id = (
            _own_id(backend, flags["content"], listed_id) if _OLDER in settings else listed_id
        )
        if token_id is not None and flags["content"] not in known:
            _add_token(backend, token_id, flags)
            known[flags["content"]] = flags
    for flags, has_role in _special_tokens(settings):
        own_id, listed = backend.token_to_id(flags["content"]), known.get(flags["content"])
        if own_id is not None and (listed is None or (has_role and not listed.get("special"))):
            known[flags["content"]] = (listed or flags) | {"special": True}
            _add_token(backend, own_id, known[flags["content"]])


def _own_id(backend: tokenizers.Tokenizer, text: str, listed_id: int) -> int | None:
    """The id of a token of added_tokens.json; None, where transformers makes up an id, for none."""
    own = backend.token_to_id(text)
    added = backend.get_added_tokens_decoder()
    if own is None and listed_id == max([backend.get_vocab_size(False), *(i + 1 for i in added)]):
        return listed_id  # that of the next token
    if own != listed_id:
        logger.warning(
            "added_tokens.json: the id %d of %r is ignored, as tokenizer.json %s",
            listed_id,
            text,
            "has no such token, so it stays text" if own is None else f"has {own}",
        )
    return own


def _special_tokens(settings: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """The flags of each special token that the settings name, and whether it has a role."""
    lists = [settings.get(name) for name in _LISTS]
    roles = [value for name, value in settings.items() if name.endswith("_token")]
    roles += [value for each in lists if isinstance(each, dict) for value in each.values()]
    others = [value for each in lists if isinstance(each, list) for value in each]
    for number, value in enumerate([*roles, *others]):
        if (text := _token_text(value)) is not None:
            flags = value if isinstance(value, dict) else {}
            yield flags | {"content": text}, number < len(roles)


def _flags(token: tokenizers.AddedToken) -> dict[str, Any]:
    return {name: getattr(token, name) for name in ("content", *_FLAGS)}


def _listed_tokens(settings: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    listed = settings.get("added_tokens_decoder") or settings.get(_OLDER) or {}
    try:
        pairs = [(int(key), flags) for key, flags in listed.items()]
        texts = [flags["content"] for _, flags in pairs]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("content is not a string")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            "tokenizer_config.json: added_tokens_decoder is not a map of ids to tokens; download "
            "the file again"
        ) from error
    return sorted(pairs, key=lambda pair: pair[0])


def _add_token(backend: tokenizers.Tokenizer, token_id: int, flags: dict[str, Any]) -> None:
    from tokenizers import AddedToken

    options = {name: bool(flags[name]) for name in _FLAGS if name in flags}
    backend.add_tokens([AddedToken(flags["content"], **options)])
    if backend.token_to_id(flags["content"]) != token_id:
        raise CheckpointError(
            f"tokenizer_config.json: {flags['content']!r} has id {token_id} there, but "
            f"{backend.token_to_id(flags['content'])} after tokenizer.json; download both again, "
            "or remove the token from the first"
        )


def read_templates(folder: Path, settings: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Name → (file, source) of the chat templates; "default" is the one without a name.

    Files of their own come before entries in tokenizer_config.json.
    """
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    found = {n: (str(p), read_text(p)) for n, p in sorted(files.items()) if p.is_file()}
    if found:
        return found
    legacy = folder / "chat_template.json"
    for path, value in (
        (legacy, _read_object(legacy).get("chat_template")),
        (folder / "tokenizer_config.json", settings.get("chat_template")),
    ):
        if value is not None:
            origin = _origin(path)
            return {name: (origin, source) for name, source in _entries(path, value)}
    return {}


def _origin(path: Path) -> str:
    """The file of a template for messages: a user's, and not one that was made of it."""
    file = named_file(path)
    return str(file) if file.name == path.name else f"{file}: tokenizer.chat_template"


def _entries(path: Path, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, str):
        return [("default", value)]
    entries = value if isinstance(value, list) else []
    pairs = [(e.get("name"), e.get("template")) for e in entries if isinstance(e, dict)]
    named = [(n, t) for n, t in pairs if isinstance(n, str) and isinstance(t, str)]
    if not named or len(named) != len(entries):
        raise CheckpointError(
            f"{named_file(path)}: chat_template must be a string or a list of names with templates"
        )
    return named
