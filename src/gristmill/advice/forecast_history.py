"""Stores the user's forecasts and how far they were off, compared with the record of the run that followed each."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.advice.forecast import Forecast
from gristmill.errors import GristmillError
from gristmill.figures import share
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.run_record import read_run

_MOST = 200
"""Maximum number of forecasts to keep."""
_RECENT = 10
FIGURES = {"wall_seconds": "wall_seconds", "output_bytes": "output_bytes", "documents_out": "rows_written"}
"""What is compared: the figure of the forecast, and that of the record."""


@dataclass(frozen=True, slots=True)
class PastForecast:
    """A forecast whose run has finished.

    Attributes:
        recipe: The recipe.
        errors: Relative error of each figure; positive if the forecast was too high.
    """

    recipe: str
    errors: dict[str, float]


def history_path() -> Path:
    """Path of the stored forecasts, in the user's state folder."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base, "gristmill", "forecasts.jsonl")


def remember(made: Forecast, output: str | None, record_path: str | None = None) -> None:
    """Store a forecast for comparison with the run that follows; without an output there is nothing to compare."""
    if output is None:
        return
    place = output if "://" in output else os.path.abspath(output)
    record = record_path if record_path is None or "://" in record_path else os.path.abspath(record_path)
    entry = {
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        "recipe": made.recipe,
        "output": place,
        "record": record,
        "input_bytes": made.input_bytes,
        **{name: getattr(made, name) for name in FIGURES},
    }
    _write([*_read(), entry])


def past_forecasts() -> list[PastForecast]:
    """The stored forecasts that were followed by a run, oldest first.

    A run counts if it began after the forecast, read the expected amount, and was neither resumed nor ended early.
    Results are stored too, so that outputs may be removed later.
    """
    entries, found, changed = _read(), [], False
    for entry in entries:
        if "actual" not in entry:
            actual = _actual(entry)
            if actual is not None:
                entry["actual"], changed = actual, True
        actual = entry.get("actual")
        if isinstance(actual, dict):
            errors = {
                name: entry[name] / actual[name] - 1
                for name in FIGURES
                if isinstance(entry.get(name), int | float) and isinstance(actual.get(name), int | float)
                if actual[name]
            }
            found.append(PastForecast(str(entry.get("recipe")), errors))
    if changed:
        _write(entries)
    return found


def sentence(past: list[PastForecast]) -> str:
    """How far the last forecasts were off, in words."""
    recent = [one.errors["wall_seconds"] for one in past if "wall_seconds" in one.errors][-_RECENT:]
    if not recent:
        return "No forecast has been followed by a run yet, so the error is unknown."
    sizes = [abs(error) for error in recent]
    if len(recent) == 1:
        return f"The last forecast was off by {share(sizes[0])} of the wall time ({_direction(recent)})."
    return (
        f"The last {len(recent)} forecasts were off by {share(statistics.mean(sizes))} of the wall time on average, at "
        f"most by {share(max(sizes))} ({_direction(recent)})."
    )


def _direction(errors: list[float]) -> str:
    above = sum(error > 0 for error in errors)
    return "too long" if above == len(errors) else "too short" if not above else f"{above} of them too long"


def _actual(entry: dict[str, Any]) -> dict[str, float] | None:
    """The figures of the run that followed; None if there is no comparable run yet."""
    try:
        folder = RunFolder(str(entry["output"]), record_path=entry.get("record"))
        run = read_run(folder)
    except (GristmillError, OSError, KeyError, ValueError):
        return None
    if run is None or run.get("status") != "done" or run.get("pipeline") != entry.get("recipe"):
        return None
    began = str(run.get("started") or "")
    if (
        began < str(entry.get("at"))
        or run.get("partitions_done_before")
        or run.get("input_bytes") != entry["input_bytes"]
    ):
        return None
    return {name: run[key] for name, key in FIGURES.items() if isinstance(run.get(key), int | float)}


def _read() -> list[dict[str, Any]]:
    entries = []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in history_path().read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and isinstance(entry.get("input_bytes"), int):
                    entries.append(entry)
    return entries


def _write(entries: list[dict[str, Any]]) -> None:
    """Replace the file atomically; if the home folder is not writable, nothing is stored."""
    place = history_path()
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries[-_MOST:])
        os.replace(file.name, place)
