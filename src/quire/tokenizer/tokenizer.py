"""A model's tokenizer: text to token ids and back, and conversations to ids.

It wraps the `tokenizers` library, reads the same files as `transformers`, and gives the same ids.
Text comes from the tokens' bytes (token_spelling.py), so `decode`, `token_bytes` and the
incremental detokenizer agree by construction. It differs from the library in one case: where
SentencePiece's byte tokens spell broken UTF-8, only the broken bytes become U+FFFD, not the sound
characters beside them, since a stream cannot take back what it has sent.

Control tokens. Text typed by people must not steer the model: `encode` reads the name of a control
token as plain text unless parse_special is given, and `encode_chat` lets only the template write
control tokens, never the messages, tools or options. The text stays as it was typed. A caller who
writes the whole prompt, template included, asks for parse_special, as `transformers` and other
engines always do. Control tokens are those that the tokenizer marks as special; other added
tokens, such as <think>, are recognised everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import invalid_value
from quire.tokenizer.control_names import tokenizer_json
from quire.tokenizer.conversation_input import TextMap, check_text
from quire.tokenizer.encoder import Encoder
from quire.tokenizer.token_spelling import Pieces, Spelling
from quire.tokenizer.tokenizer_folder import (
    NO_MAX_LENGTH,
    add_missing_tokens,
    listed_tokens,
    named_tokens,
    read_backend,
    read_max_length,
    read_settings,
    read_templates,
)

if TYPE_CHECKING:
    import tokenizers

    from quire.tokenizer.chat_template import ChatTemplate

_USED_TEMPLATES = ("default", "tool_use")
_MOST_IDS = 1 << 32  # that the library can be asked for
_MAX_PIECES = 16  # maps from tokens to text that are remembered


class Tokenizer:
    """Encodes and decodes; safe to share between threads.

    backend: the library's tokenizer. names: role → text of special tokens, such as eos_token.
    templates: name → (file, source) of chat templates. model_max_length: tokens of a text at most,
    as the files say; for scripts, since the engine has a limit of its own.
    """

    has_text = True
    """Whether token ids have text at all."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        names: dict[str, str] | None = None,
        listed: Sequence[str] = (),
        templates: dict[str, tuple[str, str]] | None = None,
        model_max_length: int = NO_MAX_LENGTH,
    ) -> None:
        self._backend = backend
        self.model_max_length = model_max_length
        self.names = names or {}
        """Role → text of special tokens."""
        self.listed = tuple(listed)
        """Texts of special tokens that the model's settings name, with a role or without."""
        self._sources = templates or {}
        self._templates = _compile(self._sources, self.names)
        self.chat_template_text = "\n".join(source for _, source in self._sources.values())
        """The chat templates themselves; empty if there is none."""
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        """Of control tokens, which skip_special_tokens leaves out."""
        self._encoder = Encoder(backend, [added[i] for i in self.special_ids])
        self._spelling = Spelling(backend.decoder)
        self._spelled: dict[tuple[int, bool], bytes] = {}  # what was asked for so far
        self._texts: dict[int, str] = {}  # the same
        self.pieces = lru_cache(_MAX_PIECES)(self._pieces)

    def __reduce__(self) -> tuple[Any, ...]:
        # the backend's own pickle is a text that it cannot always read
        spec = tokenizer_json(self._backend)
        return _of_json, (spec, self.names, self.listed, self._sources, self.model_max_length)

    def __copy__(self) -> Tokenizer:
        return self  # nothing changes it

    def __deepcopy__(self, _: object) -> Tokenizer:
        return self

    @classmethod
    def from_folder(cls, path: Path, template: tuple[str, str] | None = None) -> Tokenizer:
        """Load the tokenizer of a model's folder. template: as (origin, source), in place of its.

        Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json and
        the chat template from chat_template.jinja, additional_chat_templates/, chat_template.json
        or tokenizer_config.json. Raises CheckpointError, which names the file and the fix.
        """
        path = Path(path)
        backend = read_backend(path)
        settings = read_settings(path)
        add_missing_tokens(backend, settings)
        templates = read_templates(path, settings) if template is None else {"default": template}
        return cls(
            backend,
            names=named_tokens(settings),
            listed=listed_tokens(settings),
            templates=templates,
            model_max_length=read_max_length(settings),
        )

    def with_chat_template(self, source: str, origin: str = "chat_template") -> Tokenizer:
        """A tokenizer like this one with another chat template, and no others.

        origin: where it is from, for errors. Raises CheckpointError for a damaged template.
        """
        return Tokenizer(
            self._backend,
            names=self.names,
            listed=self.listed,
            templates={"default": (origin, source)},
            model_max_length=self.model_max_length,
        )

    def vocabulary(self) -> dict[str, int]:
        """All tokens by their names in the vocabulary, with their ids."""
        return self._backend.get_vocab(with_added_tokens=True)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary."""
        return self._backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """The name of a token id in the vocabulary; None for an id without a token."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < _MOST_IDS else None

    @cached_property
    def vocab_size(self) -> int:
        """One above the highest token id; ids between may be unused."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def num_base_tokens(self) -> int:
        """The number of tokens without those that were added to the model's vocabulary."""
        return self._backend.get_vocab_size(with_added_tokens=False)

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a text, where the files name one."""
        return self._named_id("eos_token")

    def end_ids(self, of_model: Iterable[int], vocab_size: int) -> list[int]:
        """The ids that end an answer: those of the model's files, and the tokenizer's own.

        The latter may have been changed alone, as by training with another chat template.
        """
        own = self.eos_token_id
        last = [] if own is None or own >= vocab_size else [own]
        return list(dict.fromkeys([*of_model, *last]))

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a text, where the files name one."""
        return self._named_id("bos_token")

    def _named_id(self, name: str) -> int | None:
        text = self.names.get(name)
        return None if text is None else self._backend.token_to_id(text)

    # Text to ids

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The token ids of a text.

        add_special_tokens: as tokenizer.json says, such as a BOS in front. parse_special: read
        names of control tokens in the text as these tokens; without it they are plain text.
        Raises InvalidRequestError (param "prompt") for what is not Unicode text.
        """
        check_text(text, "prompt")
        text = text if parse_special else self._encoder.escape_control_tokens(text)
        return self._encoder.ids(
            text, add_special_tokens=add_special_tokens, parse_special=parse_special
        )

    def encode_inside(self, text: str) -> list[int]:
        """Token ids of a text that follows other text; names of control tokens are plain text."""
        return self._encoder.inner_ids(self._encoder.escape_control_tokens(text))

    def bad_words_ids(self, words: Iterable[str]) -> list[list[int]]:
        """Each word as token ids, as it is spelled inside a text with and without a space before.

        Raises InvalidRequestError (param "bad_words").
        """
        found: dict[tuple[int, ...], None] = {}  # a set in order
        for word in words:
            check_text(word, "bad_words")
            for spelled in (word, f" {word}"):
                found[tuple(self._encoder.inner_ids(spelled))] = None
        return [list(ids) for ids in found if ids]

    # Ids to text

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids without a token add nothing. No space is tidied away."""
        return b"".join(self._spell_all(ids, skip_special_tokens)).decode(errors="replace")

    def _spell_all(self, ids: Iterable[int], skip_special_tokens: bool) -> Iterator[bytes]:
        first = True
        for token_id in ids:
            if self.shows(token_id, skip_special_tokens=skip_special_tokens):
                yield self.token_bytes(token_id, first=first)
                first = False

    def _pieces(self, skip_special_tokens: bool, unskipped: frozenset[int] = frozenset()) -> Pieces:
        """The text that each token adds to a text that has started; empty if it does not show.

        unskipped: special tokens that show all the same. `pieces` caches the result.
        """

        def piece_of(token_id: int) -> bytes:
            skips = skip_special_tokens and token_id not in unskipped
            shows = self.shows(token_id, skip_special_tokens=skips)
            return self.token_bytes(token_id) if shows else b""

        return Pieces(piece_of)

    def shows(self, token_id: int, *, skip_special_tokens: bool) -> bool:
        """Whether the id takes part in decoded text: it has a token that is not skipped."""
        if token_id in self.special_ids:
            return not skip_special_tokens
        return self._spell(token_id, first=False) is not None

    def control_token_id(self, text: str) -> int | None:
        """The id of the control token with this name; None if there is none."""
        token_id = self._backend.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        """The bytes that a token adds to a text: any part of a character, nothing if unknown.

        first: at the very start of a text, where SentencePiece's leading space is dropped.
        """
        return self._spell(token_id, first=first) or b""

    def _spell(self, token_id: int, *, first: bool) -> bytes | None:
        """The bytes of a token, None where the id has no token."""
        key = (token_id, first)
        if key not in self._spelled:
            if (token := self.id_to_token(token_id)) is None:
                return None
            self._spelled[key] = self._spelling.bytes_of(token, first=first)
        return self._spelled[key]

    def token_text(self, token_id: int) -> str:
        """A token for people to see; U+FFFD where it holds only part of a character."""
        if (text := self._texts.get(token_id)) is None:
            text = self._texts[token_id] = self.token_bytes(token_id).decode(errors="replace")
        return text

    # Conversations

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be encoded."""
        return bool(self._templates)

    @property
    def chat_variables(self) -> frozenset[str]:
        """The names that the chat templates read, such as tools or enable_thinking."""
        return frozenset[str]().union(*(t.variables for t in self._templates.values()))

    def chat_prompt(
        self,
        messages: list[dict[str, Any]],
        map_text: TextMap | None = None,
        /,
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """A conversation through the chat template, for `encode_prompt`.

        Each control token's name that the messages hold is broken, or changed by map_text instead.
        continue_final_message: end within the last message, for an answer that goes on from it.
        add_generation_prompt: end with the start of an answer; None: unless the last message is
        continued. template_kwargs: further values for the template; a name that it does not read
        is a NoEffectWarning.
        Raises InvalidRequestError (param "messages", "tools" or "chat_template_kwargs").
        """
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        return self._template_for(tools).render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            options=template_kwargs,
            map_text=map_text or self._encoder.escape_control_tokens,
        )

    def render_chat(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The text that the chat template makes, to look at: encode_chat makes the ids.

        Arguments and errors as for chat_prompt.
        """
        return self.chat_prompt(messages, str, **options)

    def encode_chat(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation, with the special tokens that the template writes and no
        others: no second BOS, and none from names of control tokens in the messages.

        Arguments and errors as for chat_prompt.
        """
        return self.encode_prompt(self.chat_prompt(messages, **options))

    def encode_prompt(self, prompt: str, *, add_special_tokens: bool = False) -> list[int]:
        """The token ids of what chat_prompt has made.

        add_special_tokens: those of tokenizer.json besides the template's.
        """
        return self._encoder.ids(prompt, add_special_tokens=add_special_tokens)

    def _template_for(self, tools: Any) -> ChatTemplate:
        if tools is not None and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        fix = "use plain completions, or start again with one (chat_template)"
        raise invalid_value("messages", f"this model has no chat template; {fix}")


def _of_json(
    spec: str,
    names: dict[str, str],
    listed: Sequence[str],
    templates: dict[str, tuple[str, str]],
    max_length: int,
) -> Tokenizer:
    """A tokenizer that was pickled. spec: its tokenizer.json."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(spec)
    return Tokenizer(
        backend, names=names, listed=listed, templates=templates, model_max_length=max_length
    )


def _compile(
    templates: dict[str, tuple[str, str]], names: dict[str, str]
) -> dict[str, ChatTemplate]:
    if not templates:
        return {}
    from quire.tokenizer.chat_template import ChatTemplate  # brings Jinja, which takes a while

    return {
        name: ChatTemplate(source, origin=origin, special_tokens=names)
        for name, (origin, source) in templates.items()
        if name in _USED_TEMPLATES
    }
