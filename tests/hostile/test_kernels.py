"""No kernel reads or writes outside of its arrays, crashes or hangs, whatever bytes it is given, by whatever door."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import GristmillError
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic.string import WordCountFilter
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks import DocumentBatch
from tests.hostile.attempt import FULL, Outcome, attempt, attempt_fresh
from tests.hostile.guarded import guarded, guarded_strings
from tests.hostile.kernel_probes import PROBES, WHOLE, Given, column, texts
from tests.hostile.test_slow_patterns import CASES, made

Record = Callable[[str, object], None]
ROOT = Path(__file__).parents[2]
COLUMNS = 1500 if FULL else 8


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Kernels are compiled or loaded once, not in every child."""
    for number in (5, 6):
        for probe in PROBES.values():
            probe(column(number, sound=True))


def probed(number: int, *, sound: bool) -> dict[str, Outcome]:
    """The probes that did not come through with a column."""

    def everything() -> None:
        for probe in PROBES.values():
            probe(column(number, sound=sound))

    if attempt(everything, seconds=120).kind == "done":
        return {}
    outcomes = {name: attempt(lambda: probe(column(number, sound=sound))) for name, probe in PROBES.items()}  # noqa: B023
    return {name: outcome for name, outcome in outcomes.items() if outcome.kind != "done"}


@pytest.mark.parametrize("sound", [True, False], ids=["valid text", "any bytes"])
def test_no_kernel_leaves_its_arrays(sound: bool, record_property: Record) -> None:
    """Valid text and random bytes between protected pages, for every kernel: all finish, none touches a page."""
    failed = {number: found for number in range(COLUMNS) if (found := probed(number, sound=sound))}
    record_property("tried", COLUMNS * len(PROBES))
    assert not failed


@pytest.mark.parametrize("row", [b"", b"\xff", b"\0", b"\xf0\x9f\x98", b"a"])
def test_no_kernel_leaves_its_arrays_with_one_row(row: bytes, record_property: Record) -> None:
    """A row that is empty, all 0xFF, all NUL, cut characters, or a huge line: every kernel stays in its arrays."""
    row *= 300_000 if FULL else 5000
    given = column(0)._replace(
        data=guarded(np.frombuffer(row, np.uint8)), offsets=guarded(np.array([0, len(row)])),
        valid=guarded(np.ones(1, bool), writeable=True),
    )  # fmt: skip
    outcomes = {name: attempt(lambda: probe(given), seconds=60) for name, probe in PROBES.items()}  # noqa: B023
    record_property("tried", len(PROBES))
    assert {name: outcome for name, outcome in outcomes.items() if outcome.kind != "done"} == {}


REPEATED = [b"One sentence. ", b"word ", b"a\n", b"two words\n\n", *(WHOLE if FULL else [])]


