"""Verification accepts a run as it was written and names every way of tampering with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard

from gristmill.errors import InputNotFoundError, VerificationError
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.commit import commit_partition
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.plan_record import plan_digest
from gristmill.storage.atomic import AtomicFile
from tests.outputs import record_of
from tests.unit.ledger.making import PLAN, STAGES, make_finished_run, make_partition, make_trail, record


def test_a_run_as_it_was_written_is_proved(tmp_path: Path) -> None:
    make_finished_run(tmp_path, 3)
    report = verify(tmp_path)
    assert report.problems == []
    assert report.ok
    assert (report.partitions, report.rows_read, report.rows_written) == (3, 36, 21)
    assert (report.rows_dropped, report.rows_quarantined, report.status) == (12, 3, "done")
    assert "36 rows read = 21 written + 12 dropped + 3 quarantined" in str(report)
    report.raise_for_problems()


def test_a_run_on_another_store_is_proved(tmp_path: Path) -> None:
    folder = make_finished_run(f"memory://{tmp_path.name}/verify")
    assert verify(folder).problems == []
    folder.remove(folder.join("part-0.jsonl"))
    assert verify(folder).problems == ["part-0.jsonl of partition part-0 is missing."]


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError):
        verify(tmp_path)


def _flip(path: Path, at: int = 5) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _first_row_removed(path: Path) -> None:
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])


def _entry_edited(path: Path) -> None:
    path.write_text(path.read_text().replace('"rows_written": 7', '"rows_written": 8'))


def _resealed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit an entry as a careful forger would, with a seal that fits."""
    values: dict[str, Any] = json.loads(path.read_bytes())
    change(values)
    values.pop("seal")
    values["seal"] = xxhash.xxh3_64_hexdigest(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())
    path.write_bytes(ManifestEntry.from_bytes(json.dumps(values).encode()).to_bytes())


def _more_written(values: dict[str, Any]) -> None:
    values["rows_written"] += 1


def _more_dropped(values: dict[str, Any]) -> None:
    values["stages"][2]["dropped"]["too_few_words"] += 1
    values["stages"][2]["rows_in"] += 1


def _other_reason(values: dict[str, Any]) -> None:
    values["stages"][2]["dropped"] = {"other": 3}


RECORD = "record"
"""Stands for the record of the output."""
TAMPERINGS: list[tuple[str, str, Callable[[Path], Any], str]] = [
    (
        "byte flipped in data",
        "part-0.jsonl",
        _flip,
        "part-0.jsonl of partition part-0 was changed after it was written",
    ),
    ("file removed", "part-1.jsonl", Path.unlink, "part-1.jsonl of partition part-1 is missing"),
    ("row removed", "part-0.jsonl", _first_row_removed, "should have 7 rows but has 6"),
    ("file added", "part-9.jsonl", lambda path: path.write_text("{}\n"), "part-9.jsonl does not belong to the run"),
    ("file added below", "sub/x", lambda path: path.write_text(""), "sub/x does not belong to the run"),
    ("count edited", f"{RECORD}/manifest/part-0.json", _entry_edited, "does not match its checksum"),
    (
        "count edited with its seal",
        f"{RECORD}/manifest/part-0.json",
        lambda path: _resealed(path, _more_written),
        "the manifest says 8 rows written, but the counts of its last stage is 7",
    ),
    (
        "a stage's count edited",
        f"{RECORD}/manifest/part-0.json",
        lambda path: _resealed(path, _more_dropped),
        "11 rows came out of stage 'clean', but 12 went into the next one, 'words'",
    ),
    (
        "a reason edited",
        f"{RECORD}/manifest/part-0.json",
        lambda path: _resealed(path, _other_reason),
        "the manifest counts 3 rows dropped by 'words' for 'other', the ledger has 0",
    ),
    ("entry removed", f"{RECORD}/manifest/part-0.json", Path.unlink, "run.json says 2 partitions, the manifest has 1"),
    (
        "ledger truncated",
        f"{RECORD}/ledger/part-0.parquet",
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        "ledger/part-0.parquet of partition part-0 should have",
    ),
    ("ledger removed", f"{RECORD}/ledger/part-1.parquet", Path.unlink, "part-1.parquet of partition part-1 is missing"),
    (
        "index flipped",
        f"{RECORD}/index/part-0.ids",
        _flip,
        "part-0.ids of partition part-0 was changed after it was written",
    ),
    (
        "quarantine emptied",
        f"{RECORD}/quarantine/part-0.jsonl",
        lambda path: path.write_bytes(b""),
        "quarantine/part-0.jsonl of partition part-0 should have",
    ),
    (
        "run edited",
        f"{RECORD}/run.json",
        lambda path: path.write_text(path.read_text().replace('"rows_read": 24', '"rows_read": 25')),
        "run.json says 25 rows read, the manifest has 24",
    ),
    (
        "a figure of the run edited",
        f"{RECORD}/run.json",
        lambda path: path.write_text(path.read_text().replace('"peak_memory_bytes": 0', '"peak_memory_bytes": 1')),
        "run.json was edited or damaged: its content does not match its checksum",
    ),
    (
        "space added to the run",
        f"{RECORD}/run.json",
        lambda path: path.write_text(path.read_text() + " "),
        "run.json has the right content but was rewritten (bytes differ)",
    ),
    (
        "space added to an entry",
        f"{RECORD}/manifest/part-0.json",
        lambda path: path.write_text(path.read_text() + " "),
        "part-0.json has the right content but was rewritten (bytes differ)",
    ),
    (
        "variables of the plan edited",
        f"{RECORD}/plan.json",
        lambda path: path.write_text(path.read_text().replace("{", '{"variables": {},', 1)),
        "plan.json was changed after the run",
    ),
    (
        "recipe added",
        f"{RECORD}/recipe.yaml",
        lambda path: path.write_text("name: other"),
        "recipe.yaml was changed after the run",
    ),
    ("run removed", f"{RECORD}/run.json", Path.unlink, "run.json is missing"),
    ("run damaged", f"{RECORD}/run.json", lambda path: path.write_text("{"), "run.json is damaged"),
    ("plan removed", f"{RECORD}/plan.json", Path.unlink, "plan.json is missing"),
    (
        "plan edited",
        f"{RECORD}/plan.json",
        lambda path: path.write_text(path.read_text().replace("0.1.0", "0.2.0")),
        "were not written by the plan",
    ),
    (
        "staging left",
        f"{RECORD}/staging/x/part-0.jsonl",
        lambda path: path.write_text("{}"),
        "was left in staging by a run that did not finish",
    ),
    (
        "temporary left in the manifest",
        f"{RECORD}/manifest/.tmp-x-00000000-1-1-part-0.json",
        lambda path: path.write_text("{"),
        "is a temporary file that was left behind",
    ),
    (
        "temporary left",
        ".tmp-x-00000000-1-1-part-0.jsonl",
        lambda path: path.write_text("{}"),
        "is a temporary file that was left behind",
    ),
]


