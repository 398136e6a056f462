"""The table of the README that shows results/peers.json: what is slower or worse here stands like the rest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "peers.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- peers: begin (benchmarks/compare_peers.py) -->", "<!-- peers: end -->"
SIDES = {"gristmill": "Gristmill", "nemo-curator": "NeMo Curator", "datatrove": "datatrove"}
SMALL = 1000
"""Documents of the small job, where the corpus has as many."""
_TITLES = {
    "english": "28 heuristic filters",
    "published": "Gopher, C4 and FineWeb rules",
    "exact": "exact deduplication",
    "fuzzy": "fuzzy deduplication",
    "small": "{:,} documents, 3 filters",
}


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    named = [f"{SIDES[name]} {version}" for name, version in sorted(result["versions"].items(), reverse=True)]
    cores = result["machine"]["cpus"]
    load = result["machine"]["load_1m"]
    busy = f" The machine was busy (load {load:g})." if load > 2 * cores else ""
    told = (
        f"Compared with {' and '.join(named)} on {result['megabytes']:g} MB ({result['documents']:,} documents), "
        f"{cores} cores, median of {result['rounds']}: seconds from the start of a process to its exit, with CPU "
        f"seconds in parentheses.{busy}"
    )
    lines = [
        told,
        "",
        "| | " + " | ".join(SIDES.values()) + " |",
        "|---|" + "---|" * len(SIDES),
    ]
    for work, found in result["works"].items():
        title = _TITLES[work].format(min(SMALL, result["documents"]))
        lines.append(_row(title, {side: _seconds(found.get(side), found) for side in SIDES}))
        if work == "fuzzy":
            title = "… of planted pairs at 0.8 found, precision"
            lines.append(_row(title, {side: _quality(found.get(side)) for side in SIDES}))
    memory = result.get("memory_mb", {})
    if memory:
        sizes = " / ".join(next(iter(memory.values())))
        cells = {
            side: " / ".join(_memory(one) for one in memory[side].values()) if side in memory else "–" for side in SIDES
        }
        lines.append(_row(f"peak memory in MB at {sizes} MB", cells))
    faults = result.get("faults", {})
    for fault, title in _FAULTS.items():
        if faults:
            lines.append(_row(title, {side: _fault(fault, faults.get(side)) for side in SIDES}))
    return "\n".join(lines)


_FAULTS = {
    "malformed_line": "one malformed line",
    "killed_worker": "worker killed",
    "killed_driver": "killed, run again",
}


def _row(title: str, cells: dict[str, str]) -> str:
    return f"| {title} | " + " | ".join(cells[side] for side in SIDES) + " |"


def _seconds(one: dict[str, Any] | None, found: dict[str, Any]) -> str:
    if one is None:
        return "–"
    if "cannot" in one:
        return "needs a GPU" if "cudf" in one["cannot"] else f"fails: `{one['cannot'][:60]}`"
    best = min(side["wall_s"] for side in found.values() if "wall_s" in side)
    text = f"{one['wall_s']:.1f} ({one['cpu_s']:.1f})"
    return f"**{text}**" if one["wall_s"] == best else text


def _quality(one: dict[str, Any] | None) -> str:
    return "–" if one is None or "recall" not in one else f"{one['recall']:.3f}, {one['precision']:.3f}"


def _memory(megabytes: int) -> str:
    return "failed" if megabytes < 0 else f"{megabytes:,}"


def _fault(fault: str, side: dict[str, Any] | None) -> str:
    if side is None:
        return "–"
    found = side[fault]
    missing = found["documents_missing"]
    lost = f"{missing:,} document{'s' * (missing != 1)} missing" if missing else "nothing missing"
    if fault == "malformed_line":
        named = "names the file" if found["output_names_the_file"] else "does not name the file"
        return f"{'runs' if found['exit_code'] in (0, 3) else 'fails'}, {lost}, {named}"
    twice = f", {found['documents_twice']:,} twice" if found["documents_twice"] else ""
    if fault == "killed_worker" and not found["killed"]:
        return "has no workers at this size"
    if fault == "killed_worker":
        return f"{'finishes' if found['finished'] else 'fails or hangs'}, {lost}{twice}"
    done = f"{found['second_run_s']:g} s" if found["second_run_finished"] else "fails"
    return f"{done} (undisturbed {side['undisturbed_s']:g} s), {lost}{twice}"


def replaced(readme: str, text: str) -> str:
    """The README with this table between its marks."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    assert tail, f"README.md has no {BEGIN} … {END}"
    return f"{head}{BEGIN}\n{text}\n{END}{tail}"


def write_table() -> None:
    """Put the table of the last result into the README."""
    text = table(json.loads(RESULT.read_text(encoding="utf-8")))
    README.write_text(replaced(README.read_text(encoding="utf-8"), text), encoding="utf-8")
    print(text, file=sys.stderr)
