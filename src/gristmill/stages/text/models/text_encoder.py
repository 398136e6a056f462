"""A tokenizer for training data: texts in, flat token ids out, with its end-of-text token and vocabulary size.

A `tokenizer.json` is loaded by the tokenizers package alone and a SentencePiece model by sentencepiece, so that workers
stay small. Only folders with neither are loaded by transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import ModelLoadError, ModelNotFoundError, UsageError, optional_module
from gristmill.stages.text.models.sources import (
    CONFIG_FILES,
    Secret,
    check_identifier,
    check_model,
    fetch_model,
    hide,
    model_folder,
    tokenizer_digest,
)

Ids = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]

_GROUP_TEXTS = 512
_GROUP_CHARS = 1 << 18
"""Texts are encoded in groups: large enough for all threads, small enough that their encodings, which take a hundred
times the memory of the text, stay small.
"""
_REACH = 1 << 12
"""How far before that size to look for a place to cut a long text."""

_PIECE_MODELS = ("tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model")
_END_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<EOS>", "[EOS]", "<|eos|>")
"""End-of-text tokens by their usual names, for a tokenizer that does not declare its own."""
_MOST_NAMED = 12


def flat_ids(rows: Iterable[list[int]], *, end: int | None = None) -> tuple[Ids, Integers]:
    """Lists of token ids as one array, and their lengths.

    Args:
        rows: The ids of each text.
        end: A token to append to each.

    Example:
        >>> ids, lengths = flat_ids([[5, 6], []], end=0)
        >>> ids.tolist(), lengths.tolist()
        ([5, 6, 0, 0], [3, 1])
    """
    flat = array("I")  # converts a list of numbers in two thirds of the time that NumPy needs
    lengths = []
    for row in rows:
        flat.fromlist(row)
        if end is not None:
            flat.append(end)
        lengths.append(len(row) + (end is not None))
    return np.frombuffer(flat, np.uint32) if flat else np.zeros(0, np.uint32), np.array(lengths, np.int64)


class _Backend(Protocol):
    """The operations of a tokenizer of any library."""

    size: int
    """One more than the largest id."""

    def encode(self, texts: list[str], *, special: bool) -> Iterable[list[int]]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def id_of(self, token: str) -> int | None: ...

    def special_tokens(self) -> list[str]: ...

    def ids_it_states(self) -> Mapping[str, int]: ...


class _Compiled:
    """A tokenizer of the package tokenizers."""

    def __init__(self, tokenizer: Any) -> None:
        # A file may enable truncation or padding, which would cut documents.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._cuts = can_cut(tokenizer)
        self.size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, texts: list[str], *, special: bool) -> Iterable[list[int]]:
        if len(texts) == 1 and len(texts[0]) > 2 * _GROUP_CHARS and self._cuts and not special:
            long: list[int] = []
            for piece in cut_between_words(texts[0], _GROUP_CHARS):
                long += self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)[0].ids
            return [long]
        return (found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=special))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def id_of(self, token: str) -> int | None:
        found = self._tokenizer.token_to_id(token)
        return None if found is None else int(found)

    def special_tokens(self) -> list[str]:
        added = self._tokenizer.get_added_tokens_decoder()
        return [token.content for _, token in sorted(added.items()) if token.special]

    def ids_it_states(self) -> Mapping[str, int]:
        return {}


_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"}
_SEPARATING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_LOCAL = {"Digits", "Punctuation"}
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {f"{_CONTRACTIONS}{digits}{_TAIL}" for digits in (r"\p{N}", r"\p{N}{1,3}")}
"""Used by GPT-4, Llama 3 and Qwen: a word includes the one space before it, and nothing more."""
_GAP = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")


def can_cut(tokenizer: Any) -> bool:
    """Whether a text can be cut before a single space between two letters without affecting its tokens.

    This holds if every step before the model looks at one word at a time; unknown steps are not trusted.
    """
    for token in tokenizer.get_added_tokens_decoder().values():
        if " " in token.content or token.lstrip or token.rstrip:
            return False
    normalizers = _steps(tokenizer.normalizer, "normalizers")
    steps = _steps(tokenizer.pre_tokenizer, "pretokenizers")
    if any(step["type"] not in _NORMALIZERS for step in normalizers):
        return False
    kinds = [_separates(step) for step in steps]
    return None not in kinds and True in kinds


def _steps(part: Any, key: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, as its state describes them."""
    if part is None:
        return []
    described = json.loads(part.__getstate__())
    return list(described[key]) if described.get("type") == "Sequence" else [described]


