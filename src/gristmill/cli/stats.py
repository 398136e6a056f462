"""`gristmill stats`: profiles an input and shows what the built-in filters would drop."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.main import before_the_run, common_options, echo, json_option, print_json
from gristmill.cli.run import STANDARD_INPUT, executor_options, input_options, sample_options
from gristmill.figures import duration, format_size, plural, printable, share
from gristmill.storage.formats import FORMATS, Format

if TYPE_CHECKING:
    from gristmill.advice.histogram import Histogram
    from gristmill.advice.sketch import HashSample
    from gristmill.advice.statistics import FilterStatistics, Statistics

_BLOCKS = "▁▂▃▄▅▆▇█"
_BARS = 20
_MOST_LANGUAGES = 10
_SHOWN = {"1 %": 0.01, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "99 %": 0.99}
"""The quantiles of the table."""
_NARROW = ("5 %", "median", "95 %")
_WIDE = 120


@click.command("stats")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@input_options
@sample_options
@click.option("--filters", metavar="NAMES", help="Comma-separated list of filters to include (see 'gristmill stages').")
@click.option("--code", is_flag=True, help="Include the filters for source code and HTML.")
@click.option("--no-languages", is_flag=True, help="Skip language detection.")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False), metavar="FILE", help="Also write an HTML page with charts."
)
@executor_options
@click.option("--quiet", "-q", is_flag=True, help="Hide progress.")
@json_option
@common_options
def command(
    inputs: tuple[str, ...],
    text_field: str | None,
    input_filetype: Format | None,
    limit: int | None,
    sample: float | None,
    seed: int | None,
    filters: str | None,
    code: bool,
    no_languages: bool,
    page: str | None,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Profile a dataset before you build a pipeline.

    Shows document counts, sizes, duplicates, lengths and languages, and for every built-in filter the distribution of
    its scores and the share its default would drop, so that you can choose thresholds from the data. INPUT is a file,
    folder, glob or URL, and can be repeated; '-' reads JSONL from standard input. Reads everything once and writes
    nothing but the page.

    \b
    gristmill stats crawl/ --html stats.html
    gristmill stats crawl/ --sample 1% --json
    gristmill stats code/ --filters AlphaFilter,NumberOfLinesOfCodeFilter
    """
    from gristmill.backends.registry import get_executor
    from gristmill.observe.display import make_listener

    if seed is not None and sample is None:
        raise click.UsageError("--seed needs --sample.")
    if page is not None and not Path(page).absolute().parent.is_dir():
        raise click.UsageError(f"--html {page}: the folder {str(Path(page).absolute().parent)!r} does not exist.")
    config: dict[str, Any] = {"num_cpus": workers, "memory_budget": memory_budget}
    with before_the_run():
        chosen = get_executor(executor or "local", {key: value for key, value in config.items() if value is not None})
        from gristmill.advice.statistics import choose_filters, read_statistics

        names = [name.strip() for name in (filters or "").split(",") if name.strip()]
        choose_filters(names, code=code)
    with (
        named_column(text_field or "text"),
        readable(inputs, input_filetype) as paths,
        closing(make_listener("off" if quiet else "auto")) as display,
    ):
        found = read_statistics(
            paths,
            chosen,
            text_field=text_field or "text",
            filetype=input_filetype,
            sample=sample,
            seed=seed or 0,
            max_documents=limit,
            filters=names,
            code=code,
            languages=not no_languages,
            listeners=[display],
        )
    if page is not None:
        from gristmill.advice.page import statistics_page

        Path(page).write_text(statistics_page(found, inputs), encoding="utf-8")
    if as_json:
        print_json({**found.as_json(), "inputs": list(inputs)})
        return
    print_statistics(found, inputs)
    if page is not None:
        echo(f"Page: {page}")


@contextmanager
def named_column(column: str) -> Iterator[None]:
    """Explain a missing text column in terms of --text-field, because the user of `stats` wrote no stage."""
    from gristmill.errors import MissingColumnError, did_you_mean

    try:
        yield
    except MissingColumnError as error:
        available = [str(name) for name in error.facts.get("available") or ()]
        listed, beside = ", ".join(available) or "none", str(error.facts.get("beside") or "")
        fix = "Name the text column: --text-field NAME"
        if "html" in available:
            fix = (
                "These are web pages: extract their text first (gristmill run web-crawl INPUT OUTPUT, or a recipe with "
                "HtmlExtractor) and run this on the output"
            )
        raise MissingColumnError(
            f"The input has no column {column!r}; it has {listed}.{did_you_mean(column, available)} "
            f"{fix}{'.' + beside if beside else ''}",
            **error.facts,
        ) from None


