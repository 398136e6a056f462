"""Packing: documents become sequences of equal length, each token at a known position.

Packing looks at one partition only. `concatenate` lets sequences run across documents and pads the last one.
`documents` never mixes documents: each is cut into separate sequences, and the last of them is padded. `best_fit` cuts
only documents that are longer than a sequence, and combines the rest so that little padding is needed (best-fit
decreasing, as in Ding et al. 2024, "Fewer Truncations Improve Language Modeling").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Pack = Literal["concatenate", "documents", "best_fit"]
PACKS: tuple[Pack, ...] = ("concatenate", "documents", "best_fit")

Integers = npt.NDArray[np.int64]
Tokens = npt.NDArray[Any]

WINDOW_TOKENS = 1 << 22
"""Minimum number of tokens that best-fit packing considers together; more would cost memory and save little padding."""
_WINDOW_SEQUENCES = 32
"""The same in sequences, if these are long."""


@dataclass(slots=True)
class Spans:
    """Runs of tokens: `tokens` of them from `start` of the document number `document`, at the flat position `offset`.

    A document without tokens has one run of length 0.
    """

    document: Integers
    start: Integers
    offset: Integers
    tokens: Integers

    def __len__(self) -> int:
        return len(self.document)

    def take(self, rows: npt.NDArray[Any]) -> Spans:
        """Some of the runs."""
        return Spans(self.document[rows], self.start[rows], self.offset[rows], self.tokens[rows])


@dataclass(slots=True)
class Sequences:
    """Consecutive sequences of tokens, and the runs of documents in them.

    Attributes:
        ids: All tokens.
        lengths: Length of every sequence.
        spans: Positions of the documents in `ids`.
        padding: Number of padding tokens.
    """

    ids: Tokens
    lengths: Integers
    spans: Spans
    padding: int = 0


class Packer(Protocol):
    """Packs documents into sequences as they arrive."""

    def add(self, ids: Tokens, lengths: Integers, first: int) -> Sequences:
        """The sequences that are complete after these documents, which are numbered from `first`."""

    def finish(self) -> Sequences:
        """The remaining sequences."""


def packer(pack: Pack | None, sequence_length: int, pad_id: int, dtype: npt.DTypeLike) -> Packer:
    """A packer for one partition; without `pack`, every document is a sequence."""
    if pack is None:
        return Unpacked(np.dtype(dtype))
    kinds: dict[Pack, type[_Fixed]] = {"concatenate": Concatenated, "documents": Separate, "best_fit": BestFit}
    return kinds[pack](sequence_length, pad_id, np.dtype(dtype))


def _nothing(dtype: npt.DTypeLike) -> Sequences:
    empty = np.zeros(0, np.int64)
    return Sequences(np.zeros(0, dtype), empty, Spans(empty, empty, empty, empty))


class Unpacked:
    """Every document is a sequence."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def add(self, ids: Tokens, lengths: Integers, first: int) -> Sequences:
        """All of them."""
        documents = np.arange(first, first + len(lengths))
        spans = Spans(documents, np.zeros_like(documents), np.cumsum(lengths) - lengths, lengths)
        return Sequences(ids, lengths, spans)

    def finish(self) -> Sequences:
        """Nothing is held back."""
        return _nothing(self._dtype)