@pytest.mark.parametrize("piece", REPEATED, ids=repr)
def test_no_kernel_is_quadratic(piece: bytes, record_property: Record) -> None:
    """A row of repeated text and one four times as long, for every kernel: never 8 times as slow."""
    sizes = (1_000_000, 4_000_000) if FULL else (250_000, 1_000_000)
    slow = {}
    for name, probe in PROBES.items():
        # A neighbour can make one round slow, page faults included, but not every round: the fastest ones count.
        short = long = float("inf")
        for _ in range(5):
            short = min(short, _seconds(probe, piece * (sizes[0] // len(piece))))
            long = min(long, _seconds(probe, piece * (sizes[1] // len(piece))))
            if long <= max(0.3, 8 * short):
                break
        else:
            slow[name] = f"{short:.2f} s for {sizes[0]:,} bytes, {long:.2f} s for {sizes[1]:,}"
    record_property("tried", len(PROBES))
    assert slow == {}


def _seconds(probe: Callable[[Given], Any], row: bytes) -> float:
    given = column(0)._replace(
        data=guarded(np.frombuffer(row, np.uint8)), offsets=guarded(np.array([0, len(row)])),
        valid=guarded(np.ones(1, bool), writeable=True),
    )  # fmt: skip
    started = time.process_time()
    probe(given)
    return time.process_time() - started


def run_probes(first: int, count: int, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.hostile.kernel_probes", str(first), str(count)]
    return subprocess.run(
        command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_kernel_is_tried() -> None:
    """A kernel that no test attacks: this test fails, so that none is forgotten."""
    done = run_probes(5, 2)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-3000:]


@pytest.mark.skipif(not FULL, reason="compiles all kernels a second time")
def test_every_index_is_checked(tmp_path: Path, record_property: Record) -> None:
    """Any bytes, for every kernel, compiled with bounds checks: no index is out of bounds."""
    count = 120
    done = run_probes(0, count, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    record_property("tried", count * len(PROBES))
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stdout[-500:] + done.stderr[-3000:]


def strings(rows: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """A text column of any layout over unchecked bytes."""
    if pa.types.is_large_string(kind):
        return guarded_strings(rows, lead=3)
    small = pa.array(rows, pa.binary())
    plain = pa.Array.from_buffers(pa.string(), len(small), small.buffers(), small.null_count)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.array(np.arange(len(rows)), pa.int32()), plain)
    return plain


def by_arrow(rows: list[bytes | None]) -> list[Any]:
    kinds = [pa.large_string(), pa.string(), pa.dictionary(pa.int32(), pa.string())]
    tables = [pa.table({"text": strings(rows, kind)}) for kind in kinds]
    return [*tables, pa.concat_tables([tables[0], tables[0].slice(1)])]


def by_lies(rows: list[bytes | None]) -> list[Any]:
    """Offsets that run backwards or out of the bytes, between a first and a last one that are right."""
    data, some = guarded(np.frombuffer(b"some bytes", np.uint8)), len(rows)
    lies = [[2**30] * some, list(range(-some, 0)), [9 - place % 10 for place in range(some)], [-1, 11] * some]
    honest = pa.array([None, *rows[:-1], b""], pa.binary()).buffers()[0]
    tables = []
    for lie in lies:
        for kind, width in ((pa.large_string(), np.int64), (pa.string(), np.int32)):
            offsets = np.array([0, *lie[:some], 10]).astype(width)
            buffers = [honest, pa.py_buffer(guarded(offsets)), pa.py_buffer(data)]
            tables.append(pa.table({"text": pa.Array.from_buffers(kind, some + 1, buffers)}))
    return tables


def by_frames(rows: list[bytes | None]) -> list[Any]:
    arrow = strings(rows, pa.large_string())
    escaped = [None if row is None else row.decode("utf-8", "surrogateescape") for row in rows]
    mixed = [row if place % 2 else None for place, row in enumerate(rows)]
    return [
        pd.DataFrame({"text": pd.Series(pd.arrays.ArrowExtensionArray(arrow))}),
        pd.DataFrame({"text": pd.Series(escaped, dtype=object)}),
        pd.DataFrame({"text": pd.Series(mixed, dtype=object)}),
        pl.DataFrame({"text": pl.from_arrow(arrow)}),
    ]


DOORS = {"Arrow": by_arrow, "lying offsets": by_lies, "pandas and Polars": by_frames}


def through_door(door: str, cases: list[str], numbers: int) -> tuple[int, int]:
    """How many batches were tried, and how many of them refused."""
    stages = [made(case) for case in cases]
    refused = tried = 0
    for number in range(numbers):
        for data in DOORS[door]([*texts(number), None, b"a\xf0\x9f\x98"]):
            for stage in stages:
                tried += 1
                try:
                    stage.process(DocumentBatch(data=data))
                except GristmillError:
                    refused += 1
    return tried, refused


@pytest.mark.parametrize("door", DOORS)
def test_no_door_lets_bytes_through_to_a_filter(door: str, record_property: Record) -> None:
    """Invalid text or false offsets in Arrow tables, pandas and Polars frames, for every filter: rejected, no crash."""
    cases = CASES if FULL else CASES[::9]
    outcome = attempt_fresh(__name__, "through_door", door, cases, 40 if FULL else 2, seconds=600)
    assert outcome.kind == "done", outcome
    tried, refused = ast.literal_eval(outcome.detail)
    record_property("tried", tried)
    # One frame in four holds halves of surrogate pairs, which JSON can spell, and one no invalid text but bytes.
    assert refused >= tried * (0.5 if door == "pandas and Polars" else 0.9)


def valid_text(cases: list[str], numbers: int) -> None:
    """Take guarded columns of valid text through filters and modifiers."""
    for stage in map(made, cases):
        for number in range(numbers):
            rows = [None if place % 5 == 3 else row for place, row in enumerate(texts(number, sound=True))]
            column = guarded_strings(rows, at_start=number % 2 == 1, lead=number % 4)
            stage.process(DocumentBatch(data=pa.table({"text": column})))


def test_no_filter_leaves_a_column_of_valid_text(record_property: Record) -> None:
    """Valid text that ends just before protected memory, sliced and with nulls, for every filter: no crash."""
    cases, numbers = (CASES, 200) if FULL else (CASES[::4], 6)
    outcome = attempt_fresh(__name__, "valid_text", cases, numbers, seconds=900)
    record_property("tried", len(cases) * numbers)
    assert outcome.kind == "done", outcome


class Careless(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A user's stage that makes a text column of bytes that it has not looked at."""

    name = "careless"

    def __init__(self, way: int) -> None:
        self.way = way

    def process(self, task: DocumentBatch) -> DocumentBatch:
        rows: list[bytes | None] = [b"caf\xe9"] * task.num_items
        return DocumentBatch(data=[*by_arrow(rows)[:3], *by_frames(rows)[::3]][self.way])


def careless_run(folder: str, way: int) -> str:
    """Run a pipeline with such a stage; what it is refused with."""
    stages = [JsonlReader(f"{folder}/in.jsonl"), Careless(way), ScoreFilter(WordCountFilter(min_words=1))]
    pipeline = Pipeline("careless", stages=[*stages, JsonlWriter(f"{folder}/out")])
    try:
        pipeline.run(LocalExecutor({"num_cpus": 0}), progress=False)
    except GristmillError as error:
        return str(error)
    return "done"


@pytest.mark.parametrize("way", range(5) if FULL else [4])
def test_a_users_stage_cannot_hand_it_on(tmp_path: Path, way: int) -> None:
    """Invalid text from a user's stage through Arrow, pandas or Polars: the run fails and names it, nothing written."""
    (tmp_path / "in.jsonl").write_text('{"text": "some words"}\n' * 5)
    outcome = attempt_fresh(__name__, "careless_run", str(tmp_path), way)
    assert outcome.kind == "done", outcome
    assert "careless" in outcome.detail
    assert "UTF-8" in outcome.detail
    assert not list((tmp_path / "out").glob("*.jsonl"))
