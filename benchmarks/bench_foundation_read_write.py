"""How fast is reading and writing in one process, beside Polars with one thread and beside what nothing can go below?

Reads 200 MB of real documents and writes them again; start-up and the first call of each side are not counted.
The goal is at least half the speed of Polars, which parses every value, keeps no record of the run and loses what its
types cannot hold. The floor of JSONL is reading the files from the page cache and writing the same bytes, that of
Parquet also unpacking and packing its pages by zstd; copying in memory and writing with fsync are measured beside them.

    python benchmarks/bench_foundation_read_write.py [--megabytes 200] [--repeat 3]
"""

from __future__ import annotations

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # before Polars is imported

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import best_of, make_input, save


def bare_copy(source: Path, target: Path, *, fsync: bool = False) -> None:
    """Read a file in blocks of 16 MB and write them."""
    block = memoryview(bytearray(16 << 20))
    with source.open("rb", buffering=0) as reading, target.open("wb", buffering=0) as writing:
        while count := reading.readinto(block):
            writing.write(block[:count])
        if fsync:
            os.fsync(writing.fileno())


def zstd_pages(source: Path) -> list[Any]:
    """The bytes of the text column in pieces of a page's size, which zstd has to unpack and to pack again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pages = []
    for path in sorted(source.glob("*.parquet")):
        for chunk in pq.ParquetFile(path).read(["text"], use_threads=False)["text"].chunks:
            data = memoryview(chunk.buffers()[2])
            pages += [pa.py_buffer(data[at : at + (1 << 20)]) for at in range(0, len(data), 1 << 20)]
    return pages


def main() -> None:
    """Run both sides in turns and keep the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    import numpy as np
    import polars as pl
    import pyarrow as pa

    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size, documents = make_input(folder / "in" / "a.jsonl", megabytes=options.megabytes)
        make_input(folder / "small" / "a.jsonl", documents=100)

        def ours(source: str = "in") -> None:
            shutil.rmtree(folder / "out", ignore_errors=True)
            shutil.rmtree(folder / "out.gristmill", ignore_errors=True)
            stages = [JsonlReader(str(folder / source)), JsonlWriter(str(folder / "out"))]
            Pipeline("read_write", stages=stages).run(executor=LocalExecutor(config={"num_cpus": 0}))

        def polars(source: str = "in") -> None:
            pl.read_ndjson(folder / source / "a.jsonl").write_ndjson(folder / "polars.jsonl")

        def run(name: str, reader: Any, writer: Any) -> None:
            shutil.rmtree(folder / name, ignore_errors=True)
            shutil.rmtree(folder / f"{name}.gristmill", ignore_errors=True)
            Pipeline(name, stages=[reader, writer]).run(executor=LocalExecutor(config={"num_cpus": 0}))

        def tables() -> None:
            run("tables_again", ParquetReader(str(folder / "tables")), ParquetWriter(str(folder / "tables_again")))

        def floor() -> None:
            bare_copy(folder / "in" / "a.jsonl", folder / "copy.jsonl")

        def on_disk() -> None:
            bare_copy(folder / "in" / "a.jsonl", folder / "copy.jsonl", fsync=True)

        def in_memory() -> None:
            np.copyto(target, memory)

        def by_zstd() -> None:
            for page, packed in zip(pages, [codec.compress(page) for page in pages], strict=True):
                codec.decompress(packed, len(page))

        ours("small")
        polars("small")
        run("tables", JsonlReader(str(folder / "in")), ParquetWriter(str(folder / "tables")))
        memory = np.fromfile(folder / "in" / "a.jsonl", np.uint8)
        target, pages, codec = np.zeros_like(memory), zstd_pages(folder / "tables"), pa.Codec("zstd", 1)
        copied, stored, moved, parquet, zstd = best_of(options.repeat, floor, on_disk, in_memory, tables, by_zstd)
        mine, theirs = best_of(options.repeat, ours, polars)
        written = b"".join(path.read_bytes() for path in sorted((folder / "out").glob("*.jsonl")))
        same = written == (folder / "in" / "a.jsonl").read_bytes()
    save(
        "foundation_read_write",
        {
            "bytes": size,
            "documents": documents,
            "gristmill": mine,
            "polars_one_thread": theirs,
            "speed_ratio_wall": round(theirs["wall_s"] / mine["wall_s"], 3),
            "speed_ratio_cpu": round(theirs["cpu_s"] / mine["cpu_s"], 3),
            "goal": "at least 0.5",
            "bytes_identical": same,
            "floor": {"read_and_write": copied, "with_fsync": stored, "copy_in_memory": moved},
            "share_of_floor_cpu": round(copied["cpu_s"] / mine["cpu_s"], 3),
            "share_of_disk_wall": round(stored["wall_s"] / mine["wall_s"], 3),
            "parquet": {
                "gristmill": parquet,
                "zstd_alone": zstd,
                "share_of_zstd_cpu": round(zstd["cpu_s"] / parquet["cpu_s"], 3),
                "largest_possible_speedup": round(parquet["cpu_s"] / zstd["cpu_s"], 2),
                "goal": "1.2 times the version before, or the share that zstd takes, which no change here can lower",
            },
        },
    )


if __name__ == "__main__":
    main()
