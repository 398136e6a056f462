"""Web archives with hostile bytes: no crash of the library, no byte forgotten, little memory."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.attempt import FULL
from tests.unit.storage.warc_files import record, response, stored

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 4000 if FULL else 250
SIZE = 4 << 30 if FULL else 256 << 20
Note = Callable[[str, object], None]

# In a separate process: the library is machine code, and what kills it must not kill the tests.
CHILD = """
import io, json, random, sys, time
from benchmarks.bench_warc import peak_kilobytes
from gristmill.storage.row_formats import Broken
from gristmill.storage.row_formats.warc_library import read_records
from gristmill.storage.row_formats.warc_records import Record
from tests.unit.storage.test_warc_records import covers

files = [(codec, open(path, "rb").read()) for codec, path in json.loads(sys.argv[1])]
rng, rounds = random.Random(int(sys.argv[2])), int(sys.argv[3])
slowest = 0.0
for _ in range(rounds):
    codec, data = rng.choice(files)
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 6))):
        if len(data) < 2:
            break  # so much was cut out that nothing is left to harm
        at = rng.randrange(1, len(data))
        harm = rng.randrange(6)
        if harm == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif harm == 1:
            data[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(1, 9))
        elif harm == 2:
            del data[at : at + rng.choice((1, 7, 100, 5000))]
        elif harm == 3:
            data[at:at] = bytes(rng.choice((1, 4, 600)))
        elif harm == 4:
            end = at + rng.choice((10, 300))
            data[at:at] = data[max(1, at - 500) : end]
        else:
            data = data[: max(2, at)]
    start = time.process_time()
    found = list(read_records(io.BytesIO(bytes(data)), codec, max_block_bytes=1 << 20))
    slowest = max(slowest, time.process_time() - start)
    joined = any(isinstance(one, Record) and not one.length for one in found)
    rest = any(isinstance(one, Broken) and one.rest for one in found)
    blank = data[:2] == b"\\r\\n" or data[-1:] in (b"\\r", b"\\n")
    assert joined or rest or blank or covers(found, len(data)), (codec, [one[:2] for one in found if one])
print(json.dumps({"slowest": slowest, "peak": peak_kilobytes()}))
"""


def child(program: str, *arguments: str) -> dict[str, float]:
    """What a separate process prints; it must finish by itself."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_archives(seed: int, shared_data: Path, tmp_path: Path, record_property: Note) -> None:
    """WARC and ARC files with bytes flipped, removed, repeated and zeroed: every byte is in a record or quarantined."""
    frames = tmp_path / "a.warc.zst"
    frames.write_bytes(b"".join(stored([record(number) for number in range(20)], "zst")))
    real = shared_data / "warc_real"
    names = [
        "warcio/post-test.warc.gz",
        "warcio/example.warc.gz",
        "warcio/example.warc",
        "whirlwind/whirlwind.warc.wet",
    ]
    files = [("gz" if name.endswith("gz") else "none", str(real / name)) for name in names]
    record_property("tried", ROUNDS)
    figures = child(CHILD, json.dumps([*files, ("zst", str(frames))]), str(seed), str(ROUNDS))
    assert figures["slowest"] < 5
    assert figures["peak"] < 300_000


BOMB = """
import json, sys
from benchmarks.bench_warc import peak_kilobytes
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, reading_of, rows_of

part = FileRange(sys.argv[1], "a.warc.gz", 0, "", 0, -1, True, reading_of("warc", {}))
before = peak_kilobytes()
found = [one.cause if isinstance(one, Broken) else one.num_rows for one in rows_of(part)]
grown = peak_kilobytes() - before
print(json.dumps({"found": found, "grown": grown}))
"""


def gzipped(head: bytes, end: bytes) -> bytes:
    """Many zero bytes between these two, by gzip, without holding them."""
    encoder = zlib.compressobj(1, zlib.DEFLATED, 31)
    pieces = [encoder.compress(head), *(encoder.compress(bytes(1 << 20)) for _ in range(SIZE >> 20))]
    return b"".join(pieces) + encoder.compress(end) + encoder.flush()


def test_a_record_of_very_many_zeros(tmp_path: Path) -> None:
    """A record that gzip expands 200 times: quarantined, the next one read, in little memory."""
    bomb = gzipped(record(1, b"", length=SIZE)[:-4], b"\r\n\r\n")
    first, last = stored([record(0), record(2)], "gz")
    path = tmp_path / "a.warc.gz"
    path.write_bytes(first + bomb + last)
    figures = child(BOMB, str(path))
    assert figures["found"] == [1, "record_too_large", 1]
    assert figures["grown"] < 60_000


def test_a_body_of_very_many_zeros(tmp_path: Path) -> None:
    """A page whose Content-Encoding expands it 200 times: quarantined, in little memory."""
    body = response(gzipped(b"", b""), b"Content-Type: text/html\r\nContent-Encoding: gzip")
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(stored([record(0), record(1, body), record(2)], "gz")))
    figures = child(BOMB, str(path))
    assert figures["found"] == [1, "record_too_large", 1]
    assert figures["grown"] < 200_000