@contextmanager
def readable(inputs: tuple[str, ...], filetype: Format | None = None) -> Iterator[list[str]]:
    """The inputs as paths; standard input is copied to a temporary file."""
    if STANDARD_INPUT not in inputs:
        yield list(inputs)
        return
    if len(inputs) > 1:
        raise click.UsageError("'-' (standard input) cannot be combined with other inputs.")
    stream = sys.stdin.buffer
    if stream.isatty():
        raise click.UsageError("INPUT is '-', but nothing is piped in. Try: zcat FILE | gristmill stats -")
    with tempfile.TemporaryDirectory(prefix="gristmill-stats-") as folder:
        copy = Path(folder, f"stdin{FORMATS[filetype or 'jsonl'].extensions[0]}")
        with copy.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
        if not copy.stat().st_size:
            raise click.UsageError("INPUT is '-', but standard input is empty. Check the command before the pipe.")
        yield [str(copy)]


# --- views ---


def print_statistics(found: Statistics, inputs: tuple[str, ...]) -> None:
    """The statistics as text for a terminal."""
    from rich.table import Table
    from rich.text import Text

    from gristmill.cli.report_view import make_console

    console = make_console()
    for line in overview(found, inputs):
        console.print(printable(line), soft_wrap=True)
    shown = list(_SHOWN) if console.width >= _WIDE else list(_NARROW)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("length", no_wrap=True)
    for title in (*shown, "mean"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("distribution", no_wrap=True)
    for name, histogram in found.sketch.lengths.items():
        table.add_row(name, *quantiles(histogram, shown), number(histogram.mean, histogram.kind), spark(histogram))
    console.print()
    console.print(table)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("filter", no_wrap=True, overflow="ellipsis")
    table.add_column("default keeps", no_wrap=True)
    table.add_column("would drop", justify="right", no_wrap=True)
    for title in shown:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("distribution", no_wrap=True)
    for one in sorted(found.filters, key=lambda one: -(one.dropped_share or 0)):
        row = (bounds(one), share(one.dropped_share), *quantiles(one.scores, shown), spark(one.scores))
        table.add_row(Text(printable(one.name)), *row)
    console.print()
    console.print(table)
    console.print(f"\nTogether these filters would drop {share(found.failed_share)} of the documents.")
    for reason, names in found.left_out.items():
        console.print(f"Not measured ({reason}): {', '.join(names)}", soft_wrap=True)


def overview(found: Statistics, inputs: tuple[str, ...]) -> list[str]:
    """The figures that are not distributions, one line each."""
    from gristmill.ledger.record.input_files import sentence

    sketch = found.sketch
    speed = found.input_bytes / found.seconds if found.seconds else 0.0
    sizes = f"{format_size(found.input_bytes)} on disk, {format_size(sketch.text_bytes)} of text"
    pace = f"{duration(found.seconds)}, {format_size(int(speed))}/s"
    lines = [f"{', '.join(inputs)}: {plural(sketch.documents, 'document')}, {sizes} ({pace})"]
    if found.selection:
        lines.append(f"Read: {found.selection}")
    if sketch.empty:
        lines.append(f"Without text: {plural(sketch.empty, 'document')}")
    lines.append(
        f"Duplicates: {copies(sketch.equal)} exact; {copies(sketch.loose)} ignoring case, spacing and punctuation; "
        f"{compared(sketch.equal, sampled=bool(found.selection))}"
    )
    if sketch.languages:
        total = sketch.languages.total()
        common = sketch.languages.most_common(_MOST_LANGUAGES)
        listed = ", ".join(f"{code} {share(count / total)}" for code, count in common)
        more = len(sketch.languages) - len(common)
        lines.append(f"Languages ({found.languages_note}): {listed}" + (f", {more} more" if more else ""))
    else:
        lines.append(f"Languages: {found.languages_note}")
    if found.files_left_out:
        lines.append(sentence(found.files_left_out))
    lines.extend(found.damaged[:_MOST_LANGUAGES])
    if found.unreadable:
        lines.append(f"Unreadable: {plural(found.unreadable, 'record')}, including those of damaged files")
    return lines


def copies(sample: HashSample) -> str:
    """The share of copies."""
    return share(sample.copies())


def compared(sample: HashSample, *, sampled: bool) -> str:
    """Which documents the share of copies refers to."""
    if sample.share < 1:
        return f"estimated from {share(sample.share)} of the texts with all their copies"
    if sampled:
        return "among the sampled documents; the share in the whole input is higher"
    return "all documents compared"


def bounds(one: FilterStatistics) -> str:
    """The range of scores that the default keeps."""
    if one.lower is not None and one.upper is not None:
        return f"{one.lower:g} – {one.upper:g}"
    if one.lower is not None:
        return f"≥ {one.lower:g}"
    return "all" if one.upper is None else f"≤ {one.upper:g}"


def quantiles(histogram: Histogram, shown: list[str]) -> list[str]:
    """The quantiles of a row."""
    return [number(histogram.quantile(_SHOWN[title]), histogram.kind) for title in shown]


def number(value: float | None, kind: str) -> str:
    """A score or length, rounded to what is meaningful."""
    if value is None:
        return "–"
    if kind == "count" or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


def spark(histogram: Histogram) -> str:
    """The distribution as a line of blocks; a bar without documents is a blank."""
    counts = [count for _, _, count in histogram.bars(_BARS)]
    most = max(counts, default=0)
    return "".join(_BLOCKS[min(7, count * 8 // most)] if count else " " for count in counts)
