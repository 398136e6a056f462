"""`gristmill rethreshold`: shows what other thresholds would keep, from the scores recorded by a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.main import before_the_run, common_options, echo, json_option, print_json, record_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.ledger.ask.rethreshold import Cut, Recut

_WRITERS = {".parquet": "write_parquet", ".csv": "write_csv", ".jsonl": "write_ndjson"}


@click.command("rethreshold")
@click.argument("output")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FILTER.PARAMETER=VALUE",
    help="New value of a threshold, such as WordCountFilter.min_words=80; null removes the bound. For a stage with "
    "several filters, use STAGE:FILTER.PARAMETER. Repeatable.",
)
@click.option(
    "--write",
    "path",
    metavar="FILE",
    help="Write the new decision for every document to FILE (.parquet, .csv or .jsonl).",
)
@record_option
@json_option
@common_options
def command(output: str, settings: tuple[str, ...], path: str | None, record_path: str | None, as_json: bool) -> None:
    """Show what other thresholds would keep, without a new run.

    Uses the scores in the record of OUTPUT, which must come from a run with --scores all, and reads no text: how many
    documents would be kept, and which stages would drop the others. Without --set, lists the run's thresholds.

    \b
    gristmill rethreshold clean/
    gristmill rethreshold clean/ --set WordCountFilter.min_words=80
    """
    from gristmill.ledger.ask.ledger import Ledger
    from gristmill.ledger.ask.rethreshold import cuts

    ledger = Ledger(output, record_path=record_path)
    with before_the_run():
        known = cuts(ledger)
        thresholds = read_thresholds(settings)
        writer = _writer(path)
        recut = ledger.rethreshold(thresholds) if settings or path else None
    if recut is None:
        if as_json:
            print_json({"output": output, "filters": [_plain(cut) for cut in known]})
        else:
            _print_cuts(known)
        return
    if path is not None:
        getattr(recut.frame, writer)(path)
    if as_json:
        before, now = recut.kept()
        counts = {"kept_before": before, "kept": now, "counts": recut.counts(), "changed": len(recut.changed)}
        print_json({"output": output, "thresholds": thresholds, **counts, "stages": stage_changes(recut)})
    else:
        _print_recut(recut, path)


def read_thresholds(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values of `--set` by filter and parameter.

    Raises:
        click.UsageError: One is not FILTER.PARAMETER=VALUE, or is set twice. RecipeError: A value is not YAML.
    """
    from gristmill.recipes.yaml_source import parse_yaml

    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        name, _, parameter = key.strip().rpartition(".")
        if not sign or not name or not parameter:
            raise click.UsageError(
                f"--set {setting!r}: expected FILTER.PARAMETER=VALUE, such as --set WordCountFilter.min_words=80."
            )
        values = found.setdefault(name, {})
        if parameter in values:
            raise click.UsageError(f"{key!r} is set twice.")
        values[parameter] = parse_yaml(text, origin=f"--set {key}").value
    return found


def stage_changes(recut: Recut) -> dict[str, dict[str, int]]:
    """How many documents each stage dropped in the run, and how many it would drop now; only where that differs."""
    frame = recut.frame
    found: dict[str, dict[str, int]] = {}
    for column, key in (("stage_before", "before"), ("stage", "now")):
        ends = frame.filter(frame["status_before" if key == "before" else "status"] != "kept")[column]
        for name, number in ends.drop_nulls().value_counts().iter_rows():
            found.setdefault(str(name), {"before": 0, "now": 0})[key] = int(number)
    return {name: counts for name, counts in sorted(found.items()) if counts["before"] != counts["now"]}


def _writer(path: str | None) -> str:
    ending = next((ending for ending in _WRITERS if str(path).endswith(ending)), None)
    if path is not None and ending is None:
        raise click.UsageError(f"--write {path!r}: the name must end with {', '.join(_WRITERS)}.")
    return _WRITERS[ending] if ending is not None else ""


def _plain(cut: Cut) -> dict[str, Any]:
    return {"stage": cut.stage, "filter": cut.filter, "thresholds": cut.settings()}


def _print_cuts(known: Sequence[Cut]) -> None:
    if not known:
        echo("The run has no filters with adjustable thresholds.")
    twice = [cut.stage for cut in known]
    for cut in known:
        name = cut.stage if twice.count(cut.stage) == 1 else f"{cut.stage}:{cut.filter}"
        values = ", ".join(f"{key}={'null' if value is None else value}" for key, value in cut.settings().items())
        echo(f"{name}: {values or 'no recorded threshold'}")


def _print_recut(recut: Recut, path: str | None) -> None:
    before, now = recut.kept()
    undecided = recut.counts().get("undecided", 0)
    difference = f"{abs(now - before):,} {'fewer' if now < before else 'more'}" if now != before else "no change"
    open_ones = f", {undecided:,} undecided" if undecided else ""
    echo(f"{now:,} of {len(recut.frame):,} documents kept instead of {before:,}: {difference}{open_ones}")
    for name, counts in stage_changes(recut).items():
        echo(f"  {name}: {counts['now']:,} dropped instead of {counts['before']:,}")
    if undecided:
        echo(str(recut).partition(". ")[2])
    if path is not None:
        echo(f"Decisions: {path}")