def _separates(step: Mapping[str, Any]) -> bool | None:
    """Whether a step separates words at their spaces; None for one that may look further."""
    kind = step.get("type")
    if kind == "ByteLevel":
        return None if step.get("add_prefix_space") else bool(step.get("use_regex", True))
    if kind == "Split":
        known = step.get("pattern", {}).get("Regex") in _PATTERNS
        return True if known and step.get("behavior") == "Isolated" and not step.get("invert") else None
    if kind in _SEPARATING:
        return True
    return False if kind in _LOCAL else None


def cut_between_words(text: str, size: int) -> Iterable[str]:
    """The text in pieces of about `size` characters, cut before a single space between two letters.

    Example:
        >>> list(cut_between_words("ab cd ef", 4))
        ['ab', ' cd', ' ef']
    """
    start = 0
    while start < len(text):
        end = start + size
        while end < len(text):
            gaps = [found.start() for found in _GAP.finditer(text, max(start + 1, end - _REACH), end)]
            if gaps:
                end = gaps[-1]
                break
            end += size
        yield text[start:end]
        start = end


class _Pieces:
    """A SentencePiece model."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self.size = int(processor.get_piece_size())

    def encode(self, texts: list[str], *, special: bool) -> Iterable[list[int]]:
        found: list[list[int]] = self._processor.encode(
            texts, out_type=int, add_bos=special and self._processor.bos_id() >= 0, num_threads=1
        )
        return found

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode([int(one) for one in ids]))

    def id_of(self, token: str) -> int | None:
        found = int(self._processor.piece_to_id(token))
        return found if self._processor.id_to_piece(found) == token else None

    def special_tokens(self) -> list[str]:
        return [self._processor.id_to_piece(one) for one in range(self.size) if self._processor.is_control(one)]

    def ids_it_states(self) -> Mapping[str, int]:
        stated = {"eos_token": self._processor.eos_id(), "pad_token": self._processor.pad_id()}
        return {name: int(one) for name, one in stated.items() if one >= 0}


class _Transformers:
    """A tokenizer of transformers that is written in Python."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.size = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))

    def encode(self, texts: list[str], *, special: bool) -> Iterable[list[int]]:
        found = self._tokenizer(
            texts,
            add_special_tokens=special,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            verbose=False,
        )
        rows: list[list[int]] = found["input_ids"]
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def id_of(self, token: str) -> int | None:
        found = self._tokenizer.get_vocab().get(token)
        return None if found is None else int(found)

    def special_tokens(self) -> list[str]:
        return list(self._tokenizer.all_special_tokens)

    def ids_it_states(self) -> Mapping[str, int]:
        stated = {"eos_token": self._tokenizer.eos_token_id, "pad_token": self._tokenizer.pad_token_id}
        return {name: int(one) for name, one in stated.items() if one is not None}


