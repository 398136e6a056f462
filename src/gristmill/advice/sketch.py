"""Statistics of documents from one pass in bounded memory: sizes, hashes, languages and the scores of filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gristmill.advice.histogram import Histogram
from gristmill.kernels.hashing import hash_spans
from gristmill.kernels.loose_hashing import loose_hashes
from gristmill.kernels.text_column import TextColumn, text_column
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.filters.cascade import FilterCascade
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import N_CHARS, N_LINES, N_WORDS, Scores, Statistic
from gristmill.tasks.base import Task
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.stages.text.filters.fasttext import FastTextLangId

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

MOST_HASHES = 1 << 22
"""Maximum number of hashes kept to find copies; above it, only some of the texts are kept, each with all its copies."""
_ALL = 1 << 64
_UNKNOWN = "unknown"
_LANGUAGE_SHARE = 0.02
_LEAST_DOCUMENTS = 200
"""The share of each batch, and the minimum number of documents, whose language is detected: a few percent of the
time."""


class _Length(ColumnFilter):
    """A length of documents, scored like a filter that keeps everything."""

    score_kind = "count"

    def __init__(self, name: str, statistic: Statistic) -> None:
        super().__init__(name)
        self.statistic = statistic


LENGTHS = {"characters": N_CHARS, "words": N_WORDS, "lines": N_LINES}


@dataclass(slots=True)
class HashSample:
    """Hashes of texts below a limit, so that either all copies of a text are in the sample or none.

    The limit is halved whenever the sample becomes too large; the result does not depend on the order.
    """

    limit: int = _ALL
    pieces: list[Hashes] = field(default_factory=list)
    size: int = 0

    def add(self, hashes: Hashes) -> None:
        """Add the hashes below the limit."""
        if self.limit < _ALL:
            hashes = hashes[hashes < np.uint64(self.limit)]
        self.pieces.append(hashes)
        self.size += len(hashes)
        while self.size > MOST_HASHES:
            self.limit //= 2
            joined = np.concatenate(self.pieces)
            self.pieces = [joined[joined < np.uint64(self.limit)]]
            self.size = len(self.pieces[0])

    def merge(self, other: HashSample) -> None:
        """Add another sample."""
        for piece in other.pieces:
            self.add(piece)

    @property
    def share(self) -> float:
        """The share of all texts that are in the sample."""
        return self.limit / _ALL

    def copies(self) -> float | None:
        """The share of documents that are copies of an earlier one; None without documents."""
        if not self.size:
            return None
        return 1 - len(np.unique(np.concatenate(self.pieces))) / self.size


@dataclass(slots=True)
class Sketch:
    """Statistics of some documents. Sketches of parts add up to that of the whole.

    Attributes:
        documents: Number of documents.
        empty: Number of documents without text.
        text_bytes: The size of all texts, as UTF-8.
        failed: Number of documents that at least one of the filters would drop.
        equal: Hashes of the texts.
        loose: Hashes of the texts without case, spacing and punctuation.
        languages: Documents by language, in a sample.
        lengths: Distributions of characters, words and lines.
        scores: Distributions by filter.
        dropped: Number of documents that would be dropped, by filter and reason.
    """

    documents: int = 0
    empty: int = 0
    text_bytes: int = 0
    failed: int = 0
    equal: HashSample = field(default_factory=HashSample)
    loose: HashSample = field(default_factory=HashSample)
    languages: Counter[str] = field(default_factory=Counter)
    lengths: dict[str, Histogram] = field(default_factory=dict)
    scores: dict[str, Histogram] = field(default_factory=dict)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)

    def merge(self, other: Sketch) -> None:
        """Add the statistics of other documents."""
        self.documents += other.documents
        self.empty += other.empty
        self.text_bytes += other.text_bytes
        self.failed += other.failed
        self.equal.merge(other.equal)
        self.loose.merge(other.loose)
        self.languages.update(other.languages)
        for mine, theirs in ((self.lengths, other.lengths), (self.scores, other.scores)):
            for name, histogram in theirs.items():
                if name in mine:
                    mine[name].merge(histogram)
                else:
                    mine[name] = histogram
        for name, reasons in other.dropped.items():
            self.dropped.setdefault(name, Counter()).update(reasons)


class SketchTask(Task[Sketch]):
    """The sketch of a batch, on its way to the driver."""

    @property
    def num_items(self) -> int:
        return 1


class SketchStage(ProcessingStage[DocumentBatch, SketchTask]):
    """Turns documents into a sketch of them.

    Args:
        filters: The filters whose scores are counted, by the names used in the report.
        text_field: The column with the text.
        language: Detects the language of a sample of documents; None for no languages.
    """

    name = "sketch"
    fork_safe = True

    def __init__(
        self,
        filters: dict[str, ColumnFilter],
        *,
        text_field: str = "text",
        language: FastTextLangId | None = None,
    ) -> None:
        self.filters = filters
        self.text_field = text_field
        self.language = language

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], []

    def check_environment(self) -> None:
        for one in self.filters.values():
            one.check_environment()

    def warm_up(self) -> None:
        texts = text_column(["a", "b"])
        self._cascade().warm_up()
        hash_spans(*texts)
        loose_hashes(texts.data, texts.offsets)

    def process(self, task: DocumentBatch) -> SketchTask:
        texts = text_column(task.text(self.text_field))
        return SketchTask(task.dataset_name, self.sketch(texts))

    def sketch(self, texts: TextColumn) -> Sketch:
        """The sketch of these texts."""
        everything = np.ones(len(texts), np.bool_)
        found = Sketch(len(texts), int((texts.lengths == 0).sum()), int(texts.lengths.sum()))
        cascade = self._cascade()
        result = cascade.evaluate(texts, every_score=True)
        found.failed = int((~result.kept).sum())
        names = [*LENGTHS, *self.filters]
        for position, (name, one) in enumerate(zip(names, cascade.filters, strict=True)):
            histogram, scores = Histogram(one.score_kind), result.scores[position]
            histogram.add(scores)
            if name in LENGTHS:
                found.lengths[name] = histogram
                continue
            found.scores[name] = histogram
            found.dropped[name] = _reasons(one, scores[~one.keep(scores)])
        hashes = hash_spans(texts.data, texts.offsets, everything)
        found.equal.add(hashes)
        found.loose.add(loose_hashes(texts.data, texts.offsets))
        if self.language is not None:
            number = max(_LEAST_DOCUMENTS, int(_LANGUAGE_SHARE * len(texts)))
            chosen = np.zeros(len(texts), np.bool_)
            chosen[np.argsort(hashes)[:number]] = True
            _, codes = self.language.predict(texts, chosen)
            found.languages.update(
                code or _UNKNOWN for code, asked in zip(codes, chosen.tolist(), strict=True) if asked
            )
        return found

    def _cascade(self) -> FilterCascade:
        lengths: Sequence[Any] = [_Length(name, statistic) for name, statistic in LENGTHS.items()]
        return FilterCascade([*lengths, *self.filters.values()])


def _reasons(one: ColumnFilter, failing: Scores) -> Counter[str]:
    """Why a filter would drop documents with these scores."""
    if type(one).reason is not ColumnFilter.reason:
        return Counter(map(one.reason, failing.tolist()))
    low = 0 if one.lower is None else int((~(failing >= one.lower)).sum())
    counts = {one.lower_reason: low, one.upper_reason: len(failing) - low}
    return Counter({reason: count for reason, count in counts.items() if count})
