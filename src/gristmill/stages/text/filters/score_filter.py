"""The stages that score and filter: `Score`, `Filter` and `ScoreFilter`.

Built-in filters work on whole columns; adjacent ones are fused by the planner into one pass. A filter written in Python
is called once per document; if that is slow, one warning says how slow and what to do.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import StageDefinitionError, UsageError
from gristmill.stages.base import FusedStage, ProcessingStage, Spec
from gristmill.stages.text.filters.cascade import (
    CascadeStep,
    FilterCascade,
    FusedFilters,
    apply_cascade,
    drop_reason,
    shares_pass,
)
from gristmill.stages.text.filters.doc_filter import DocumentFilter
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.tasks.columns import one_chunk
from gristmill.tasks.document import DocumentBatch

Fields = str | Sequence[str] | None

_SLOW_SHARE_S = 5.0
"""Seconds in one worker after which a Python filter is reported as slow."""


class SlowFilterWarning(UserWarning):
    """A filter written in Python takes most of the time."""


def _as_lists(value: Any, invert: bool | Sequence[bool], owner: str, parameter: str) -> tuple[list[Any], list[bool]]:
    """The filters, at least one, and whether each is inverted; `ScoreFilter` does not accept functions."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values:
        raise UsageError(f"{owner}({parameter}): the list is empty; pass at least one.")
    for one in values:
        if isinstance(one, DocumentFilter) or (owner != "ScoreFilter" and callable(one)):
            continue
        wanted = "a DocumentFilter object" if owner == "ScoreFilter" else "a DocumentFilter or a function"
        found, write = type(one).__name__, ""
        if isinstance(one, type):
            found, write = f"the class {one.__name__}", f" Write: {owner}({one.__name__}(…))"
        elif callable(one):
            found, write = (
                "a function",
                " To filter by a function of a column's value, use: Filter(…, filter_field=…)",
            )
        raise StageDefinitionError(f"{owner}: {parameter} must be {wanted}, not {found}.{write}")
    inversions = [invert] * len(values) if isinstance(invert, bool) else list(invert)
    if len(inversions) != len(values) or set(map(type, inversions)) != {bool}:
        raise UsageError(f"{owner}: invert={invert!r} must be True or False, or a list with one for each filter.")
    return values, inversions


def _fields(
    given: Fields, count: int, *, name: str, owner: str, optional: bool = False, texts: Sequence[str] = ()
) -> list[Any]:
    """One column per filter, none of them in `texts`; a single text field applies to all filters."""
    values: list[Any] = [given] * count if given is None else [given] if isinstance(given, str) else list(given)
    if len(values) == 1 and name == "text_field":
        values *= count
    if len(values) != count:
        raise UsageError(
            f"{owner}: {count} filters, but {len(values)} values for {name} ({given!r}); pass one for each."
        )
    for field in values:
        if (not isinstance(field, str) or not field) and not optional:
            raise UsageError(f"{owner}: {name} must name a column, not {field!r}.")
        if field in texts:
            raise UsageError(
                f"{owner}: {name}={field!r} is the text column, which the scores would overwrite. Choose another "
                f"column, such as {field + '_score'!r}."
            )
    return values


def _callable_name(function: Any, unnamed: str = "filter") -> str:
    if isinstance(function, DocumentFilter):
        return function.name
    name = getattr(function, "__name__", type(function).__name__)
    return unnamed if name == "<lambda>" else str(name)


def _score_array(function: Any, scores: Sequence[Any]) -> pa.Array:
    """The scores of a filter or function as a column of its declared type, otherwise of their own type.

    Raises:
        StageDefinitionError: It declares whole numbers, but a score is not one.
    """
    found = pa.array([score.item() if isinstance(score, np.generic) else score for score in scores])
    declared, scoring = None, function
    if isinstance(function, DocumentFilter):
        declared, scoring = function.score_kind, function.score_document
    returned = getattr(scoring, "__annotations__", {}).get("return")
    kind = declared or {int: "count", "int": "count", float: "number", "float": "number"}.get(returned)
    kinds = pa.types
    if kind is None or not (kinds.is_integer(found.type) or kinds.is_floating(found.type) or kinds.is_null(found.type)):
        return found
    try:
        return found.cast(pa.int64() if kind == "count" else pa.float64())
    except pa.ArrowInvalid as error:
        raise StageDefinitionError(
            f"{_callable_name(function, 'lambda')} declares whole numbers as scores (-> int), but {error}. Annotate "
            "it with -> float."
        ) from error


