"""Labelled texts for training: reading them, and splitting them into training and held-out parts."""

from __future__ import annotations

import gzip
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from gristmill.errors import InputError, InputNotFoundError

Integers = npt.NDArray[np.int64]
Progress = Callable[[str, float], None]
"""Called with the current step and its progress as a share."""

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_ENDINGS = (".jsonl", ".jsonl.gz")


def silent(what: str, done: float) -> None:
    """Report nothing."""


@dataclass(slots=True)
class LabelledTexts:
    """Texts with their labels, encoded as numbers.

    Attributes:
        texts: The texts.
        classes: The number of the label of each.
        labels: The labels by number.
        blank: Number of records that were skipped because their text is null, empty or blank.
    """

    texts: list[str]
    classes: Integers
    labels: list[str]
    blank: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, rows: Integers) -> LabelledTexts:
        """The texts of some rows."""
        return LabelledTexts([self.texts[row] for row in rows], self.classes[rows], self.labels)

    def similar_labels(self) -> list[tuple[str, str]]:
        """Pairs of labels that differ only in case, spaces or the form of a number, which is rarely intended."""
        seen: dict[str, str] = {}
        pairs = [(seen.setdefault(_essence(label), label), label) for label in self.labels]
        return [(first, second) for first, second in pairs if first != second]

    def first_rows(self) -> Integers:
        """For each text, the first row with the same text."""
        seen: dict[str, int] = {}
        return np.array([seen.setdefault(text, row) for row, text in enumerate(self.texts)], np.int64)

    def split(self, held_out: float, seed: int = 0) -> tuple[LabelledTexts, LabelledTexts]:
        """A training part and a held-out part, with about the same share of each label.

        Identical texts are on the same side, otherwise the evaluation would include memorised texts. If that makes the
        requested share impossible, the text with the fewest copies is held out, unless it is the only one of its label.
        """
        rng = np.random.default_rng(seed)
        first = self.first_rows()
        back: set[int] = set()
        seen: set[int] = set()
        for number in range(len(self.labels)):
            rows = rng.permutation(np.flatnonzero(self.classes == number))
            wanted = round(len(rows) * held_out)
            copies = Counter(first[rows].tolist())
            held = sum(count for text, count in copies.items() if text in back)
            # Texts that also have another label were assigned there.
            open_texts = {text: count for text, count in copies.items() if text not in seen}
            for text, count in open_texts.items():
                if held + count <= wanted:
                    back.add(text)
                    held += count
            if wanted and not held and len(copies) > 1 and open_texts:
                back.add(min(open_texts, key=open_texts.__getitem__))
            seen.update(copies)
        mask = np.isin(first, np.fromiter(back, np.int64, len(back)))
        return self.part(np.flatnonzero(~mask)), self.part(np.flatnonzero(mask))


def _essence(label: str) -> str:
    """A normal form that differently written labels share."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    return repr(number) if math.isfinite(number) else " ".join(label.casefold().split())


def read_labelled(path: str | Path, *, text_field: str, label_field: str) -> LabelledTexts:
    """The labelled texts of a JSONL file or of all those in a folder; records whose text is null or blank are skipped.

    Files may be plain or gzip. In a folder, names that begin with `_` or `.` are skipped, as in the input of a run.

    Raises:
        InputNotFoundError: There is no such file.
        InputError: A record has no text or no label, or there are fewer than two labels.
    """
    place = Path(path)
    texts: list[str] = []
    named: list[str] = []
    blank = 0
    for where, record in (entry for file in _files(place) for entry in _records(file)):
        for field in (text_field, label_field):
            if field not in record:
                there = ", ".join(map(repr, record)) or "nothing"
                raise InputError(f"{where} has no {field!r}; it has {there}. Name the fields with --text and --label.")
        text, label = record[text_field], record[label_field]
        if text is not None and not isinstance(text, str):
            raise InputError(f"{where} has a {type(text).__name__} in {text_field!r}, not a string.")
        if text is None or not text.strip():
            blank += 1
            continue
        texts.append(text)
        named.append(_label_of(label, label_field, where))
    labels = sorted(set(named))
    if blank and not texts:
        raise InputError(f"In all {blank:,} records of {place} {text_field!r} is null, empty or blank.")
    if len(labels) < 2:
        raise InputError(f"{place} has {len(labels)} label(s) in {label_field!r}; a classifier needs at least two.")
    numbers = {label: number for number, label in enumerate(labels)}
    return LabelledTexts(texts, np.array([numbers[label] for label in named], np.int64), labels, blank)


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise InputNotFoundError(f"There is no file {place}.", path=str(place))
    found = [path for ending in _ENDINGS for path in place.glob(f"*{ending}") if path.name[0] not in "._"]
    if not found:
        raise InputError(
            f"The folder {place} holds no {' or '.join(_ENDINGS)} files: pass one of them, or their folder."
        )
    return sorted(found)


def _label_of(label: Any, label_field: str, where: str) -> str:
    if label is None or (isinstance(label, str) and not label.strip()):
        state = "null" if label is None else "blank" if label else "empty"
        raise InputError(f"{where} has no label: {label_field!r} is {state}. Add one, or remove the record.")
    if not isinstance(label, str | int | float):
        raise InputError(f"{where} has {label!r} in {label_field!r}; a label must be a string, a number or a boolean.")
    return str(label)


def _records(place: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every record, with its name for messages."""
    with place.open("rb") as raw:
        start = raw.read(len(_PARQUET))
        raw.seek(0)
        if start == _PARQUET:
            raise InputError(
                f"{place} is a Parquet file, and training reads JSONL. Write it as JSONL first, with a pipeline of "
                f"ParquetReader({str(place)!r}) and JsonlWriter."
            )
        packed = place.suffix == ".gz" or start.startswith(_GZIP)
        lines: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        for number, line in enumerate(_lines_of(lines, place), 1):
            content = line.removeprefix(_BOM) if number == 1 else line
            if not content.strip():
                continue
            where = f"Line {number} of {place}"
            try:
                record = orjson.loads(content)
            except orjson.JSONDecodeError as error:
                raise InputError(f"{where} is not JSON: {error}.") from error
            if not isinstance(record, dict):
                raise InputError(f"{where} is a JSON {type(record).__name__}; every line must be a JSON object.")
            yield where, record


def _lines_of(lines: Any, place: Path) -> Iterator[bytes]:
    try:
        yield from lines
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{place} is not a complete gzip file: {error}.") from error
