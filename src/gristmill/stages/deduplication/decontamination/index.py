"""The index of all n-grams of all benchmark items: built once, mapped from one file by every worker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.stages.deduplication.decontamination.benchmarks import Item, read_items
from gristmill.stages.deduplication.sorted_runs import RunFiles, open_run
from gristmill.stages.source_sink import ReaderStage, SourceColumns, SourceStage
from gristmill.storage.files import InputFile
from gristmill.storage.formats import format_of
from gristmill.storage.partitions import FileRange, Partition
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

MOST_ITEMS = 100
"""N-grams of more items than this are treated as templates, such as the instructions of a benchmark, and skipped.
"""
_EXCERPT = 1000
_GRAMS_PER_FILTER_WORD = 4
"""Maximum, so that no more than 0.6 % of other n-grams pass the filter."""

TOO_SHORT, TEMPLATE, SEARCHED = 0, 1, 2
"""Status of an item: too few words, only templates, or searched for."""


@dataclass(frozen=True)
class GramRule:
    """Which n-grams of an item are searched for.

    Attributes:
        ngram: Number of words in an n-gram.
        whole_below: Texts with fewer words are searched for as a whole.
        min_words: Texts with fewer words are not searched for: they would be found everywhere.
    """

    ngram: int
    whole_below: int
    min_words: int

    def __post_init__(self) -> None:
        from gristmill.kernels.ngram_search import LONGEST

        if not 1 <= self.ngram <= LONGEST:
            raise UsageError(f"ngram={self.ngram!r}: must be a whole number of words from 1 to {LONGEST}.")
        if not 1 <= self.min_words <= LONGEST:
            raise UsageError(f"min_words={self.min_words!r}: must be a whole number of words from 1 to {LONGEST}.")

    def sizes(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The n-gram size for texts with this number of words; 0 for those that are not searched for."""
        size = np.where(words < max(self.whole_below, self.ngram), words, self.ngram)
        return np.where(words < self.min_words, 0, size)

    def keys(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of words of an n-gram that are hashed: all, or only the first few of texts searched for as a whole.

        This leaves only two sizes to look for, whatever the lengths of short texts.
        """
        return np.where(sizes == self.ngram, sizes, np.minimum(sizes, self.min_words))


class BenchmarkFiles(SourceStage):
    """All benchmark files as one partition, so that a changed file is detected.

    Args:
        benchmarks: The files of each benchmark.
    """

    name = "benchmark_files"
    fork_safe = True

    def __init__(self, benchmarks: Mapping[str, Sequence[InputFile]]) -> None:
        self._benchmarks = {name: list(files) for name, files in benchmarks.items()}

    def partitions(self) -> list[Partition]:
        ranges = tuple(
            FileRange(file.path, f"{name}/{file.relative}", file.size, file.stamp, 0, -1, True)
            for name, files in self._benchmarks.items()
            for file in files
        )
        return [Partition(0, "benchmarks", ranges)]

    def columns(self, partitions: Sequence[Partition], wanted: Sequence[str]) -> SourceColumns | None:
        return None


class BenchmarkReader(ReaderStage):
    """Reads all benchmarks into a table of one row, whose columns are the arrays that `ItemList` reads.

    Args:
        benchmarks: The files of each benchmark.
        fields: The fields of each benchmark that are searched for.
        storage_options: File system options for URLs.
    """

    fork_safe = True

    def __init__(
        self,
        benchmarks: Mapping[str, Sequence[InputFile]],
        fields: Mapping[str, Sequence[str]],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._files = {
            name: [(file.path, str(format_of(file.path))) for file in files] for name, files in benchmarks.items()
        }
        self.fields = {name: tuple(wanted) for name, wanted in fields.items()}
        self._storage_options = storage_options

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        yield DocumentBatch.from_columns(TableColumns(self.table()), rows=np.zeros(1, np.int64))

    def table(self) -> pa.Table:
        """The table of all items."""
        return self.table_of(read_items(self._files, self.fields, self._storage_options), list(self._files))

    @abstractmethod
    def table_of(self, items: Iterator[Item], benchmarks: Sequence[str]) -> pa.Table:
        """The table of some items."""


class BenchmarkIndex(BenchmarkReader):
    """Reads all benchmarks into the index of their n-grams.

    Args:
        benchmarks: The files of each benchmark.
        fields: The fields of each benchmark that are searched for.
        rule: Which n-grams are searched for.
        storage_options: File system options for URLs.
    """

    name = "benchmark_index"

    def __init__(
        self,
        benchmarks: Mapping[str, Sequence[InputFile]],
        fields: Mapping[str, Sequence[str]],
        rule: GramRule,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(benchmarks, fields, storage_options=storage_options)
        self.rule = rule

    def table_of(self, items: Iterator[Item], benchmarks: Sequence[str]) -> pa.Table:
        return index_table(items, benchmarks, self.rule)


def index_table(items: Iterator[Item], benchmarks: Sequence[str], rule: GramRule) -> pa.Table:
    """The index of some items, in the layout that `GramIndex` reads."""
    from gristmill.kernels.ngram_search import distinct_grams, gram_postings, index_words, make_filter
    from gristmill.kernels.shingles import word_tables
    from gristmill.kernels.sorting import stable_order
    from gristmill.kernels.text_column import text_column

    texts, counts, listed = list_items(items, benchmarks)
    data, offsets, _ = text_column(texts)
    hashes, bounds, plain, places = index_words(data, offsets, *word_tables())
    del texts, data
    sizes = rule.sizes(np.diff(bounds))
    keys = rule.keys(sizes)
    grams, words = gram_postings(hashes, bounds, sizes, keys)
    item_bounds = bounds[np.array(counts)]
    order = stable_order(grams)
    grams, words = grams[order], words[order]
    gram_sizes = np.repeat(sizes.astype(np.uint8), np.diff(bounds))[words]
    new = distinct_grams(grams, words, gram_sizes, plain, places)
    of_item = np.repeat(np.arange(len(counts) - 1, dtype=np.uint32), np.diff(item_bounds))[words]
    group = np.cumsum(new) - 1
    # Postings of an n-gram are in the order of their words, so an item's are neighbours.
    first_of_item = new.copy()
    first_of_item[1:] |= of_item[1:] != of_item[:-1]
    in_items = np.bincount(group[first_of_item], minlength=int(new.sum()))
    kept = (in_items <= MOST_ITEMS)[group] if len(group) else np.zeros(0, bool)
    grams, words, gram_sizes, new = grams[kept], words[kept], gram_sizes[kept], new[kept]
    heads = np.flatnonzero(new)
    searched = _covered(words, gram_sizes, item_bounds)
    has_grams = np.zeros(len(counts) - 1, bool)
    long_enough = np.flatnonzero(sizes)
    has_grams[np.searchsorted(counts, long_enough, "right") - 1] = True
    status = np.where(searched > 0, SEARCHED, np.where(has_grams, TEMPLATE, TOO_SHORT))
    distinct = grams[heads]
    directory_bits = max(4, len(distinct).bit_length())
    key_sizes, gram_keys = np.unique(keys[sizes > 0]), rule.keys(gram_sizes[heads].astype(np.int64))
    of_size = [distinct[gram_keys == size] for size in key_sizes]
    filter_bits = [max(4, (len(mine) // _GRAMS_PER_FILTER_WORD).bit_length()) for mine in of_size]
    filters = [make_filter(mine, bits) for mine, bits in zip(of_size, filter_bits, strict=True)]
    arrays: dict[str, Any] = {
        "grams": distinct,
        "gram_sizes": gram_sizes[heads],
        "gram_places": places[words[heads]] if len(heads) else np.zeros(0, np.int64),
        "directory": np.searchsorted(
            distinct, (np.arange(1 << directory_bits, dtype=np.uint64) << np.uint64(64 - directory_bits))
        ).astype(np.uint32),
        "filter": np.concatenate([np.zeros(0, np.uint64), *filters]),
        "plain": plain,
        "posting_bounds": np.append(heads, len(words)),
        "postings": words,
        "item_bounds": item_bounds,
        "searched": searched,
        "status": status.astype(np.uint8),
        "sizes": key_sizes.astype(np.int64),
        "directory_bits": np.array([directory_bits]),
        "filter_bits": np.array(filter_bits, np.int64),
        **listed,
    }
    arrays["directory"] = np.append(arrays["directory"], np.uint32(len(distinct)))
    return one_row(arrays)


def list_items(items: Iterator[Item], benchmarks: Sequence[str]) -> tuple[list[str | None], list[int], dict[str, Any]]:
    """The texts of all items, where those of each item begin, and the arrays that name the items in reports."""
    numbers = {name: number for number, name in enumerate(benchmarks)}
    texts: list[str | None] = []
    counts, homes, rows, ids, excerpts = [0], [], [], [], []
    for item in items:
        texts += item.texts
        counts.append(len(texts))
        homes.append(numbers[item.benchmark])
        rows.append(item.row)
        ids.append(item.id)
        excerpts.append(" · ".join(item.texts)[:_EXCERPT])
    listed = {
        "benchmark": np.array(homes, np.uint32),
        "row": np.array(rows, np.int64),
        "id": pa.array(ids, pa.large_string()),
        "text": pa.array(excerpts, pa.large_string()),
        "names": pa.array(list(benchmarks), pa.large_string()),
    }
    return texts, counts, listed


def one_row(arrays: Mapping[str, Any]) -> pa.Table:
    """Arrays of different lengths as a table of one row, which `ItemList` reads."""
    return pa.table({"key": np.zeros(1, np.uint64), **{name: _one_list(values) for name, values in arrays.items()}})


def _one_list(values: Any) -> pa.Array:
    inner = values if isinstance(values, pa.Array) else pa.array(values)
    return pa.LargeListArray.from_arrays(pa.array([0, len(inner)], pa.int64()), inner)


def _covered(
    words: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint8], item_bounds: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The number of words of each item that are part of an n-gram."""
    reach = np.zeros(int(item_bounds[-1]), np.int64)
    reach[words] = words + sizes  # at most one n-gram begins at a word
    inside = np.maximum.accumulate(reach) > np.arange(len(reach))
    return np.diff(np.concatenate([[0], np.cumsum(inside)])[item_bounds])


class ItemList:
    """The items of all benchmarks as arrays, mapped from the file of the step that read them.

    Args:
        runs: The output of that step, or its table.
    """

    def __init__(self, runs: RunFiles | pa.Table) -> None:
        if isinstance(runs, RunFiles):
            (file,) = runs.files
            runs = open_run(file.path, storage_options=runs.storage_options)
        self._table = runs

    def array(self, name: str) -> npt.NDArray[Any]:
        """One array, read-only."""
        values: npt.NDArray[Any] = self._list(name).to_numpy(zero_copy_only=True)
        values.flags.writeable = False
        return values

    def texts(self, name: str) -> pa.Array:
        """One array of texts."""
        return self._list(name)

    def _list(self, name: str) -> pa.Array:
        column = self._table.column(name).chunk(0)
        return column.values.slice(column.offsets[0].as_py(), column.offsets[1].as_py() - column.offsets[0].as_py())

    def item_names(self, items: npt.NDArray[np.int64]) -> list[str]:
        """The names of the items in the ledger: BENCHMARK#ROW."""
        names = self.texts("names").to_pylist()
        homes, rows = self.array("benchmark")[items], self.array("row")[items]
        return [f"{names[home]}#{row}" for home, row in zip(homes.tolist(), rows.tolist(), strict=True)]


class GramIndex(ItemList):
    """The items with the index of their n-grams.

    Args:
        runs: The output of the step that built the index, or its table.
    """

    def __init__(self, runs: RunFiles | pa.Table) -> None:
        super().__init__(runs)
        self.directory_bits = int(self.array("directory_bits")[0])