def _name_columns(stage: Score | ScoreFilter, filters: Sequence[Any]) -> None:
    """Make the stage name its columns of counts and the additional columns of its scores, if any.

    The names are part of the plan, so that an output of an earlier version, which lacks these columns or holds counts
    as floats, is not resumed with different columns. (JSON has only one type of number, so counts make no difference
    there.)
    """
    counts, added = [], []
    for one, field in zip(filters, stage.score_field, strict=True):
        if field and isinstance(one, ColumnFilter):
            counts += [field] if one.score_kind == "count" else []
            added += [name for name in one.added_fields() if name != field]
    if counts:
        stage.whole_number_columns = counts
    if added:
        _fields(
            added, len(added), name="a column beside score_field", owner=type(stage).__name__, texts=stage.text_field
        )
        stage.added_fields = added


class _Stopwatch:
    """Warns once if Python code per document is slow."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.documents = 0
        self.characters = 0
        self.warned = False

    def scores(self, name: str, score: Callable[[str], Any], column: pa.Array) -> list[Any]:
        """The score of every document by a function of its text; a missing text counts as empty."""
        texts = ["" if text is None else text for text in column.to_pylist()]
        begun = time.perf_counter()
        found = [score(text) for text in texts]
        self.seconds += time.perf_counter() - begun
        self.documents += len(texts)
        self.characters += sum(map(len, texts))
        if not self.warned and self.seconds >= _SLOW_SHARE_S:
            self._warn(name)
        return found

    def _warn(self, name: str) -> None:
        self.warned = True
        warnings.warn(
            f"Filter {name!r} is called once per document and processes {self.documents / self.seconds:,.0f} "
            f"documents ({self.characters / 1e6 / self.seconds:.1f} MB) per second. A ColumnFilter scores columns at "
            "native speed: see docs/how-to/write-a-fast-filter.md.",
            SlowFilterWarning,
            stacklevel=2,
        )


def _begin(functions: Iterable[Any]) -> _Stopwatch:
    """Called before a worker's first batch: filters of users load what they need; column filters do so themselves."""
    for one, method in product(functions, ("model_check_or_download", "load_model", "load_tokenizer")):
        if isinstance(one, DocumentFilter) and not isinstance(one, ColumnFilter) and hasattr(one, method):
            getattr(one, method)()
    return _Stopwatch()


