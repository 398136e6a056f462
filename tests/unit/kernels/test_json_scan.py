"""The compiled grammar accepts and finds exactly what Python's json does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.kernels import json_scan, json_values, json_write, utf8
from gristmill.kernels.machine import BLOCK
from gristmill.storage.json_columns import packed
from gristmill.storage.json_records import JsonRecords
from gristmill.storage.jsonl_blocks import newline_positions
from tests.unit.kernels import json_reference as reference


def causes_of(lines: list[bytes]) -> list[str | None]:
    buffer, starts, ends = reference.block(lines)
    # Close to the end of the buffer bytes are looked at one by one, before that in blocks.
    one_by_one, in_blocks = buffer, np.append(buffer, np.full(3 * BLOCK, ord('"'), np.uint8))
    verdicts = []
    for whole in (one_by_one, in_blocks):
        _, bad, causes = JsonRecords.scan(whole, starts, ends)
        found: list[str | None] = [None] * len(lines)
        for index, cause in zip(bad, causes, strict=True):
            found[index] = cause
        verdicts.append(found)
    assert verdicts[0] == verdicts[1]
    return verdicts[0]


@settings(max_examples=75)
@given(st.lists(reference.records, max_size=4))
def test_accepts_every_way_of_writing_an_object(lines: list[bytes]) -> None:
    assert causes_of(lines) == [None] * len(lines)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    line = bytearray(draw(reference.records))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(line)))
        way = draw(st.integers(0, 3))
        if way == 0:
            line[at:] = b""
        elif way == 1:
            line[at : at + 1] = b""
        elif way == 2:
            line[at:at] = draw(
                st.sampled_from([bytes([c]) for c in b'{}[]:,"\\0-+.eEtu\x00\x1f\x80\xff\xe2 n/'] + [b"NaN"])
            )
        else:
            line[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
    return bytes(line)


@settings(max_examples=200)
@given(st.lists(mutated(), min_size=1, max_size=3))
@example([b'1,"":2', b'{"a":1}', b"[1]"])
def test_rejects_what_python_rejects_and_says_why(lines: list[bytes]) -> None:
    assert causes_of(lines) == [reference.strict(line)[0] for line in lines]


@pytest.mark.parametrize(
    "line",
    [
        b"", b" ", b"{", b"}", b"{}", b"{}{}", b"{} x", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{,"a":1}', b"{a:1}",
        b"{'a':1}",
        b'{"a":01}', b'{"a":-}', b'{"a":-01}', b'{"a":+1}', b'{"a":1.}', b'{"a":.5}', b'{"a":1e}', b'{"a":1e+}',
        b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":tru}', b'{"a":nul', b'{"a":falsy}', b'{"a":truex}',
        b'{"a":"\\x"}', b'{"a":"\\u12"}', b'{"a":"\\u12G4"}', b'{"a":"\\ud800"}', b'{"a":"\t"}', b'{"a":"\x7f"}',
        b'{"a":[1,]}', b'{"a":[1 2]}', b'{"a":[}', b'{"a":[1}}', b'{"a":{"b":1]}', b'{"a":[]]}', b'{"a":[[],{}]}',
        b'{"a":1 "b":2}', b'{"a"::1}', b'{"a":1:2}', b'{"a":"b"', b'{"a":"b', b'{"a":"\\', b'{"a":"\\u', b"[1]", b'"x"',
        b"1", b"null", b"nul", b"[1", b'{"a":1,"a":2}', b"\xef\xbb\xbf{}", b'{"\xc3\xa9":"\xed\xa0\x80"}',
        b'{"a":1}\x00',
        b'{"a" 1}', b'{"a":[1,2', b'{"a":{"b"}}', b'{"a":{"b":}}', b'{"a":{1:2}}', b'{"a":{"b":1,}}',
    ],
)  # fmt: skip
def test_corners_of_the_grammar(line: bytes) -> None:
    # Alone, and with bytes around that must not leak into the verdict.
    expected = reference.strict(line)[0]
    assert causes_of([line]) == [expected]
    assert causes_of([b'{"a":"b"}', line, b'","a":1}' * 9]) == [None, expected, "malformed_json"]


_PIECES = ["a", "é", "plain " * 12, r"\\", r"\n", r"\"", r"\/", r"\u00e9", r"\ud83d\ude00", r"\ud800", r"\\" * 40]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(_PIECES), max_size=40), st.integers(0, BLOCK), st.integers(0, 3 * BLOCK))
def test_escapes_may_lie_on_any_border_of_blocks(pieces: list[str], before: int, behind: int) -> None:
    string = '"' + "".join(pieces) + '"'
    head = ' "' + "x" * before + '":1,"t":'
    line = ("{" + head + string + "}").encode()
    buffer = np.frombuffer(line + b'\\"' * behind, np.uint8)
    records, bad, _ = JsonRecords.scan(buffer, [0], [len(line)], fields=["t"])
    assert not len(bad)
    assert records.column("t").to_pylist() == [reference.replaced(json.loads(string))]
    cut = len(line) - 2
    assert len(JsonRecords.scan(buffer, [0], [cut])[1]) == 1


@pytest.mark.parametrize("at", [*range(6), *range(58, 70), *range(122, 134)])
@pytest.mark.parametrize("wrong", [rb"\x", rb"\u12G4", b"\t", rb"\N", rb"\ "])
def test_wrong_escapes_are_found_anywhere(wrong: bytes, at: int) -> None:
    for filler in (b"a", rb"\\"):
        text = filler * (at // len(filler)) + wrong + b"b" * 150
        assert causes_of([b'{"t":"' + text + b'"}', b'{"t":"' + text[: -150 - len(wrong)] + b'"}']) == [
            "malformed_json",
            None,
        ]


def test_a_key_that_looks_like_the_expected_one_is_read_as_it_stands() -> None:
    lines = [b'{"a\\"b":1,"c":2}', b'{"a"b":1,"c":2}', b'{"a\\"b":3,"c":4}', b'{"a\\"bc":5,"c":6}', b'{"a":7,"cc":8}']
    assert causes_of(lines) == [None, "malformed_json", None, None, None]
    buffer, starts, ends = reference.block([lines[0], lines[2], lines[4]])
    records, _, _ = JsonRecords.scan(buffer, starts, ends, fields=['a"b', "c"])
    assert records.column('a"b').to_pylist() == [1, 3, None]
    assert records.column("c").to_pylist() == [2, 4, None]
    assert records.keys() == ['a"b', "c", "a", "cc"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from([b"", b"a", b"b" * 63, b"c" * 64, b"d" * 200]), max_size=30), st.integers(0, 70))
def test_every_newline_is_found(lines: list[bytes], begin: int) -> None:
    content = b"\n".join(lines)
    found = newline_positions(np.frombuffer(content, np.uint8), begin, len(content))
    assert found.tolist() == [at for at in range(begin, len(content)) if content[at] == 10]


@pytest.mark.parametrize("opener", ["[", '{"k":'])
def test_depth_is_limited_without_recursion(opener: str) -> None:
    closer = "]" if opener == "[" else "}"
    limit = json_values.MAX_DEPTH - 1
    fits = ('{"a":' + opener * limit + ("1" if closer == "}" else "") + closer * limit + "}").encode()
    deep = ('{"a":' + opener * 100_000).encode()
    assert causes_of([fits, deep]) == [None, "malformed_json_too_deep"]


@settings(max_examples=300)
@given(
    st.one_of(st.binary(max_size=200), st.text(min_size=60, max_size=120).map(lambda t: t.encode("utf-8", "ignore"))),
    st.data(),
)
def test_utf8_is_what_python_decodes(content: bytes, data: st.DataObject) -> None:
    for piece in (
        content,
        content[: data.draw(st.integers(0, len(content)))],
        content[data.draw(st.integers(0, len(content))) :],
    ):
        padded = np.frombuffer(b"\x80\xbf\xbf" + piece + b"\x80" * 40, np.uint8)
        invalid = np.zeros(1, np.bool_)
        utf8.find_invalid_utf8(padded.ctypes.data, np.array([3]), np.array([3 + len(piece)]), invalid)
        try:
            piece.decode("utf-8")
            expected = False
        except UnicodeDecodeError:
            expected = True
        assert bool(invalid[0]) == expected


@pytest.mark.parametrize("position", [0, 1, 2, 3, 31, 32, 33, 63, 64, 95, 120])
def test_every_wrong_pair_of_bytes_is_found_anywhere(position: int) -> None:
    for lead in range(0x80, 0x100):
        for second in (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0):
            content = (
                b"a" * position
                + bytes([lead, second, 0x80, 0x80])[: 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)]
            )
            content += b"b" * (125 - position)
            buffer, invalid = np.frombuffer(content, np.uint8), np.zeros(1, np.bool_)
            utf8.find_invalid_utf8(buffer.ctypes.data, np.array([0]), np.array([len(content)]), invalid)
            try:
                content.decode("utf-8")
                expected = False
            except UnicodeDecodeError:
                expected = True
            assert bool(invalid[0]) == expected, content


@settings(max_examples=75)
@given(st.lists(reference.records, min_size=1, max_size=4))
def test_finds_all_keys_in_the_order_first_seen(lines: list[bytes]) -> None:
    expected: dict[str, None] = {}
    for line in lines:
        # Pairs in order: a dictionary would put a repeated key where it was first, which is the order meant here too.
        expected |= dict.fromkeys(map(reference.replaced, json.loads(line)))
    buffer, starts, ends = reference.block([b"[]", *lines, b'{"never":1'])
    records, _, _ = JsonRecords.scan(buffer, starts, ends, fields=["text", "absent"])
    assert records.keys() == list(expected)


def test_tables_of_keys_grow() -> None:
    lines = [json.dumps({f"{row}-{key}": key for key in range(70)}).encode() for row in range(40)]
    lines += [json.dumps({"x" * 50_000: 1, "\u00e9" * 5_000: 2}).encode(), lines[7]]
    buffer, starts, ends = reference.block(lines)
    records, bad, _ = JsonRecords.scan(buffer, starts, ends, fields=["0-3", "39-69"])
    assert not len(bad)
    assert records.keys() == list(dict.fromkeys(key for line in lines for key in json.loads(line)))
    assert records.column("39-69").to_pylist() == [None] * 39 + [69] + [None] * 2


@settings(max_examples=100)
@given(reference.records, st.sets(st.sampled_from(["a", "b", "text", "é", "", "k" * 40])))
def test_drop_removes_members_and_nothing_else(line: bytes, drop: set[str]) -> None:
    buffer, starts, ends = reference.block([line])
    names, offsets = packed([name.encode() for name in sorted(drop)])
    out, out_offsets = np.empty(len(line) + BLOCK, np.uint8), np.empty(2, np.int64)
    used = json_scan.drop_members(
        buffer.ctypes.data, len(buffer), np.array(starts), np.array(ends), names, offsets, out, out_offsets
    )
    left = bytes(out[:used])
    pairs: list[tuple[str, Any]] = json.loads(line, object_pairs_hook=list)
    assert repr(json.loads(left, object_pairs_hook=list)) == repr([pair for pair in pairs if pair[0] not in drop])
    if not drop & {key for key, _ in pairs}:
        assert left == line


def test_one_specialisation_of_each_kernel_serves_read_only_and_writable_memory() -> None:
    content = b'{"a": "x\\n", "b": [1]}\n'
    for buffer in (np.frombuffer(content, np.uint8), np.frombuffer(content, np.uint8).copy()):
        records, _, _ = JsonRecords.scan(buffer, [0], [len(content) - 1], fields=["a"])
        copy = JsonRecords.from_arrow(records.to_arrow())
        spans = np.frombuffer(np.array([0, len(content) - 1]).tobytes(), np.int64)
        assert JsonRecords(buffer, spans[:1], spans[1:]).keys() == ["a", "b"]
        copy.encode(changes={"a": (copy.column("a"), None)}, drop=["b"])
    kernels = [
        kernel
        for module in (json_scan, json_write)
        for kernel in vars(module).values()
        if hasattr(kernel, "signatures")
    ]
    kernels.append(utf8.find_invalid_utf8)
    assert json_scan._scan in kernels
    assert {kernel.py_func.__name__: len(kernel.signatures) for kernel in kernels if len(kernel.signatures) > 1} == {}