class TextEncoder:
    """A tokenizer that turns texts into flat arrays of ids.

    Attributes:
        identifier: The name it was loaded by.
        vocabulary_size: One more than its largest id.
    """

    def __init__(self, identifier: str, backend: _Backend, stated: Mapping[str, str | int]) -> None:
        self.identifier = identifier
        self.vocabulary_size = backend.size
        self._backend = backend
        self._stated = {**backend.ids_it_states(), **stated}

    def encode(self, text: pa.Array, *, special: bool = False, end: int | None = None) -> tuple[Ids, Integers]:
        """The tokens of texts, concatenated, and the number of each; a null text is empty.

        Args:
            text: A column of texts.
            special: Add the tokenizer's special tokens around each text.
            end: A token to append to each text.
        """
        ids, lengths = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)]
        for group in _groups(text):
            found = flat_ids(self._backend.encode(group, special=special), end=end)
            ids.append(found[0])
            lengths.append(found[1])
        return np.concatenate(ids), np.concatenate(lengths)

    def count(self, text: pa.Array, *, special: bool = False) -> Integers:
        """The number of tokens of each text; 0 for null."""
        counts = [0]
        for group in _groups(text):
            counts += [len(row) for row in self._backend.encode(group, special=special)]
        return np.array(counts[1:], np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        return self._backend.decode(ids)

    def token_id(self, name: str, given: str | int | None) -> int | None:
        """The id of a special token.

        Args:
            name: `eos_token` or `pad_token`.
            given: The token or its id, if set by the user; otherwise the tokenizer's own.

        Raises:
            UsageError: The tokenizer does not have the token.
        """
        if isinstance(given, int):
            if not 0 <= given < self.vocabulary_size:
                raise UsageError(
                    f"The tokenizer {self.identifier} has no token {given}: its ids go from 0 to "
                    f"{self.vocabulary_size - 1}."
                )
            return given
        wanted = given if given is not None else self._stated.get(name)
        if wanted is None and name == "eos_token":
            known = [one for one in _END_NAMES if self._backend.id_of(one) is not None]
            wanted = known[0] if len(known) == 1 else None
        if wanted is None or isinstance(wanted, int):
            return wanted
        found = self._backend.id_of(wanted)
        if found is None:
            raise UsageError(f"The tokenizer {self.identifier} has no token {wanted!r}. {self.told_special_tokens()}")
        return found

    def told_special_tokens(self) -> str:
        """A sentence that lists its special tokens."""
        found = self._backend.special_tokens()
        if not found:
            return "It has no special tokens."
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return f"Its special tokens are {', '.join(found[:_MOST_NAMED])}{more}."


def _groups(text: pa.Array) -> Iterable[list[str]]:
    """The texts in groups of limited size; a longer text is its own group."""
    sizes = pc.fill_null(pc.binary_length(text), 0).to_numpy()
    start = 0
    while start < len(text):
        fitting = int(np.searchsorted(np.cumsum(sizes[start : start + _GROUP_TEXTS]), _GROUP_CHARS, side="right"))
        end = start + max(1, fitting)
        yield [value or "" for value in text.slice(start, end - start).to_pylist()]
        start = end


def encoder_place(identifier: str, *, cache_dir: str | None = None) -> Path:
    """The file or folder that a tokenizer is read from; nothing is downloaded.

    Raises:
        ModelNotFoundError: It is not on this machine.
    """
    path = Path(identifier).expanduser()
    return path.resolve() if path.is_file() else model_folder(identifier, cache_dir=cache_dir)


class EncoderSource:
    """Where a stage gets its tokenizer from: checked in the driver, downloaded once per node, loaded in every worker.

    Args:
        identifier: See `load_encoder`.
        cache_dir: Cache folder for hub downloads.
        hf_token: Access token for gated models; it is never shown.
        init_options: Options for transformers' `from_pretrained`, which then loads the tokenizer.
    """

    def __init__(
        self,
        identifier: str,
        *,
        cache_dir: str | None = None,
        hf_token: str | None = None,
        init_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.identifier = check_identifier(identifier)
        self.cache_dir = cache_dir
        self.init_options = dict(init_options or {})
        self._token: Secret | bool | None = hide(hf_token)
        self._loaded: TextEncoder | None = None

    @property
    def _is_file(self) -> bool:
        return Path(self.identifier).expanduser().is_file()

    def is_here(self) -> bool:
        """Whether its files are on this machine; False for a tokenizer that the hub would provide.

        Raises:
            ModelNotFoundError: It is neither local nor on the hub, as far as the hub can be reached.
        """
        if self._is_file:
            return True
        return check_model(self.identifier, cache_dir=self.cache_dir, token=self._token, files=["*tok*"]) is not None

    def fetch(self) -> None:
        """Download its files unless they are cached."""
        if not self._is_file:
            fetch_model(self.identifier, cache_dir=self.cache_dir, token=self._token, files=CONFIG_FILES)

    def digest(self) -> str | None:
        """A digest of the files that determine the tokens, or None if they are not downloaded yet."""
        try:
            place = encoder_place(self.identifier, cache_dir=self.cache_dir)
        except ModelNotFoundError:
            return None
        return hashlib.sha256(place.read_bytes()).hexdigest()[:32] if place.is_file() else tokenizer_digest(place)

    def load(self, *, threads: bool | None = None) -> TextEncoder:
        """The tokenizer, loaded on the first call.

        Args:
            threads: Whether it may use several threads; None leaves it to the library. The environment variable
                TOKENIZERS_PARALLELISM takes precedence.
        """
        if threads is not None:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads else "false")
        if self._loaded is None:
            self._loaded = load_encoder(self.identifier, cache_dir=self.cache_dir, init_options=self.init_options)
        return self._loaded

    def forget(self) -> None:
        """Release the tokenizer."""
        self._loaded = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}


