"""Damaged input files: nothing of them reaches the output, unless what can be read is salvaged; both are on record."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.errors import ErrorBudgetExceededError
from gristmill.ledger import Ledger
from gristmill.ledger.ask.text_diff import source_record
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.manifest import Manifest
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplication, ExactDeduplicationWorkflow
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter
from gristmill.stages.text.io.reader.jsonl import JsonlReaderStage
from gristmill.storage.compression import DamagedArchiveError
from gristmill.tasks import FileGroupTask
from tests.contract.executor_suite import InProcess
from tests.unit.pipeline.jobs import here, read_lines, run_json

WORDS = ["mill", "grain", "stone", "water", "flour", "wheel", "sack", "wind", "barley", "hopper", "sieve", "bran"]


def documents(number: int, *, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    return [
        json.dumps({"id": f"{seed}-{n}", "text": " ".join(rng.choices(WORDS, k=rng.randrange(5, 60)))}).encode()
        for n in range(number)
    ]


def lines(records: list[bytes]) -> bytes:
    return b"".join(record + b"\n" for record in records)


def _halves(data: bytes) -> list[bytes]:
    cut = data.index(b"\n", len(data) // 2) + 1
    return [data[:cut], data[cut:]]


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACK = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "gz of two members": lambda data: b"".join(gzip.compress(half, mtime=0) for half in _halves(data)),
    "zst": _zstd,
    "zst of two frames": lambda data: b"".join(map(_zstd, _halves(data))),
    "bz2": bz2.compress,
    "bz2 of two streams": lambda data: b"".join(map(bz2.compress, _halves(data))),
    "xz": lzma.compress,
    "xz of two streams": lambda data: b"".join(map(lzma.compress, _halves(data))),
}


def _damaged(stored: bytes, how: str, rng: random.Random) -> bytes:
    if how == "flipped":
        data = bytearray(stored)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)
    if how == "cut":
        return stored[: rng.randrange(1, len(stored))]
    return stored + rng.choice([b"garbage", b"\x1f\x8b", b"\n", rng.randbytes(50)])


@pytest.mark.parametrize("how", ["flipped", "cut", "followed"])
@pytest.mark.parametrize("form", PACK)
def test_no_reader_gives_all_of_a_damaged_archive(tmp_path: Path, form: str, how: str) -> None:
    records = documents(300)
    stored = PACK[form](lines(records))
    path = tmp_path / f"a.jsonl.{form.split()[0]}"
    stage: Any = JsonlReader(str(path), read_kwargs={"batch_bytes": 4096}).decompose()[1]
    rng = random.Random(f"{form} {how}")
    refused = 0
    for _ in range(25):
        path.write_bytes(_damaged(stored, how, rng))
        try:
            found = [batch.columns.encode_jsonl().tobytes() for batch in stage.process(FileGroupTask(data=[str(path)]))]
            assert b"".join(found) == lines(records)  # a bit without a meaning, such as the name of gzip's system
        except DamagedArchiveError:
            refused += 1
    assert refused >= 24


def _input(folder: Path, form: str = "gz", *, damage: int | None = None) -> tuple[list[bytes], list[bytes]]:
    """Three files, of which the second is damaged: by a wrong checksum, or cut after `damage` bytes."""
    records = [documents(80, seed=1), documents(200, seed=2), documents(80, seed=3)]
    stored = bytearray(PACK[form](lines(records[1])))
    if damage is None:
        stored[-6] ^= 1
    source = folder / "in"
    source.mkdir()
    (source / "a.jsonl").write_bytes(lines(records[0]))
    (source / f"b.jsonl.{form.split()[0]}").write_bytes(stored[:damage])
    (source / "c.jsonl").write_bytes(lines(records[2]))
    return [*records[0], *records[2]], records[1]


def _pipeline(folder: Path, *stages: Any, files: int | None = 3, batch_bytes: int = 4096) -> Pipeline:
    reader = JsonlReader(str(folder / "in"), files_per_partition=files, read_kwargs={"batch_bytes": batch_bytes})
    return Pipeline("job", stages=[reader, *stages, JsonlWriter(str(folder / "out"))])


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("run.json", "report.html")
    }


@pytest.mark.parametrize("batch_bytes", [4096, 1 << 24])
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("form", ["gz", "zst", "bz2", "xz"])
def test_only_the_damaged_file_goes(tmp_path: Path, form: str, files: int, batch_bytes: int) -> None:
    sound, lost = _input(tmp_path, form)
    run = _pipeline(tmp_path, ScoreFilter(WordCountFilter(min_words=1)), files=files, batch_bytes=batch_bytes)
    report = run.run(executor=here(), error_budget=None).report
    assert read_lines(tmp_path / "out") == [record.decode() for record in sound]
    assert report.rows_written == len(sound)
    assert report.quarantined == 1
    name = f"b.jsonl.{form}"
    assert any(name in alarm for alarm in report.alarms)
    assert name in str(report)
    assert any(name in alarm for alarm in run_json(tmp_path / "out")["alarms"])
    proof = verify(str(tmp_path / "out"))
    assert not proof.ok
    assert not proof.problems
    assert name in str(proof)
    assert "Verified" not in str(proof)
    (damage,) = Manifest(str(tmp_path / "out")).totals().damaged
    assert (damage.file, damage.salvaged) == (name, None)
    if form == "gz":  # the others decode a block, here the whole file, or nothing
        assert damage.lost == pytest.approx(len(lost), abs=20)
    before = _contents(tmp_path / "out")
    again = run.run(executor=here(), error_budget=None).report
    assert again.partitions_done_before == again.partitions
    assert _contents(tmp_path / "out") == before
    shutil.rmtree(tmp_path / "out")
    run.run(executor=here(), error_budget=None)
    assert _contents(tmp_path / "out") == before


def test_all_damaged_files_of_a_partition_go_at_once(tmp_path: Path) -> None:
    """However many there are, the partition is begun twice: until the first damage, and then without any of them."""
    sound = documents(50)
    (tmp_path / "in").mkdir()
    for number in range(30):
        stored = bytearray(gzip.compress(lines(documents(50, seed=number)), mtime=0))
        if number:
            stored[-7] ^= 1
        (tmp_path / "in" / f"{number:02d}.jsonl.gz").write_bytes(stored)
    begun: list[str] = []
    original = JsonlReaderStage.process
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonlReaderStage, "process", lambda self, task: begun.append("") or original(self, task))
        report = _pipeline(tmp_path, files=30).run(executor=InProcess(), error_budget=None).report
    assert read_lines(tmp_path / "out") == [record.decode() for record in sound]
    assert report.quarantined == 29
    assert len(begun) == 2
    assert sum("is damaged" in alarm for alarm in report.alarms) < 29
    assert any("more damaged" in alarm for alarm in report.alarms)
    assert len(verify(str(tmp_path / "out")).damaged) == 29


def test_a_damaged_file_counts_by_its_records(tmp_path: Path) -> None:
    _input(tmp_path)
    with pytest.raises(ErrorBudgetExceededError, match=r"20\d of 36\d records.*b\.jsonl\.gz is damaged"):
        _pipeline(tmp_path).run(executor=here())
    with pytest.raises(ErrorBudgetExceededError, match=r"20\d of 36\d records"):  # of the run before
        _pipeline(tmp_path).run(executor=here())
    assert _pipeline(tmp_path).run(executor=here(), error_budget=250).report.partitions_done_before == 1


def test_what_is_salvaged_is_marked_and_not_proved(tmp_path: Path) -> None:
    sound, broken = _input(tmp_path, damage=2500)
    keep_long = ScoreFilter(WordCountFilter(min_words=20))
    report = _pipeline(tmp_path, keep_long).run(executor=here(), error_budget=None, salvage=True).report
    kept = [record.decode() for record in [*sound[:80], *broken, *sound[80:]] if len(record.split()) - 2 >= 20]
    written = read_lines(tmp_path / "out")
    assert report.rows_written == len(written)
    assert 0 < len(written) < len(kept)
    assert set(written) <= set(kept)
    (damage,) = Manifest(str(tmp_path / "out")).totals().damaged
    assert damage.cause == "truncated_file"
    assert damage.salvaged is not None
    assert 50 < damage.salvaged < 200
    ledger = Ledger(str(tmp_path / "out"))
    assert "salvaged and not verified: b.jsonl.gz" in str(ledger.why("2-0"))
    assert "not verified" not in str(ledger.why("1-79"))
    assert "not verified" not in str(ledger.why("3-0"))
    assert "b.jsonl.gz" in str(ledger.why("2-199"))
    (row,) = ledger.damaged().to_dicts()
    assert (row["file"], row["first_row"], row["salvaged"]) == ("b.jsonl.gz", 80, damage.salvaged)
    proof = verify(str(tmp_path / "out"))
    assert not proof.ok
    assert "salvaged" in str(proof)
    assert not proof.problems


def test_salvaging_redoes_only_what_is_damaged(tmp_path: Path) -> None:
    sound, broken = _input(tmp_path)
    run = _pipeline(tmp_path, files=1)
    assert run.run(executor=here(), error_budget=None).report.rows_written == len(sound)
    salvaged = run.run(executor=here(), error_budget=None, salvage=True).report
    assert salvaged.partitions_done_before == 2
    assert salvaged.rows_written == len(sound) + len(broken)
    replayed = run.replay(executor=here())
    assert replayed.still_quarantined == 1
    assert len(read_lines(tmp_path / "out")) == len(sound) + len(broken)
    again = run.run(executor=here(), error_budget=None).report
    assert again.partitions_done_before == 2
    assert read_lines(tmp_path / "out") == [record.decode() for record in sound]


def test_a_repaired_file_is_read(tmp_path: Path) -> None:
    sound, broken = _input(tmp_path)
    run = _pipeline(tmp_path)
    run.run(executor=here(), error_budget=None)
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(PACK["gz"](lines(broken)) + b"\0" * 512)
    assert run.run(executor=here()).report.rows_written == len(sound) + len(broken)
    assert verify(str(tmp_path / "out")).ok


def test_without_a_writer_nothing_of_it_comes_back_either(tmp_path: Path) -> None:
    sound, _ = _input(tmp_path)
    reader = JsonlReader(str(tmp_path / "in"), files_per_partition=3, read_kwargs={"batch_bytes": 4096})
    result = Pipeline("job", stages=[reader]).run(executor=here(), error_budget=None)
    assert sum(batch.num_items for batch in result) == len(sound)
    assert "b.jsonl.gz is damaged" in str(result.report)


def test_the_text_of_a_row_is_found_behind_a_damaged_file(tmp_path: Path) -> None:
    from gristmill.ledger.ask.lookup import source_record

    _, broken = _input(tmp_path)
    for salvage, row in ((False, 81), (True, 80 + len(broken) + 1)):
        _pipeline(tmp_path).run(executor=here(), error_budget=None, salvage=salvage)
        (entry,) = Manifest(str(tmp_path / "out")).ordered()
        assert source_record(entry, row)["id"] == "3-0"


@pytest.mark.parametrize("salvage", [False, True])
def test_deduplication_leaves_it_out_in_every_step(tmp_path: Path, salvage: bool) -> None:
    sound, broken = _input(tmp_path)
    (tmp_path / "in" / "d.jsonl").write_bytes(lines([*sound[:10], *broken[:10]]))
    for wanted in (not salvage, salvage):  # a change of mind is followed through all steps
        workflow = ExactDeduplicationWorkflow(
            input_path=str(tmp_path / "in"), output_path=str(tmp_path / "out"), perform_removal=True
        )
        facts = workflow.run(executor=here(), error_budget=None, salvage=wanted).metadata
    assert "b.jsonl.gz is damaged" in facts["damaged"][0]
    expected = [*sound[:80], *(broken if salvage else []), *sound[80:], *([] if salvage else broken[:10])]
    assert read_lines(tmp_path / "out") == [record.decode() for record in expected]
    assert facts["num_removed"] == (20 if salvage else 10)
    proof = verify(str(tmp_path / "out"))
    assert not proof.problems, proof
    assert len(proof.damaged) == 1


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("before", [[], [ScoreFilter(WordCountFilter(min_words=1))]])
def test_deduplication_as_a_stage_carries_it_on(tmp_path: Path, before: list[Any], salvage: bool) -> None:
    sound, broken = _input(tmp_path)
    (tmp_path / "in" / "d.jsonl").write_bytes(lines([*sound[:10], *broken[:10]]))
    stages = [*before, ExactDeduplication(), ScoreFilter(WordCountFilter(min_words=2)).with_(name="last")]
    run = _pipeline(tmp_path, *stages, files=2)
    report = run.run(executor=here(), error_budget=None, salvage=salvage).report
    expected = [*sound[:80], *(broken if salvage else []), *sound[80:], *([] if salvage else broken[:10])]
    assert read_lines(tmp_path / "out") == [record.decode() for record in expected]
    assert any("b.jsonl.gz is damaged" in alarm for alarm in report.alarms)
    assert ("not verified" in str(Ledger(str(tmp_path / "out")).why("2-0"))) == salvage
    proof = verify(str(tmp_path / "out"))
    assert not proof.problems, proof
    assert len(proof.damaged) == 1


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("how", ["page", "footer", "cut"])
def test_parquet(tmp_path: Path, how: str, salvage: bool) -> None:
    (tmp_path / "in").mkdir()
    for seed, name in enumerate("abc"):
        records = [json.loads(record) for record in documents(300, seed=seed)]
        table = pa.Table.from_pylist(records)
        path = tmp_path / "in" / f"{name}.parquet"
        pq.write_table(table, path, row_group_size=100, compression="none", write_page_checksum=True)
    broken = tmp_path / "in" / "b.parquet"
    data = bytearray(broken.read_bytes())
    if how == "page":
        at = data.rindex(b"stone", 0, len(data) // 2)
        data[at : at + 5] = b"STONE"
    elif how == "footer":
        data[-8:-4] = b"\xff\xff\xff\x7f"
    broken.write_bytes(data[: len(data) // 2] if how == "cut" else data)
    reader = ParquetReader(str(tmp_path / "in"), files_per_partition=3, read_kwargs={"batch_bytes": 2048})
    pipeline = Pipeline("job", stages=[reader, ParquetWriter(str(tmp_path / "out"))])
    report = pipeline.run(executor=here(), error_budget=None, salvage=salvage).report
    found = [row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    ids = [row["id"] for row in found]
    assert report.quarantined == 1
    assert not any("STONE" in row["text"] for row in found)
    assert [name for name in ids if name[0] != "1"] == [f"{seed}-{n}" for seed in (0, 2) for n in range(300)]
    others = [name for name in ids if name[0] == "1"]
    if salvage and how == "page":
        assert {f"1-{n}" for n in [*range(100), *range(200, 300)]} <= set(others) < {f"1-{n}" for n in range(300)}
    else:
        assert others == []
    proof = verify(str(tmp_path / "out"))
    assert not proof.problems
    assert "b.parquet is damaged" in proof.damaged[0]


def test_bad_lines_beyond_a_number_are_counted_instead_of_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.stages.text.io.reader.jsonl.MOST_BAD", 10)
    first, second, third = documents(3)
    bad = [b"x"] * 8
    (tmp_path / "in.jsonl").write_bytes(lines([first, *bad, second, *bad, third]))
    reader = JsonlReader(str(tmp_path / "in.jsonl"), read_kwargs={"batch_bytes": 32})
    pipeline = Pipeline("job", stages=[reader, JsonlWriter(str(tmp_path / "out"))])
    report = pipeline.run(executor=here(), error_budget=None).report
    (entry,) = Manifest(Ledger(tmp_path / "out").folder).ordered()
    assert entry.rows_written == 3
    assert entry.quarantined + entry.lost == 16 == report.quarantined + entry.lost
    causes = next(iter(entry.stages.values())).quarantined
    assert causes["malformed_json"] == 10
    assert 10 < entry.quarantined < 16
    proof = verify(str(tmp_path / "out"))
    assert not proof.problems
    assert "the quarantine holds the first 10" in proof.damaged[0]
    source = source_record(entry, 18)
    assert source is not None
    assert source["id"] == "0-2"
    with pytest.raises(ErrorBudgetExceededError, match="16 of 19 records"):
        pipeline.run(executor=here(), fresh=True)
