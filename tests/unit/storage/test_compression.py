"""Compressed streams: bounded memory, several members, damage told apart, deterministic output."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import InputNotFoundError, UsageError
from gristmill.storage.compression import (
    DamagedArchiveError,
    DecompressedSource,
    StreamEncoder,
    codec_named,
    compress_member,
    open_source,
)
from gristmill.storage.formats import codec_of

CODECS = ["gz", "zst", "bz2", "xz"]
DECODE = {"gz": gzip.decompress, "bz2": bz2.decompress, "xz": lzma.decompress}


def drain(source: DecompressedSource, step: int = 1 << 16) -> tuple[bytes, DamagedArchiveError | None]:
    data = bytearray()
    buffer = memoryview(bytearray(step))
    try:
        while count := source.readinto(buffer):
            data += buffer[:count]
    except DamagedArchiveError as error:
        return bytes(data), error
    return bytes(data), None


def decode(stored: bytes, codec: str, step: int = 1 << 16) -> tuple[bytes, DamagedArchiveError | None]:
    return drain(DecompressedSource(io.BytesIO(stored), codec, path="a." + codec), step)


@settings(max_examples=100, deadline=None)
@given(codec=st.sampled_from(CODECS), members=st.lists(st.binary(max_size=3000), max_size=6), step=st.integers(1, 5000))
def test_members_are_read_through(codec, members, step):
    stored = b"".join(compress_member(member, codec) for member in members)
    assert decode(stored, codec, step) == (b"".join(members), None)


@settings(max_examples=100, deadline=None)
@given(codec=st.sampled_from(CODECS), data=st.binary(min_size=1, max_size=3000), cut=st.integers(1, 10_000))
def test_every_truncation_is_noticed_and_the_front_delivered(codec, data, cut):
    whole = compress_member(data, codec)
    stored = whole + whole[: 1 + cut % (len(whole) - 1)]
    got, damage = decode(stored, codec)
    assert damage is not None
    assert damage.cause == "truncated_file"
    assert got.startswith(data)
    assert (data + data).startswith(got)


@settings(max_examples=100, deadline=None)
@given(codec=st.sampled_from(CODECS), data=st.binary(min_size=200, max_size=2000), at=st.integers(0, 10_000))
def test_a_flipped_byte_never_passes_for_clean(codec, data, at):
    whole = bytearray(compress_member(data, codec))
    # Fields of the headers that decide nothing (time, system, flags without meaning) may change freely.
    at = 12 + at % (len(whole) - 12)
    whole[at] ^= 0x41
    got, damage = decode(compress_member(data, codec) + bytes(whole), codec)
    assert damage is not None or got == data + data
    assert got.startswith(data)


@pytest.mark.parametrize("codec", CODECS)
def test_little_memory_for_extreme_ratios(codec):
    encoder = StreamEncoder(codec)
    stored = b"".join(encoder.encode(b"a" * 1_000_000) for _ in range(100)) + encoder.finish()
    source = DecompressedSource(io.BytesIO(stored), codec, path="a")
    buffer = memoryview(bytearray(1 << 20))
    size = 0
    tracemalloc.start()
    while count := source.readinto(buffer):
        size += count
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 100_000_000
    assert peak < 25_000_000


@pytest.mark.parametrize("codec", CODECS)
def test_streams_and_members_decode_elsewhere_and_repeat_exactly(codec):
    data = b"some text " * 5000
    first, second = (
        b"".join([*(encoder.encode(data[at : at + 999]) for at in range(0, len(data), 999)), encoder.finish()])
        for encoder in (StreamEncoder(codec), StreamEncoder(codec))
    )
    assert first == second
    assert compress_member(data, codec) == compress_member(data, codec)
    for stored in (first, compress_member(data, codec)):
        assert decode(stored, codec) == (data, None)
        if codec in DECODE:
            assert DECODE[codec](stored) == data
        else:
            assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stored)).read() == data


def test_skippable_frames_are_skipped():
    skippable = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"notes"
    stored = zstandard.compress(b"1\n") + skippable + zstandard.compress(b"2\n")
    assert decode(stored, "zst") == (b"1\n2\n", None)


def test_names():
    names = {"a.jsonl": "none", "a.GZ": "gz", "b.zst": "zst", "b.json.ZSTD": "zst", "c.bz2": "bz2"}
    names |= {"d.ndjson.xz": "xz", "d.lzma": "xz"}
    assert {name: codec_of(name) for name in names} == names
    assert [codec_named(name) for name in (None, "gzip", "ZSTD", ".bz2")] == ["none", "gz", "zst", "bz2"]
    with pytest.raises(UsageError, match="Did you mean 'gzip'"):
        codec_named("gzipp")


def test_a_file_that_is_gone_is_said(tmp_path):
    with pytest.raises(InputNotFoundError, match="gone"):
        open_source(str(tmp_path / "a.jsonl.gz"))