def _as_numbers(scores: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    try:
        return np.asarray([np.nan if score is None else float(score) for score in scores], np.float64)
    except (TypeError, ValueError):
        return None


class Score(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds a column with the score of every document; drops nothing.

    Args:
        score_fn: A filter, a function from text to score, or a list of these.
        score_field: Column for the scores, one per filter.
        text_field: Column that holds the text; one for all filters or one each.

    Example:
        >>> Score(WordCountFilter(), score_field="words")
    """

    for_dropped = "run"
    never_drops = True
    notes_changes = True
    fork_safe = True
    text_parameter = "text_field"
    fills_text = False
    whole_number_columns: Sequence[str] = ()
    added_fields: Sequence[str] = ()

    def __init__(
        self,
        score_fn: DocumentFilter | Callable[[str], Any] | Sequence[Any],
        score_field: Fields,
        text_field: Fields = "text",
    ) -> None:
        self.score_fn, _ = _as_lists(score_fn, False, "Score", "score_fn")
        count = len(self.score_fn)
        self.text_field: list[str] = _fields(text_field, count, name="text_field", owner="Score")
        self.score_field: list[str] = _fields(
            score_field, count, name="score_field", owner="Score", texts=self.text_field
        )
        _name_columns(self, self.score_fn)
        names = [_callable_name(function, "lambda") for function in self.score_fn]
        self.name = names[0] if count == 1 else "score_of_" + "_".join(names)
        self._watch: _Stopwatch | None = None

    def inputs(self) -> Spec:
        return ["data"], list(dict.fromkeys(self.text_field))

    def outputs(self) -> Spec:
        return ["data"], [*self.score_field, *self.added_fields]

    def check_environment(self) -> None:
        for one in self.score_fn:
            if isinstance(one, DocumentFilter):
                one.check_environment()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        self._watch = self._watch or _begin(self.score_fn)
        batch = task
        for function, score_field, text_field in zip(self.score_fn, self.score_field, self.text_field, strict=True):
            if isinstance(function, ColumnFilter):
                result = FilterCascade([function]).evaluate(batch.text(text_field), keep_scores=True, every_score=True)
                numbers: np.ndarray[Any, Any] | None = result.scores[0]
                columns = function.columns(score_field, result.scores[0])
            else:
                call = function.score_document if isinstance(function, DocumentFilter) else function
                scores = self._watch.scores(self.name, call, batch.text(text_field))
                columns, numbers = {score_field: _score_array(function, scores)}, _as_numbers(scores)
            if batch.wants_all_scores and numbers is not None:
                batch.note_scores(_callable_name(function, "lambda"), numbers)
            for name, values in columns.items():
                batch = batch.with_column(name, values)
        return batch


class Filter(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops documents by the value of a column.

    Args:
        filter_fn: A filter (its `keep_document` receives the value) or a function that returns True to keep the
            document.
        filter_field: Column to decide on; one for each filter.
        invert: If True, keep what would be dropped and drop what would be kept.

    Example:
        >>> Filter(lambda words: words >= 50, filter_field="words")
    """

    for_dropped = "score"
    notes_changes = True
    fork_safe = True

    def __init__(
        self,
        filter_fn: DocumentFilter | Callable[[Any], bool] | Sequence[Any],
        filter_field: Fields,
        invert: bool | Sequence[bool] = False,
    ) -> None:
        self.filter_fn, self.invert = _as_lists(filter_fn, invert, "Filter", "filter_fn")
        count = len(self.filter_fn)
        self.filter_field: list[str] = _fields(filter_field, count, name="filter_field", owner="Filter")
        names = list(map(_callable_name, self.filter_fn))
        self.name = names[0] if count == 1 else "filter_of_" + "_".join(names)

    def inputs(self) -> Spec:
        return ["data"], list(dict.fromkeys(self.filter_field))

    def outputs(self) -> Spec:
        return ["data"], list(dict.fromkeys(self.filter_field))

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if len(self.filter_fn) > 1 and task.wants_all_scores and not task.keeps_dropped:
            return self._apply(task.scored(self._apply))
        return self._apply(task)

    def _apply(self, task: DocumentBatch) -> DocumentBatch:
        batch = task
        for function, field, invert in zip(self.filter_fn, self.filter_field, self.invert, strict=True):
            if isinstance(function, ColumnFilter):
                values = batch.text(field) if batch.columns.is_json(field) else one_chunk(batch.column(field))
                numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
                kept = function.keep(numbers)
            else:
                decide = function.keep_document if isinstance(function, DocumentFilter) else function
                seen = batch.columns.python_values(field)
                kept = np.fromiter((bool(decide(value)) for value in seen), bool, len(seen))
                numbers = _as_numbers(seen)
            name = _callable_name(function)
            if batch.wants_all_scores and numbers is not None:
                batch.note_scores(name, numbers)
            batch = batch.drop(kept if invert else ~kept, reason=drop_reason(name, inverted=invert), score=numbers)
            if not batch.num_items:
                break
        return batch


class ScoreFilter(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Scores documents and drops those whose score fails the filter.

    Args:
        filter_obj: A filter or a list of them, applied in order.
        text_field: Column that holds the text; one for all filters or one each.
        score_field: Column to keep the score in, one for each filter; None keeps none.
        invert: If True, keep what would be dropped and drop what would be kept.

    Example:
        >>> ScoreFilter(WordCountFilter(min_words=50), score_field="words")
    """

    for_dropped = "score"
    role = "score_filter"
    notes_changes = True
    fork_safe = True
    text_parameter = "text_field"
    fills_text = False
    whole_number_columns: Sequence[str] = ()
    added_fields: Sequence[str] = ()

    def __init__(
        self,
        filter_obj: DocumentFilter | Sequence[DocumentFilter],
        text_field: Fields = "text",
        score_field: Fields = None,
        invert: bool | Sequence[bool] = False,
    ) -> None:
        self.filter_obj, self.invert = _as_lists(filter_obj, invert, "ScoreFilter", "filter_obj")
        count = len(self.filter_obj)
        self.text_field: list[str] = _fields(text_field, count, name="text_field", owner="ScoreFilter")
        self.score_field: list[str | None] = _fields(
            score_field, count, name="score_field", owner="ScoreFilter", optional=True, texts=self.text_field
        )
        if any(self.score_field):
            _name_columns(self, self.filter_obj)
        names = list(map(attrgetter("name"), self.filter_obj))
        self.name = names[0] if count == 1 else "score_filter_of_" + "_".join(names)
        self._watch: _Stopwatch | None = None

    def inputs(self) -> Spec:
        return ["data"], list(dict.fromkeys(self.text_field))

    def outputs(self) -> Spec:
        return ["data"], [*dict.fromkeys(self.text_field), *filter(None, self.score_field), *self.added_fields]

    def check_environment(self) -> None:
        for one in self.filter_obj:
            one.check_environment()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        self._watch = self._watch or _begin(self.filter_obj)
        if len(self.filter_obj) > 1 and task.wants_all_scores and not task.keeps_dropped:
            # Scored first, with all filters, because a filter does not see what the previous one dropped.
            return self._apply(task.scored(self._apply))
        return self._apply(task)

    def _apply(self, task: DocumentBatch) -> DocumentBatch:
        assert self._watch is not None
        batch = task
        for position, one in enumerate(self.filter_obj):
            texts, invert = batch.text(self.text_field[position]), self.invert[position]
            score_field, prefix = self.score_field[position], f"{one.name}:" if len(self.filter_obj) > 1 else ""
            if isinstance(one, ColumnFilter):
                batch = apply_cascade(batch, texts, [CascadeStep(one, self.name, invert, score_field, prefix)])
            else:
                scores = self._watch.scores(one.name, one.score_document, texts)
                kept = np.fromiter((bool(one.keep_document(score)) for score in scores), bool, len(scores))
                numbers = _as_numbers(scores)
                if batch.wants_all_scores and numbers is not None:
                    batch.note_scores(one.name, numbers)
                if score_field is not None:
                    batch = batch.with_column(score_field, _score_array(one, scores))
                reason = prefix + drop_reason(one.name, inverted=invert)
                batch = batch.drop(kept if invert else ~kept, reason=reason, score=numbers)
            if not batch.num_items:
                break
        return batch

    def warm_up(self) -> None:
        FilterCascade([one for one in self.filter_obj if isinstance(one, ColumnFilter)]).warm_up()

    def fuse(self, following: Sequence[ProcessingStage[Any, Any]]) -> FusedStage | None:
        members: list[ScoreFilter] = []
        steps: list[CascadeStep] = []
        written: set[str | None] = set()
        for stage in (self, *following):
            if (
                not isinstance(stage, ScoreFilter)
                or len(stage.filter_obj) > 1
                or not isinstance(stage.filter_obj[0], ColumnFilter)
                or stage.text_field[0] in written
                or not shares_pass(self, stage, self.text_field[0], stage.text_field[0])
            ):
                break
            members.append(stage)
            steps.append(CascadeStep(stage.filter_obj[0], stage.name, stage.invert[0], stage.score_field[0]))
            written.add(stage.score_field[0])
        if len(members) < 2:
            return None
        return FusedFilters(members, steps, self.text_field[0], name=f"{len(members)}_filters")
