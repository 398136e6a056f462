"""Records of web archives: found again behind damage, every byte of a file accounted for."""

from __future__ import annotations

import gzip
import io
import random

import pytest

from gristmill.storage.row_formats import Broken
from gristmill.storage.row_formats.warc_library import LibraryReader, read_records
from gristmill.storage.row_formats.warc_records import CarefulReader, Record
from tests.unit.storage.warc_files import record, stored

CODECS = ["none", "gz", "zst"]
LIMIT = 1 << 20


class Stream(io.RawIOBase):
    """Bytes that can be read once."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, target):
        return self._data.readinto(target)


def read(data: bytes, codec: str, *, limit: int = LIMIT) -> list[Record | Broken]:
    return list(read_records(io.BytesIO(data), codec, max_block_bytes=limit))


def read_carefully(data: bytes, codec: str) -> list[Record | Broken]:
    reader = CarefulReader(io.BytesIO(data), codec, 0, LIMIT)
    return list(iter(reader.read, None))


def numbers(found: list[Record | Broken]) -> list[int | str]:
    return [
        one.cause if isinstance(one, Broken) else int(one.headers[b"warc-record-id"].strip(b"<>urnid:"))
        for one in found
    ]


def covers(found: list[Record | Broken], size: int) -> bool:
    """Whether records and broken pieces lie side by side from the beginning of the file to its end."""
    at = 0
    for one in found:
        if one.offset != at:
            return False
        at += one.size if isinstance(one, Broken) else one.length
    return at == size


@pytest.mark.parametrize("codec", CODECS)
def test_every_record_can_be_fetched_by_its_range(codec):
    data = b"".join(stored([record(number) for number in range(30)], codec))
    found = read(data, codec)
    assert numbers(found) == list(range(30))
    assert covers(found, len(data))
    for one in found:
        [again] = read(data[one.offset : one.offset + one.length], codec)
        assert (again.headers, again.block) == (one.headers, one.block)
    assert found == read_carefully(data, codec)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("place", [0, 7, 19])
def test_damage_costs_the_record_where_it_is(codec, place):
    pieces = stored([record(number) for number in range(20)], codec)
    if codec == "none":
        pieces[place] = b"XXXX" + pieces[place][4:]
    else:
        half = len(pieces[place]) // 2
        pieces[place] = pieces[place][:half] + b"\xff" * 8 + pieces[place][half + 8 :]
    data = b"".join(pieces)
    found = read(data, codec)
    expected: list[int | str] = list(range(20))
    expected[place] = "corrupt_archive" if codec != "none" else "not_a_record"
    assert numbers(found) == expected
    assert found[place].offset == sum(map(len, pieces[:place]))
    assert found[place].raw.startswith(pieces[place][:64])
    assert covers(found, len(data))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("left", [1, 12, -1])
def test_a_cut_file_ends_with_a_broken_record(codec, left):
    pieces = stored([record(number) for number in range(12)], codec)
    pieces[-1] = pieces[-1][:left] if left > 0 else pieces[-1][: -len(pieces[-1]) // 3]
    data = b"".join(pieces)
    found = read(data, codec)
    assert numbers(found)[:-1] == list(range(11))
    assert isinstance(found[-1], Broken)
    assert covers(found, len(data))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("length", [10, 2_000, 10**12, 10**30])
def test_a_wrong_length_takes_no_other_record_with_it(codec, length):
    records = [record(0), record(1, length=length), record(2), record(3)]
    data = b"".join(stored(records, codec))
    found = read(data, codec)
    assert [one for one in numbers(found) if isinstance(one, int)] == [0, 2, 3]
    assert numbers(found)[1] in ("wrong_length", "truncated_record")
    assert covers(found, len(data))


@pytest.mark.parametrize("codec", CODECS)
def test_a_hole_of_zeros_is_no_padding(codec):
    pieces = stored([record(number) for number in range(12)], codec)
    pieces[5] = bytes(len(pieces[5]))
    data = b"".join(pieces)
    found = read(data, codec)
    assert [one for one in numbers(found) if isinstance(one, int)] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert isinstance(found[5], Broken)
    assert covers(found, len(data))


@pytest.mark.parametrize(
    ("data", "cause"), [(b"", "truncated_file"), (bytes(100_000), "not_warc"), (b"<html>x</html>" * 99, "not_warc")]
)
def test_a_file_that_is_no_archive_is_one_broken_piece(data, cause):
    [found] = read(data, "none")
    assert (found.cause, found.offset, found.size, found.rest) == (cause, 0, len(data), False)


def test_a_large_record_is_passed_over_without_being_held():
    big = record(1, bytes(50 << 20))
    data = b"".join(stored([record(0), big, record(2)], "gz"))
    first, large, last = read(data, "gz")
    assert (large.block, large.size) == (None, 50 << 20)
    assert numbers([first, last]) == [0, 2]


def test_records_compressed_together_are_read_one_after_the_other():
    together = gzip.compress(b"".join(record(number) for number in range(5)), mtime=0)
    data = stored([record(7)], "gz")[0] + together + stored([record(8)], "gz")[0]
    found = read(data, "gz")
    assert numbers(found) == [7, 0, 1, 2, 3, 4, 8]
    assert found[0].length > 0
    assert {one.length for one in found[1:6]} == {0}  # no range gives one of them


def test_records_may_span_members():
    content = b"".join(record(number) for number in range(6))
    data = b"".join(stored([content[at : at + 700] for at in range(0, len(content), 700)], "gz"))
    assert numbers(read(data, "gz")) == list(range(6))


def test_what_cannot_be_searched_is_read_to_the_first_damage():
    pieces = stored([record(number) for number in range(4)], "gz")
    whole = list(read_records(Stream(b"".join(pieces)), "gz", max_block_bytes=LIMIT))
    assert numbers(whole) == [0, 1, 2, 3]
    pieces[2] = pieces[2][:100] + b"\xff" * 8 + pieces[2][108:]
    *sound, broken = read_records(Stream(b"".join(pieces)), "gz", max_block_bytes=LIMIT)
    assert numbers(sound) == [0, 1]
    assert broken.rest


def test_an_error_of_the_file_is_no_damage():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 300_000:
                raise ConnectionResetError("gone")
            return super().read(size)

    data = b"".join(record(number) for number in range(600))
    with pytest.raises(ConnectionResetError, match="gone"):
        list(read_records(Failing(data), "none", max_block_bytes=LIMIT))


def test_the_library_gives_most_of_a_sound_file():
    data = b"".join(stored([record(number) for number in range(50)], "gz"))
    library = LibraryReader(io.BytesIO(data), "gz", 0, LIMIT, None)
    assert numbers(list(library)) == list(range(49))  # the end of the last one is seen by the careful reader


@pytest.mark.parametrize("seed", range(6))
def test_no_byte_of_a_damaged_file_is_forgotten(seed):
    rng = random.Random(seed)
    for _ in range(40):
        codec = rng.choice(CODECS)
        data = bytearray(b"".join(stored([record(number) for number in range(rng.randrange(1, 14))], codec)))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(1, len(data))
            data[at : at + rng.randrange(6)] = rng.randbytes(rng.randrange(6))
        found = read(bytes(data), codec)
        assert covers(found, len(data)) or b"\r\n" in (data[:2], data[-2:])


EXPECTED = {
    "warcio/bad.arc": (0, ["wrong_length"] * 3),
    "pywb/dupes.warc.gz": (25, []),
    "warcio/example.arc.gz": (2, []),
    "pywb/example.warc": (5, ["wrong_length"]),
    "warcio/example-bad.warc.gz.bad": (6, []),
    "pywb/iana.warc.gz": (343, []),
    "pywb/missing-status-text.warc": (0, ["not_warc"]),
    "warcio/example-bad-non-chunked.warc.gz": (6, []),
    "warcio/example-space-in-url.arc": (1, ["truncated_record"]),
    "warcio/example-trunc.warc": (3, ["wrong_length"]),
    "whirlwind/whirlwind.warc": (4, []),
    "whirlwind/whirlwind.warc.wet.gz": (2, []),
    "cc_net/sample.warc.txt": (0, ["wrong_length"] * 4),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_archives_that_others_wrote(name, request):
    folder = request.getfixturevalue("larger_data" if name.startswith("pywb/") else "shared_data")
    data = (folder / "warc_real" / name).read_bytes()
    codec = "gz" if data[:2] == b"\x1f\x8b" else "none"
    found = read(data, codec)
    broken = [one.cause for one in found if isinstance(one, Broken)]
    assert (len(found) - len(broken), broken) == EXPECTED[name]
    assert found == read_carefully(data, codec)