@pytest.mark.parametrize(
    ("name", "tamper", "message"), [item[1:] for item in TAMPERINGS], ids=[t[0] for t in TAMPERINGS]
)
def test_every_tampering_is_named(tmp_path: Path, name: str, tamper: Callable[[Path], Any], message: str) -> None:
    output = tmp_path / "out"
    make_finished_run(output)
    place = record_of(output) / name.removeprefix(f"{RECORD}/") if name.startswith(RECORD) else output / name
    place.parent.mkdir(parents=True, exist_ok=True)
    tamper(place)
    report = verify(output)
    assert not report.ok
    assert any(message in problem for problem in report.problems), report.problems
    assert all(problem.endswith(".") for problem in report.problems)
    with pytest.raises(VerificationError, match=r"has [0-9]+ problem"):
        report.raise_for_problems()


def test_a_forged_ledger_with_fitting_hashes_is_noticed(tmp_path: Path) -> None:
    folder = make_finished_run(tmp_path)
    path = Path(folder.record_path("ledger", "part-0"))
    table = pq.read_table(path)
    ids = table.column("id").to_pylist()
    ids[1] = "someone-else"
    pq.write_table(table.set_column(1, "id", pa.array(ids)), path)

    def fit(values: dict[str, Any]) -> None:
        data = path.read_bytes()
        values["records"]["ledger"] |= {"size": len(data), "hash": "xxh3:" + xxhash.xxh3_128_hexdigest(data)}

    _resealed(Path(folder.record_path("manifest", "part-0")), fit)
    assert verify(tmp_path).problems == [
        "Partition part-0: the id that the ledger has for row 1 is not the one in the index."
    ]


def test_a_commit_that_did_not_finish_is_named(tmp_path: Path) -> None:
    folder = make_finished_run(tmp_path)
    _resealed(Path(folder.record_path("manifest", "part-1")), lambda values: values.update(state="pending"))
    problems = verify(tmp_path).problems
    assert problems[0] == "The commit of partition part-1 did not finish; run again to redo it."
    assert not any("does not belong" in problem for problem in problems)


@pytest.mark.parametrize("extension", [".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_rows_are_counted_in_every_format(tmp_path: Path, extension: str) -> None:
    import gzip

    folder = RunFolder(tmp_path)
    make_finished_run(tmp_path, 0)
    lines = b"".join(b'{"n": %d}\n' % n for n in range(7))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": list(range(7))}), sink)
    content = {
        ".jsonl.gz": gzip.compress(lines[:20]) + gzip.compress(lines[20:]),
        ".jsonl.zst": zstandard.compress(lines),
        ".parquet": sink.getvalue().to_pybytes(),
    }[extension]

    def put(rows: int) -> None:
        file = AtomicFile(f"{folder.new_staging()}/part-0{extension}")
        file.write(content)
        commit_partition(
            folder,
            make_partition(),
            staged_files=[file.publish(rows=rows)],
            trail=make_trail(rows + 5),
            plan_digest=plan_digest(PLAN),
            stage_order=STAGES,
        )
        folder.remove_tree(folder.record_path("staging"))
        record(folder, 1)

    put(7)
    assert verify(tmp_path).problems == []
    put(8)
    assert verify(tmp_path).problems == [f"part-0{extension} of partition part-0 should have 8 rows but has 7."]
