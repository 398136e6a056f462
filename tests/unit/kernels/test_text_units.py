"""Units of texts, their hashes, and cuts, against plain Python."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.kernels.repeats import build_lookup, first_and_counts, look_up, repeated_rows
from gristmill.kernels.text_column import text_column
from gristmill.kernels.text_cuts import character_places, cut_spans
from gristmill.kernels.text_units import (
    LINE,
    PARAGRAPH,
    SENTENCE,
    find_units,
    letter_table,
    unit_hashes,
    unit_tables,
)

TEXTS = st.lists(
    st.one_of(
        st.none(), st.text("ab. \n\r\té。!\"”\u00a0日", max_size=40), st.text(max_size=12),
        st.just("no line end"), st.just("\n\n"),
    ),
    max_size=6,
)  # fmt: skip


def plain_units(text: str, kind: int) -> list[str]:
    if kind == LINE:
        pieces = text.split("\n")
    elif kind == PARAGRAPH:
        pieces, run = [], []
        for line in [*text.split("\n"), ""]:
            if line.strip():
                run.append(line)
            else:
                pieces.append("\n".join(run))
                run = []
    else:
        pieces = []
        for line in text.split("\n"):
            last = 0
            for mark in re.finditer(r"[.!?。][\"')\]}]*[”’]*(?=\s|$)", line):
                pieces.append(line[last : mark.end()])
                last = mark.end()
            pieces.append(line[last:])
    return [piece.strip() for piece in pieces if piece.strip()]


def units_of(texts: list[str | None], kind: int, min_chars: int = 1) -> list[list[str]]:
    column = text_column(texts)
    starts, ends, bounds = find_units(column.data, column.offsets, kind, min_chars, *unit_tables())
    found = [column.data[start:end].tobytes().decode() for start, end in zip(starts, ends, strict=True)]
    return [found[bounds[row] : bounds[row + 1]] for row in range(len(texts))]


@settings(max_examples=150)
@given(texts=TEXTS, kind=st.sampled_from([LINE, PARAGRAPH, SENTENCE]), least=st.integers(1, 4))
def test_units_are_those_of_python(texts: list[str | None], kind: int, least: int) -> None:
    if kind == SENTENCE:  # the reference knows a few marks only
        texts = [None if text is None else re.sub(r"[^ab. \n\té!\"”日。]", "a", text) for text in texts]
    wanted = [[unit for unit in plain_units(text or "", kind) if len(unit) >= least] for text in texts]
    assert units_of(texts, kind, least) == wanted


def test_lines_with_carriage_returns_and_without_ends() -> None:
    assert units_of(["a\r\nb\r\n\r\nc", "", None, " \r\n", "x"], LINE) == [["a", "b", "c"], [], [], [], ["x"]]
    assert units_of(["a\r\nb\r\n\r\nc"], PARAGRAPH) == [["a\r\nb", "c"]]


@settings(max_examples=100)
@given(lines=st.lists(st.text("aB1. \t", min_size=1, max_size=6), min_size=1, max_size=12), loose=st.booleans())
def test_equal_hashes_are_equal_normal_forms(lines: list[str], loose: bool) -> None:
    column = text_column(lines)
    table = letter_table(case=not loose, punctuation=not loose, digits=not loose)
    salts = np.zeros(len(lines), np.uint64)
    bounds = np.arange(len(lines) + 1)
    hashes = unit_hashes(column.data, column.offsets[:-1].copy(), column.offsets[1:].copy(), bounds, salts, table)
    normal = []
    for line in lines:
        form = re.sub(r"\.", "", re.sub(r"\d", "0", line.lower())) if loose else line
        form = " ".join(form.split())
        normal.append(form or f"raw {line}")
    for half in hashes:
        assert [list(half).index(one) for one in half] == [normal.index(one) for one in normal]


@settings(max_examples=100)
@given(values=st.lists(st.integers(0, 5), max_size=30), most=st.integers(1, 3))
def test_counting_is_that_of_a_counter(values: list[int], most: int) -> None:
    first = np.array([value % 2 for value in values], np.uint64)  # halves collide on purpose
    second = np.array(values, np.uint64)
    places, counts = first_and_counts(first, second, np.zeros(len(values), np.int64))
    wanted = Counter(values)
    assert [values[place] for place in places] == list(dict.fromkeys(values))
    assert dict(zip([values[place] for place in places], counts.tolist(), strict=True)) == wanted
    documents = np.arange(len(values), dtype=np.uint64)[::-1].copy()
    ones = np.ones(len(values), np.int64)
    order = np.argsort(first, kind="stable")
    repeated, kept, _ = repeated_rows(order, first, second, documents, ones, ones, most)
    assert repeated.tolist() == [wanted[value] > most for value in values]
    for at, value in enumerate(values):
        if repeated[at]:
            assert kept[at] == min(documents[i] for i, other in enumerate(values) if other == value)
    scopes = np.zeros(len(values), np.uint64)
    table = build_lookup(first, second, scopes)
    probes = np.arange(8, dtype=np.uint64)
    found = look_up(table, first, second, scopes, probes % np.uint64(2), probes, np.zeros(8, np.uint64))
    assert [at >= 0 for at in found] == [value in wanted for value in range(8)]


@settings(max_examples=150)
@given(texts=st.lists(st.text("ab é日\n", max_size=30), max_size=4), data=st.data())
def test_cuts_leave_the_rest(texts: list[str], data: st.DataObject) -> None:
    column = text_column(list(texts))
    rows, spans = [], []
    for row, text in enumerate(texts):
        marks = sorted(set(data.draw(st.lists(st.integers(0, len(text)), max_size=4))))
        for start, end in zip(marks[::2], marks[1::2], strict=False):
            rows.append(row)
            spans.append((start, end))
    base = [column.offsets[row] + len(texts[row][:start].encode()) for row, (start, _) in zip(rows, spans, strict=True)]
    stop = [column.offsets[row] + len(texts[row][:end].encode()) for row, (_, end) in zip(rows, spans, strict=True)]
    given_spans = [np.array(values, np.int64) for values in (rows, base, stop)]
    first, last = character_places(column.data, column.offsets, *given_spans)
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == spans
    out, offsets = cut_spans(column.data, column.offsets, *given_spans, False)
    for row, text in enumerate(texts):
        wanted, at = "", 0
        for mine, (start, end) in zip(rows, spans, strict=True):
            if mine == row:
                wanted, at = wanted + text[at:start], end
        assert out[offsets[row] : offsets[row + 1]].tobytes().decode() == wanted + text[at:]


def cut(text: str, *passages: str) -> str:
    column = text_column([text])
    places = sorted(text.encode().index(passage.encode()) for passage in passages)
    sizes = {text.encode().index(passage.encode()): len(passage.encode()) for passage in passages}
    starts = np.array(places, np.int64)
    ends = np.array([place + sizes[place] for place in places], np.int64)
    out, _ = cut_spans(column.data, column.offsets, np.zeros(len(places), np.int64), starts, ends, True)
    return out.tobytes().decode()


def test_white_space_beside_a_cut_goes_with_it() -> None:
    assert cut("a\nb\nc", "b") == "a\nc"
    assert cut("a\nb", "b") == "a"
    assert cut("a\nb\n", "b") == "a\n"
    assert cut("a\nb", "a") == "b"
    assert cut("a\n\nb\nc", "b") == "a\n\nc"
    assert cut("a\nb\n\nc", "b") == "a\n\nc"
    assert cut("A. B.\nC.", "B.") == "A.\nC."
    assert cut("A. B. C.", "B.") == "A. C."
    assert cut("a\r\nb\r\nc", "b") == "a\r\nc"
    assert cut("a\nb\nc\nd", "b", "c") == "a\nd"
    assert cut(" a \n", "a") == ""