class _Fixed:
    """Base of packers with a fixed length: holds tokens and runs that are not in a sequence yet."""

    def __init__(self, length: int, pad_id: int, dtype: np.dtype[Any]) -> None:
        self._length = length
        self._pad_id = pad_id
        self._dtype = dtype
        self._ids: Tokens = np.zeros(0, dtype)
        self._waiting = _nothing(dtype).spans

    def add(self, ids: Tokens, lengths: Integers, first: int) -> Sequences:
        """The sequences that are complete with these documents."""
        documents = np.arange(first, first + len(lengths))
        offset = len(self._ids) + np.cumsum(lengths) - lengths
        held = self._waiting
        self._waiting = Spans(
            np.concatenate([held.document, documents]),
            np.concatenate([held.start, np.zeros_like(documents)]),
            np.concatenate([held.offset, offset]),
            np.concatenate([held.tokens, lengths]),
        )
        self._ids = np.concatenate([self._ids, ids])
        return self._complete()

    def finish(self) -> Sequences:
        """The remaining sequences, padded."""
        raise NotImplementedError

    def _complete(self) -> Sequences:
        raise NotImplementedError

    def _cut(self, end: int) -> tuple[Tokens, Spans]:
        """Remove everything before position `end` from the queue; a document across it is split."""
        ids, spans = self._ids[:end], self._waiting
        ends = spans.offset + spans.tokens
        before = spans.offset < end
        taken = spans.take(before)
        taken.tokens = np.minimum(ends[before], end) - taken.offset
        rest = spans.take((ends > end) | ~before)  # the latter for documents without tokens
        gone = np.maximum(end - rest.offset, 0)
        self._waiting = Spans(rest.document, rest.start + gone, rest.offset + gone - end, rest.tokens - gone)
        self._ids = self._ids[end:].copy()
        return ids, taken

    def _sequences(self, ids: Tokens, spans: Spans) -> Sequences:
        count = len(ids) // self._length
        padding = len(ids) - int(spans.tokens.sum())
        return Sequences(ids, np.full(count, self._length, np.int64), spans, padding)

    def _spread(self, ids: Tokens, spans: Spans, offset: Integers, count: int) -> Sequences:
        """The runs of `ids` at other offsets, in `count` sequences of padding."""
        total = count * self._length
        target = np.full(total, self._pad_id, self._dtype)
        ends = np.cumsum(spans.tokens)
        within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - spans.tokens, spans.tokens)
        target[np.repeat(offset, spans.tokens) + within] = ids[np.repeat(spans.offset, spans.tokens) + within]
        return self._sequences(target, Spans(spans.document, spans.start, offset, spans.tokens))

    def _pieces(self, spans: Spans) -> Spans:
        """The runs cut into pieces of at most one sequence; runs without tokens are kept."""
        count = np.maximum(-(-spans.tokens // self._length), 1)
        ends = np.cumsum(count)
        number = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - count, count)
        skipped = number * self._length
        tokens = np.minimum(np.repeat(spans.tokens, count) - skipped, self._length)
        return Spans(
            np.repeat(spans.document, count),
            np.repeat(spans.start, count) + skipped,
            np.repeat(spans.offset, count) + skipped,
            tokens,
        )


class Concatenated(_Fixed):
    """Sequences run across documents."""

    def _complete(self) -> Sequences:
        end = len(self._ids) // self._length * self._length
        return self._sequences(*self._cut(end)) if end else _nothing(self._dtype)

    def finish(self) -> Sequences:
        """The last sequence, padded."""
        if not len(self._waiting):
            return _nothing(self._dtype)
        ids, spans = self._ids, self._waiting
        missing = -len(ids) % self._length
        self._waiting = _nothing(self._dtype).spans
        return self._sequences(np.concatenate([ids, np.full(missing, self._pad_id, self._dtype)]), spans)


class Separate(_Fixed):
    """Every document gets separate sequences."""

    def _complete(self) -> Sequences:
        ids, whole = self._ids, self._waiting
        self._ids, self._waiting = np.zeros(0, self._dtype), _nothing(self._dtype).spans
        pieces = self._pieces(whole)
        used = pieces.tokens > 0
        places: Integers = np.cumsum(used, dtype=np.int64)
        places = (places - used) * self._length
        return self._spread(ids, pieces, places, int(used.sum()))

    def finish(self) -> Sequences:
        """Nothing is held back."""
        return _nothing(self._dtype)


class BestFit(_Fixed):
    """Whole documents share sequences; windows of documents are packed together, so that memory stays bounded."""

    def _complete(self) -> Sequences:
        made = []
        window = max(WINDOW_TOKENS, _WINDOW_SEQUENCES * self._length)
        while len(self._ids) >= window:
            # A window ends with a document, or within one that is longer: there on a whole number of sequences.
            ends = self._waiting.offset + self._waiting.tokens
            inside = ends[ends <= window]
            end = int(inside[-1]) if len(inside) and inside[-1] else window // self._length * self._length
            made.append(self._packed(*self._cut(end)))
        return _joined(made, self._dtype)

    def finish(self) -> Sequences:
        """The last window."""
        if not len(self._waiting):
            return _nothing(self._dtype)
        ids, spans = self._ids, self._waiting
        self._waiting = _nothing(self._dtype).spans
        return self._packed(ids, spans)

    def _packed(self, ids: Tokens, spans: Spans) -> Sequences:
        from gristmill.kernels.packing import best_fit

        pieces = self._pieces(spans)
        used = np.flatnonzero(pieces.tokens)
        lengths = np.ascontiguousarray(pieces.tokens[used])
        order = np.argsort(-lengths, kind="stable")
        sequence, offset, count = best_fit(lengths, order, self._length)
        places = np.zeros(len(pieces), np.int64)
        places[used] = sequence * self._length + offset
        return self._spread(ids, pieces, places, count)


def _joined(parts: list[Sequences], dtype: np.dtype[Any]) -> Sequences:
    if not parts:
        return _nothing(dtype)
    if len(parts) == 1:
        return parts[0]
    moved = np.cumsum([0, *(len(part.ids) for part in parts[:-1])])
    return Sequences(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        Spans(
            np.concatenate([part.spans.document for part in parts]),
            np.concatenate([part.spans.start for part in parts]),
            np.concatenate([part.spans.offset + by for part, by in zip(parts, moved, strict=True)]),
            np.concatenate([part.spans.tokens for part in parts]),
        ),
        sum(part.padding for part in parts),
    )
