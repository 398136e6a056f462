"""Filters by the number of tokens of a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.errors import InputNotFoundError, UsageError, optional_module, require_module
from gristmill.kernels.text_column import TextColumn
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Scores, TextStatistics

__all__ = ["TokenCountFilter", "TokenizerFertilityFilter"]

Counter = Callable[[Sequence[str]], list[int]]

# Documents are tokenized in groups of about this many characters, so that memory does not grow with the batch.
_GROUP_CHARS = 4_000_000
_HUB_SETTINGS = ("revision", "subfolder")


class _TokenFilter(ColumnFilter):
    """A filter whose tokenizer is loaded on first use in a process."""

    _count: Counter | None = None

    def load_tokenizer(self) -> None:
        """Load the tokenizer; called automatically on first use."""
        self._count = self._counter()

    def check_environment(self) -> None:
        """Reject a missing tokenizer or package."""
        self._counter()

    def _counter(self) -> Counter:
        raise NotImplementedError

    def _counts(self, statistics: TextStatistics) -> Scores:
        if self._count is None:
            self.load_tokenizer()
        assert self._count is not None
        texts = statistics.column
        counts = np.zeros(len(texts), np.float64)
        rows = np.flatnonzero(statistics.alive)
        for group in _groups(texts, rows):
            counts[group] = self._count([texts.text(int(row)) for row in group])
        return counts

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_count"}


class TokenCountFilter(_TokenFilter):
    """Keeps documents whose number of tokens, including special tokens, is within bounds.

    Pass exactly one of `tokenizer` and `hf_model_name`.

    Args:
        tokenizer: A tokenizer of the packages tokenizers, transformers or sentencepiece, anything else with
            `encode(text)`, or the path of a `tokenizer.json` or SentencePiece `.model` file.
        hf_model_name: A folder with a `tokenizer.json`, or a model name on the Hugging Face Hub, which is downloaded
            once per node when a run starts, unless it is cached.
        hf_token: Access token for gated models.
        min_tokens: Minimum number of tokens to keep.
        max_tokens: Maximum number of tokens to keep; None or infinity for no limit.
        transformers_init_kwargs: `revision` and `subfolder` of the model on the hub.

    Raises:
        UsageError: (a ValueError) Not exactly one of `tokenizer` and `hf_model_name` is set, or a setting is unknown.

    Example:
        >>> TokenCountFilter("tokenizer.json", min_tokens=10).name
        'TokenCountFilter'
    """

    score_kind = "count"
    lower_reason = "too_few_tokens"
    upper_reason = "too_many_tokens"
    lower_parameter = "min_tokens"
    upper_parameter = "max_tokens"

    def __init__(
        self,
        tokenizer: Any = None,
        hf_model_name: str | None = None,
        hf_token: str | None = None,
        min_tokens: int = 0,
        max_tokens: float | None = float("inf"),
        transformers_init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if (tokenizer is None) == (hf_model_name is None):
            found = "neither" if tokenizer is None else "both"
            raise UsageError(f"TokenCountFilter needs either tokenizer or hf_model_name; {found} is set.")
        settings = dict(transformers_init_kwargs or {})
        for name in settings:
            if name not in _HUB_SETTINGS:
                raise UsageError(
                    f"TokenCountFilter does not take {name!r} in transformers_init_kwargs; it takes "
                    f"{' and '.join(_HUB_SETTINGS)}."
                )
        endless = max_tokens is None or max_tokens == float("inf")
        super().__init__(lower=min_tokens, upper=None if endless else max_tokens)
        self.tokenizer = tokenizer
        self.hf_model_name = hf_model_name
        self.hf_token = hf_token
        self.transformers_init_kwargs = settings

    def model_check_or_download(self) -> None:
        """Make sure that the hub tokenizer is in the cache of this node."""
        if self.hf_model_name is not None:
            self._hub_file(offline=False)

    def score_column(self, statistics: TextStatistics) -> Scores:
        """The number of tokens of every document."""
        return self._counts(statistics)

    def _counter(self) -> Counter:
        if self.hf_model_name is not None:
            return _counter_of_file(self._hub_file(offline=True), special_tokens=True)
        return token_counter(self.tokenizer)

    def _hub_file(self, *, offline: bool) -> Path:
        name = str(self.hf_model_name)
        local = Path(name) / str(self.transformers_init_kwargs.get("subfolder") or "") / "tokenizer.json"
        if local.is_file():
            return local
        require_module("huggingface_hub", "A tokenizer of the hub")
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            path = hf_hub_download(
                name, "tokenizer.json", token=self.hf_token, local_files_only=offline, **self.transformers_init_kwargs
            )
        except LocalEntryNotFoundError as error:
            raise InputNotFoundError(
                f"The tokenizer {name!r} is neither a folder with a tokenizer.json nor in the local hub cache: "
                "download it first, or set tokenizer to the path of a file.",
                path=name,
            ) from error
        return Path(path)


class TokenizerFertilityFilter(_TokenFilter):
    """Keeps documents with enough characters per token; garbled or encoded text has too few.

    Args:
        path_to_tokenizer: A SentencePiece `.model` file or a `tokenizer.json`.
        min_char_to_token_ratio: Minimum number of characters per token; it is -1 for documents without tokens.

    Raises:
        UsageError: (a ValueError) No path is set.

    Example:
        >>> TokenizerFertilityFilter("spiece.model").name
        'TokenizerFertilityFilter'
    """

    lower_reason = "too_few_characters_per_token"
    lower_parameter = "min_char_to_token_ratio"

    def __init__(self, path_to_tokenizer: str | None = None, min_char_to_token_ratio: float = 2.5) -> None:
        if path_to_tokenizer is None:
            raise UsageError("TokenizerFertilityFilter needs path_to_tokenizer: a .model or tokenizer.json file.")
        super().__init__(lower=min_char_to_token_ratio)
        self.path_to_tokenizer = path_to_tokenizer

    def score_column(self, statistics: TextStatistics) -> Scores:
        """Characters per token of every document."""
        counts = self._counts(statistics)
        texts = statistics.column
        chars = np.zeros(len(texts), np.float64)
        for row in np.flatnonzero(statistics.alive):
            chars[row] = len(texts.text(int(row)))
        return np.where(counts > 0, chars / np.maximum(counts, 1), -1.0)

    def _counter(self) -> Counter:
        return _counter_of_file(Path(self.path_to_tokenizer), special_tokens=False)


def _groups(texts: TextColumn, rows: np.ndarray) -> list[np.ndarray]:
    """The rows in groups of limited size."""
    sizes = np.cumsum(texts.lengths[rows])
    return [group for group in np.split(rows, np.flatnonzero(np.diff(sizes // _GROUP_CHARS)) + 1) if len(group)]


def token_counter(tokenizer: Any) -> Counter:
    """A function that counts the tokens of texts, special tokens included.

    Args:
        tokenizer: What `TokenCountFilter` takes: a tokenizer, or the path of its file.
    """
    if isinstance(tokenizer, str | Path):
        return _counter_of_file(Path(tokenizer), special_tokens=True)
    return _counter_of_object(tokenizer)


def _counter_of_file(path: Path, *, special_tokens: bool) -> Counter:
    if not path.is_file():
        raise InputNotFoundError(
            f"There is no tokenizer at {str(path)!r}: pass the path of a tokenizer.json or SentencePiece .model file.",
            path=str(path),
        )
    if path.suffix == ".json":
        tokenizers = optional_module("tokenizers", "This tokenizer")
        return _counter_of_tokenizers(tokenizers.Tokenizer.from_file(str(path)), special_tokens=special_tokens)
    pieces = optional_module("sentencepiece", "This tokenizer")
    return _counter_of_pieces(pieces.SentencePieceProcessor(model_file=str(path)))


def _counter_of_tokenizers(tokenizer: Any, *, special_tokens: bool) -> Counter:
    # A file may enable truncation or padding, which would hide the true number.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        return [len(found) for found in tokenizer.encode_batch_fast(list(texts), add_special_tokens=special_tokens)]

    return count


def _counter_of_pieces(processor: Any) -> Counter:
    def count(texts: Sequence[str]) -> list[int]:
        return [len(found) for found in processor.encode(list(texts), out_type=int)]

    return count


def _counter_of_object(tokenizer: Any) -> Counter:
    """The fastest way to count with a user's tokenizer object."""
    package = type(tokenizer).__module__.split(".")[0]
    if package == "tokenizers" and hasattr(tokenizer, "encode_batch_fast"):
        from tokenizers import Tokenizer

        return _counter_of_tokenizers(Tokenizer.from_str(tokenizer.to_str()), special_tokens=True)
    if package == "sentencepiece":
        return _counter_of_pieces(tokenizer)
    if package == "transformers":
        return lambda texts: [len(found) for found in tokenizer(list(texts), verbose=False)["input_ids"]]
    if not callable(getattr(tokenizer, "encode", None)):
        raise UsageError(f"A tokenizer needs a method encode(text); {type(tokenizer).__name__} has none.")
    return lambda texts: [len(tokenizer.encode(text)) for text in texts]
