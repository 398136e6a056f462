"""Train the shipped classifier `text_kind`, which tells kinds of English text apart, with its provenance.

Reads `../shared/data` beside the repository (or the folder given) and writes `linear.json`, `linear.npz` and
`README.md` to `src/gristmill/stages/text/classifiers/shipped/text_kind`. Only texts that are marked open are used, and
none of the shipped sample, on which the result is tested. Needs the extra `training`.

    python tools/train_demo_model.py [--data FOLDER] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gristmill.recipes.loader import SAMPLE_FILE
from gristmill.stages.text.classifiers.linear import LinearModel
from gristmill.training.labelled_data import LabelledTexts
from gristmill.training.linear import train_linear
from gristmill.training.result import Evaluation
from make_sample import ROOT, SOURCES, pieces, rows, units_of

BITS = 15
# Weights below this share of the largest one are left out: they fill the file and decide nothing.
SMALLEST = 0.01
# The least that a text has in the recipe that uses the model.
MIN_WORDS = 50
MAX_BYTES = 500_000
# Every label is learned from about as many texts of about the same length, so that none is the one to fall back on.
TEXTS_PER_LABEL = 600
PIECE_CHARS = 1_500


@dataclass(frozen=True)
class Lesson:
    """Texts to learn a label from: a source of the sample, or a file with a field of text."""

    label: str
    file: str
    origin: str
    licence: str
    field: str | None = None


LESSONS = (
    Lesson("definition", "texts/dict_jargon", "The Jargon File", "public domain"),
    Lesson("play", "texts/shakespeare", "plays of William Shakespeare", "public domain"),
    Lesson("review", "texts/movie_reviews", "movie review data (Pang and Lee, 2004)", "CC-BY-4.0"),
    Lesson("speech", "texts/inaugural", "inaugural addresses of US presidents", "public domain"),
    Lesson("speech", "texts/state_union", "State of the Union addresses", "public domain"),
    Lesson("web page", "extraction/wcxb_dev_subset.gold", "main text of web pages, WCXB", "CC-BY-4.0", "main_content"),
    Lesson("web page", "extraction/article_extraction_benchmark.gold",
           "article bodies, article-extraction-benchmark", "MIT", "articleBody"),
)  # fmt: skip
TRUTH = {
    "c4": "web page", "cc_head": "web page", "dict_devil": "definition", "dict_jargon": "definition",
    "inaugural": "speech", "movie_reviews": "review", "shakespeare": "play", "state_union": "speech",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the shipped classifier of kinds of text.")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--output", type=Path, default=ROOT / "src/gristmill/stages/text/classifiers/shipped/text_kind")
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(
            f"The test data was expected in {options.data}, which is not a folder; name another one with --data."
        )
    with gzip.open(SAMPLE_FILE, "rt", encoding="utf-8") as lines:
        sample = [json.loads(line) for line in lines]
    known = {record["id"] for record in sample}
    found = [(lesson, [text for name, text in texts_of(lesson, options.data) if name not in known and long(text)])
             for lesson in LESSONS]  # fmt: skip
    found = [(lesson, thinned(texts, among(found, lesson.label))) for lesson, texts in found]
    model = train_linear(labelled([(lesson.label, text) for lesson, texts in found for text in texts]), bits=BITS)
    model.weights[np.abs(model.weights) < SMALLEST * np.abs(model.weights).max()] = 0
    model.save(options.output)
    size = sum(path.stat().st_size for path in options.output.glob("linear.*"))
    if size > MAX_BYTES:
        raise SystemExit(f"The model would have {size:,} bytes; at most {MAX_BYTES:,} are allowed.")
    test = labelled([(TRUTH[record["source"]], record["text"]) for record in sample
                     if record["source"] in TRUTH and long(record["text"])])  # fmt: skip
    evaluation = test_of(LinearModel.load(options.output), test)
    (options.output / "README.md").write_text(readme(found, evaluation, size), encoding="utf-8")
    print(f"{size:,} bytes; {evaluation.accuracy:.1%} of {len(test):,} texts of the sample are labelled right")


def texts_of(lesson: Lesson, data: Path) -> Iterator[tuple[str, str]]:
    """The name and the text of each piece of a lesson; sources of the sample are cut as the sample cuts them."""
    source = next((one for one in SOURCES if lesson.file == f"{one.folder}/{one.name}"), None)
    for number, row in enumerate(rows(data / f"{lesson.file}.jsonl.gz")):
        if source is not None:
            for name, _, text in units_of(source, row):
                yield name, text
        elif lesson.field is not None and row.get(lesson.field):
            for index, text in enumerate(pieces(row[lesson.field], PIECE_CHARS)):
                yield f"{lesson.file}:{number}#{index}", text


def among(found: list[tuple[Lesson, list[str]]], label: str) -> int:
    """How many texts of a label there are."""
    return sum(len(texts) for lesson, texts in found if lesson.label == label)


def thinned(texts: list[str], among: int) -> list[str]:
    """The texts of one source, evenly thinned so that all sources of its label together keep to the limit."""
    keep = min(len(texts), round(len(texts) * TEXTS_PER_LABEL / among))
    return [texts[index * len(texts) // keep] for index in range(keep)]


def long(text: str) -> bool:
    """Whether the recipe that uses the model would get to see a text of this length."""
    return len(text.split()) >= MIN_WORDS


def labelled(pairs: list[tuple[str, str]]) -> LabelledTexts:
    """Labels and texts in the form that training takes."""
    labels = sorted({label for label, _ in pairs})
    numbers = np.array([labels.index(label) for label, _ in pairs], np.int64)
    return LabelledTexts([text for _, text in pairs], numbers, labels)


def test_of(model: LinearModel, test: LabelledTexts) -> Evaluation:
    """How the model, as saved, labels texts that it has not seen."""
    return Evaluation.of(test.classes, model.probabilities(test.texts).argmax(axis=1), model.labels)


def readme(found: list[tuple[Lesson, list[str]]], evaluation: Evaluation, size: int) -> str:
    """README.md: what the model is for, what it learned from, and how well it does."""
    tested = int(evaluation.confusion.sum())
    lines = [
        "# text_kind: five kinds of English text",
        "",
        f"A linear classifier over words and pairs of words ({size:,} bytes) for the demonstration. Use it as",
        '`LinearClassifier(model_path="shipped:text_kind")`. It knows nothing but the kinds of text below: a news',
        "ticker or a recipe gets the label of the nearest of them. Made by `tools/train_demo_model.py` from texts that",
        "may be freely used; the weights are under the licence of the package.",
        "",
        "| label | texts | what they are | licence |",
        "|---|---:|---|---|",
        *(f"| {one.label} | {len(texts):,} | {one.origin} | {one.licence} |" for one, texts in found),
        "",
        f"No text of the sample was learned from. On its {tested:,} documents of these kinds with {MIN_WORDS} words",
        f"or more, {evaluation.accuracy:.1%} of the labels are right. The Devil's Dictionary and the pages of C4 are",
        "from sources that were not learned from at all. True labels are rows, given ones are columns:",
        "",
        "| | " + " | ".join(evaluation.labels) + " |",
        "|---|" + "---:|" * len(evaluation.labels),
        *(
            f"| {label} | " + " | ".join(f"{count:,}" for count in row) + " |"
            for label, row in zip(evaluation.labels, evaluation.confusion.tolist(), strict=True)
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
