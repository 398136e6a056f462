"""Labelled texts for training: reading them, splitting them, and how well a classifier does on the part held back."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from gristmill.errors import InputError, InputNotFoundError

Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class LabelledTexts:
    """Texts with the numbers of their labels."""

    texts: list[str]
    classes: Integers
    labels: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, rows: Integers) -> LabelledTexts:
        """The texts of some rows."""
        return LabelledTexts([self.texts[row] for row in rows], self.classes[rows], self.labels)

    def similar_labels(self) -> list[tuple[str, str]]:
        """Pairs of labels that differ only in case or in spaces, which is seldom meant."""
        seen: dict[str, str] = {}
        pairs = [(seen.setdefault(" ".join(label.casefold().split()), label), label) for label in self.labels]
        return [(first, second) for first, second in pairs if first != second]

    def split(self, held_out: float, seed: int = 0) -> tuple[LabelledTexts, LabelledTexts]:
        """A part to learn from and a part held back, with the same share of each label."""
        rng = np.random.default_rng(seed)
        back: list[int] = []
        for number in range(len(self.labels)):
            rows = rng.permutation(np.flatnonzero(self.classes == number))
            back.extend(rows[: round(len(rows) * held_out)].tolist())
        mask = np.zeros(len(self), bool)
        mask[back] = True
        return self.part(np.flatnonzero(~mask)), self.part(np.flatnonzero(mask))


def read_labelled(path: str | Path, *, text_field: str, label_field: str) -> LabelledTexts:
    """The labelled texts of a JSONL file (plain or gzip).

    Raises:
        InputNotFoundError: There is no such file.
        InputError: A record has no text or no label, or there are fewer than two labels.
    """
    place = Path(path)
    if place.is_dir():
        raise InputError(f"{place} is a folder: give one JSONL file, plain or .gz.")
    if not place.is_file():
        raise InputNotFoundError(f"There is no file {place}.", path=str(place))
    texts: list[str] = []
    named: list[str] = []
    with place.open("rb") as raw:
        lines: Any = gzip.GzipFile(fileobj=raw) if place.suffix == ".gz" else raw
        for number, line in enumerate(_lines_of(lines, place), 1):
            if not line.strip():
                continue
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InputError(f"Line {number} of {place} is not JSON: {error}.") from error
            for field in (text_field, label_field):
                if not isinstance(record, dict) or record.get(field) is None:
                    there = ", ".join(map(repr, record)) if isinstance(record, dict) else type(record).__name__
                    raise InputError(f"Line {number} of {place} has no {field!r}; it has {there}.")
            text, label = record[text_field], record[label_field]
            if not isinstance(text, str):
                raise InputError(f"Line {number} of {place} has a {type(text).__name__} as {text_field!r}, not a text.")
            if not isinstance(label, str | int | float) or label == "":
                raise InputError(
                    f"Line {number} of {place} has {label!r} as {label_field!r}; a label is a text, a number or "
                    "a truth value."
                )
            texts.append(text)
            named.append(str(label))
    labels = sorted(set(named))
    if len(labels) < 2:
        raise InputError(f"{place} has {len(labels)} label(s) in {label_field!r}; a classifier needs at least two.")
    numbers = {label: number for number, label in enumerate(labels)}
    return LabelledTexts(texts, np.array([numbers[label] for label in named], np.int64), labels)


def _lines_of(lines: Any, place: Path) -> Iterator[bytes]:
    try:
        yield from lines
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{place} is not a whole gzip file: {error}.") from error


@dataclass(slots=True)
class Evaluation:
    """How predictions compare with the truth: `confusion[true, predicted]` counts texts."""

    labels: list[str]
    confusion: Integers

    @classmethod
    def of(cls, truth: Integers, predicted: Integers, labels: Sequence[str]) -> Evaluation:
        """Count the pairs of true and predicted classes."""
        size = len(labels)
        counts = np.bincount(truth * size + predicted, minlength=size * size).reshape(size, size)
        return cls(list(labels), counts.astype(np.int64))

    @property
    def accuracy(self) -> float:
        """The share of texts that got their true label."""
        total = int(self.confusion.sum())
        return float(np.trace(self.confusion)) / total if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {"accuracy": self.accuracy, "labels": self.labels, "confusion": self.confusion.tolist()}
