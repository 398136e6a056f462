"""`gristmill classifier`: trains a classifier from labelled texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gristmill.cli.main import common_options, echo, json_option, print_json
from gristmill.errors import require_module

_NAMED = 10
"""Maximum number of labels to name in a message; the others are only counted."""


@click.group("classifier", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Train classifiers on your own labels."""


@command.command("train")
@click.argument("data", type=click.Path())
@click.option("--text", "text_field", default="text", show_default=True, help="Column that holds the text.")
@click.option("--label", "label_field", default="label", show_default=True, help="Column that holds the label.")
@click.option("--out", required=True, type=click.Path(), help="Folder to write the classifier to.")
@click.option(
    "--kind",
    type=click.Choice(["linear", "head", "deberta"]),
    default=None,
    help="linear: words and word pairs, as fast as a filter. head: a classification head on --encoder. deberta: a "
    "small DeBERTa trained from scratch. Default: head with --encoder, otherwise deberta.",
)
@click.option("--encoder", default=None, help="Encoder for --kind head: a hub id, a folder, or package:NAME.")
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="Fraction of texts held out for evaluation.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=None,
    help="Training time of --kind deberta [default: 5]; for --kind head, time spent fine-tuning the encoder [default: "
    "the encoder is frozen].",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Random seed of the split and the initial weights.",
)
@json_option
@common_options
def train(
    data: str,
    text_field: str,
    label_field: str,
    out: str,
    kind: str | None,
    encoder: str | None,
    held_out: float,
    minutes: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """Train a classifier on DATA, a JSONL file (optionally .gz) with a text and a label per line, or a folder of them.

    Holds out part of the texts, prints the accuracy and confusion matrix on them (for whole-number labels such as
    grades, also how close the predictions are) and writes both to evaluation.json next to the model. An existing
    classifier in OUT is replaced only when the new one is complete. Use the result with
    DistributedDataClassifier(model_identifier=OUT), or with LinearClassifier(model_path=OUT) for --kind linear.
    """
    from gristmill.training.labelled_data import read_labelled
    from gristmill.training.result import EVALUATION_NAME, filled_when_done

    chosen = kind or ("head" if encoder else "deberta")
    if chosen == "head" and not encoder:
        raise click.UsageError("--kind head needs --encoder: a hub id, a folder, or package:NAME.")
    if chosen != "head" and encoder:
        raise click.UsageError(f"--encoder does not apply to --kind {chosen}, only to --kind head.")
    if chosen == "linear" and minutes is not None:
        raise click.UsageError("--minutes does not apply to --kind linear.")
    texts = read_labelled(data, text_field=text_field, label_field=label_field)
    copies = len(texts) - len(set(texts.texts))
    for note in data_notes(texts, copies, text_field):
        echo(f"Note: {note}", err=True)
    learn, test = texts.split(held_out, seed)
    if not len(test) or not len(learn):
        raise click.UsageError(
            f"--held-out {held_out} of {len(texts)} texts with {len(texts.labels)} labels leaves {len(learn)} for "
            f"training and {len(test)} for evaluation: choose another fraction, add texts per label, or check --label."
        )
    if not as_json:
        echo(f"{len(learn):,} texts for training, {len(test):,} held out, {len(texts.labels)} labels.")
    with filled_when_done(Path(out)) as folder:
        evaluation = _train(learn, test, chosen, folder, encoder=encoder, minutes=minutes, seed=seed, quiet=as_json)
        facts = {"kind": chosen, "texts": len(learn), "held_out": len(test), "copies": copies, "blank": texts.blank}
        facts |= evaluation.to_dict()
        (folder / EVALUATION_NAME).write_text(json.dumps(facts, ensure_ascii=False) + "\n", encoding="utf-8")
    if as_json:
        print_json(facts)
        return
    echo(confusion_text(evaluation))
    if evaluation.never_tested:
        named = ", ".join(map(repr, evaluation.never_tested[:_NAMED]))
        more = f" and {len(evaluation.never_tested) - _NAMED} more" if len(evaluation.never_tested) > _NAMED else ""
        echo(f"Labels missing from the held-out texts: {named}{more}. Add texts, or raise --held-out.")
    graded = evaluation.grades()
    if graded is not None:
        echo(agreement_text(graded))
    echo(f"Accuracy on held-out texts: {evaluation.accuracy:.1%}. Classifier written to {out}.")


def data_notes(texts: Any, copies: int, text_field: str) -> list[str]:
    """Notes about the data, one line each."""
    notes = [f"{first!r} and {second!r} are treated as different labels." for first, second in texts.similar_labels()]
    if texts.blank:
        skipped = f"Skipped {texts.blank:,} record{'s' if texts.blank > 1 else ''}"
        notes.append(f"{skipped} whose {text_field!r} is null, empty or blank.")
    if copies:
        kind = "are copies of others" if copies > 1 else "is a copy of another"
        notes.append(
            f"{copies:,} of {len(texts):,} texts {kind}. Identical texts stay on the same side of the train/test split."
        )
    return notes


def agreement_text(graded: Mapping[str, Any]) -> str:
    """How close the predicted grades are to the true ones, as a sentence and a line per cutoff."""
    error = f"{graded['mean_absolute_error']:.2f}"
    lines = [f"Agreement with held-out grades: {graded['within_one']:.1%} within one, mean absolute error {error}."]
    for grade, figures in graded["at_least"].items():
        lines.append(
            f"  grade {grade} or higher: precision {figures['precision']:.2f}, recall {figures['recall']:.2f}, "
            f"F1 {figures['f1']:.2f}"
        )
    return "\n".join(lines)


def _train(
    learn: Any, test: Any, kind: str, out: Path, *, encoder: str | None, minutes: float | None, seed: int, quiet: bool
) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    from gristmill.training.linear import train_linear
    from gristmill.training.result import evaluate

    networks: Any = None
    if kind != "linear":
        for module in ("torch", "transformers", "safetensors"):
            require_module(module, "Training a network")
        from gristmill.training import networks

    with Progress(console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("starting", total=1.0)

        def progress(what: str, done: float) -> None:
            bar.update(task, description=what, completed=done)

        if kind == "linear":
            train_linear(learn, progress=progress).save(out)
        elif kind == "head":
            networks.train_head(learn, str(encoder), out, minutes=minutes or 0.0, seed=seed, progress=progress)
        else:
            networks.train_deberta(learn, out, minutes=minutes or 5.0, seed=seed, progress=progress)
        bar.update(task, description="testing", completed=1.0)
        return evaluate(out, test)


def confusion_text(evaluation: Any) -> str:
    """The confusion matrix as a table: one row per true label, one column per predicted label."""
    names = [label if len(label) <= 14 else label[:13] + "…" for label in evaluation.labels]
    width = max(5, *map(len, names))
    numbers = [f"{place}" for place in range(1, len(names) + 1)]
    cell = max(len(str(int(evaluation.confusion.max(initial=0)))), len(numbers[-1])) + 2
    lines = [" " * (width + 4) + "".join(number.rjust(cell) for number in numbers)]
    for number, name, row in zip(numbers, names, evaluation.confusion.tolist(), strict=True):
        untested = "" if any(row) else "  never tested"
        lines.append(f"{number:>3} {name:<{width}}" + "".join(str(count).rjust(cell) for count in row) + untested)
    return "\n".join(lines)