def load_encoder(
    identifier: str, *, cache_dir: str | None = None, init_options: Mapping[str, Any] | None = None
) -> TextEncoder:
    """The tokenizer with this name, from local files.

    Args:
        identifier: A `tokenizer.json`, a SentencePiece `.model`, a folder with either (or with anything that
            transformers loads), `package:NAME`, or the id of a model in the hub's cache.
        cache_dir: Cache folder for hub downloads.
        init_options: Options for transformers' `from_pretrained`, which then loads the tokenizer.

    Raises:
        ModelNotFoundError: It is not on this machine.
        ModelLoadError: It cannot be read.
    """
    place = encoder_place(identifier, cache_dir=cache_dir)
    folder = place.parent if place.is_file() else place
    file = (
        place
        if place.is_file()
        else next((folder / name for name in ("tokenizer.json", *_PIECE_MODELS) if (folder / name).is_file()), None)
    )
    stated: dict[str, str | int] = {}
    if file is None or init_options:
        backend: _Backend = _with_transformers(folder, init_options or {})
    else:
        backend = _from_file(file, identifier)
        if file.name in ("tokenizer.json", *_PIECE_MODELS):  # another file has no settings beside it
            stated = _stated_tokens(folder)
    return TextEncoder(identifier, backend, stated)


def _from_file(file: Path, identifier: str) -> _Backend:
    try:
        if file.suffix == ".json":
            return _Compiled(optional_module("tokenizers", "This tokenizer").Tokenizer.from_file(str(file)))
        return _Pieces(optional_module("sentencepiece", "This tokenizer").SentencePieceProcessor(model_file=str(file)))
    except (MemoryError, KeyboardInterrupt, ImportError):
        raise
    except Exception as error:  # both libraries raise bare exceptions for files that are not theirs
        raise ModelLoadError(
            f"{file} cannot be read as a {'tokenizer.json' if file.suffix == '.json' else 'SentencePiece model'}: "
            f"{error}. Pass a tokenizer.json, a SentencePiece .model file, or a folder with one of them.",
            identifier=identifier,
        ) from error


def _with_transformers(folder: Path, options: Mapping[str, Any]) -> _Backend:
    from gristmill.stages.text.models.loading import load_tokenizer

    tokenizer = load_tokenizer(folder, **options)
    compiled = getattr(tokenizer, "backend_tokenizer", None)
    if compiled is None:
        return _Transformers(tokenizer)
    from tokenizers import Tokenizer

    own = _Compiled(Tokenizer.from_str(compiled.to_str()))
    stated = {"eos_token": tokenizer.eos_token_id, "pad_token": tokenizer.pad_token_id}
    found = {name: int(one) for name, one in stated.items() if one is not None}
    own.ids_it_states = lambda: found  # type: ignore[method-assign]
    return own


def _stated_tokens(folder: Path) -> dict[str, str | int]:
    """The end-of-text and padding tokens in the settings of a folder, by text or by id."""
    stated: dict[str, str | int] = {}
    for name in ("generation_config.json", "config.json", "special_tokens_map.json", "tokenizer_config.json"):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{folder / name} cannot be read: {error}.", identifier=str(folder)) from error
        for token in ("eos_token", "pad_token"):
            value = found.get(token) if isinstance(found, dict) else None
            value = value.get("content") if isinstance(value, dict) else value
            if value is None and isinstance(found, dict):
                value = found.get(f"{token}_id")
            if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
                stated[token] = value
    return stated
