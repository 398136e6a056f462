"""Statistics of an input as one self-contained page: tables and charts, without scripts and without network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from gristmill.advice.histogram import QUANTILES, Histogram
from gristmill.advice.statistics import FilterStatistics, Statistics
from gristmill.figures import format_size, printable, share

_WIDTH, _HEIGHT = 480, 96
_BARS = 40


def statistics_page(found: Statistics, inputs: Sequence[str]) -> str:
    """The page; all values from data are escaped."""
    sketch = found.sketch
    filters = sorted(found.filters, key=lambda one: -(one.dropped_share or 0))
    title = f"Statistics of {', '.join(inputs)}"
    facts = {
        "documents": f"{sketch.documents:,}",
        "without text": f"{sketch.empty:,}",
        "files": format_size(found.input_bytes),
        "text": format_size(sketch.text_bytes),
        "same text as an earlier document": share(sketch.equal.copies()),
        "same words as an earlier document": share(sketch.loose.copies()),
        "texts compared for this": share(sketch.equal.share),
        "records that could not be read": f"{found.unreadable:,}",
        "dropped by the defaults of all filters together": share(found.failed_share),
        **({"read": found.selection} if found.selection else {}),
    }
    total = sketch.languages.total() or 1
    body = [
        f"<h1>{_text(title)}</h1>",
        _definitions(facts),
        *(f'<p class="note">{_text(sentence)}</p>' for sentence in found.damaged),
        "<h2>Lengths</h2>",
        *(_chart(name, histogram) for name, histogram in sketch.lengths.items()),
        "<h2>Languages</h2>",
        f"<p>{_text(found.languages_note)}</p>",
        _table(
            "Languages",
            ("language", "documents", "share"),
            ((code, f"{count:,}", share(count / total)) for code, count in sketch.languages.most_common()),
        )
        if sketch.languages
        else "",
        "<h2>What the default of each filter would drop</h2>",
        _table(
            "Filters",
            ("filter", "would drop", "keeps", *(f"{100 * part:g} %" for part in QUANTILES)),
            ((one.name, share(one.dropped_share), keeps(one), *_quantiles(one.scores)) for one in filters),
        ),
        "<h2>Scores</h2>",
        "<p>Hatched bars are documents that the default would drop; a bar at the threshold, in part.</p>",
        *(_filter(one) for one in filters),
        *(
            f"<p>Not measured ({_text(reason)}): {_text(', '.join(names))}</p>"
            for reason, names in found.left_out.items()
        ),
    ]
    package = files("gristmill")
    style = "".join(package.joinpath(name).read_text(encoding="utf-8") for name in ("theme.css", "advice/page.css"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + _HATCHING
        + "<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


_HATCHING = (
    '<svg width="0" height="0" aria-hidden="true"><defs><pattern id="dropped" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" class="light"/>'
    '<rect width="3" height="6" class="dark"/></pattern></defs></svg>\n'
)


def keeps(one: FilterStatistics) -> str:
    """Which scores a filter keeps, by its parameters."""
    return ", ".join(f"{name}={value:g}" for name, value in one.parameters.items()) or "everything"


def _text(value: str) -> str:
    return escape(printable(value))


def _definitions(facts: dict[str, str]) -> str:
    return "<dl>" + "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts.items()) + "</dl>"


def _table(label: str, titles: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(title)}</th>' for title in titles)
    lines = (
        f'<tr><th scope="row">{_text(first)}</th>' + "".join(f"<td>{_text(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _filter(one: FilterStatistics) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in one.dropped.items())
    note = f"{keeps(one)}: would drop {share(one.dropped_share)}" + (f" ({reasons})" if reasons else "")
    return _chart(one.name, one.scores, note=note, lower=one.lower, upper=one.upper)


def _chart(
    name: str, histogram: Histogram, *, note: str = "", lower: float | None = None, upper: float | None = None
) -> str:
    """A distribution as bars, with a text alternative."""
    bars = histogram.bars(_BARS)
    most = max((count for *_, count in bars), default=0) or 1
    width = _WIDTH / max(1, len(bars))
    drawn = []
    for place, (low, high, count) in enumerate(bars):
        height = _HEIGHT * count / most
        height = max(height, 1.0) if count else 0.0
        fails = (lower is not None and low < lower) or (upper is not None and high > upper)
        kind = ' class="dropped"' if fails else ""
        drawn.append(
            f'<rect{kind} x="{place * width:.1f}" y="{_HEIGHT - height:.1f}" width="{max(width - 1, 0.5):.1f}" '
            f'height="{height:.1f}"><title>{_value(low)} to {_value(high)}: {count:,}</title></rect>'
        )
    words = f"median {_value(histogram.quantile(0.5))}, 5 % below {_value(histogram.quantile(0.05))}"
    words += f", 5 % above {_value(histogram.quantile(0.95))}"
    ends = (_value(bars[0][0]), _value(bars[-1][1])) if bars else ("", "")
    told = f"<p>{_text(note)}</p>" if note else ""
    return (
        f"<figure><figcaption><h3>{_text(name)}</h3>{told}<p>{words}</p></figcaption>"
        f'<svg role="img" aria-label="{_text(name)}: {words}" viewBox="0 0 {_WIDTH} {_HEIGHT + 16}">{"".join(drawn)}'
        f'<text x="0" y="{_HEIGHT + 13}">{ends[0]}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 13}" text-anchor="end">{ends[1]}</text></svg></figure>'
    )


def _quantiles(histogram: Histogram) -> list[str]:
    return [_value(histogram.quantile(part)) for part in QUANTILES]


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
