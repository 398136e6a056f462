"""The scan of a page's bytes agrees with a plain walk over its tags."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.markup_scan import _NEVER_OPEN, scan_markup

_TAG = re.compile(rb"<(/?)([a-zA-Z][^\s/<>]*)([^<>]*)>")
_FORMULA = re.compile(rb'<math|math/tex|mwe-math|class="tex"|class="latex"')
_PIECES = st.lists(
    st.sampled_from([
        b"<", b"</", b"<b>", b"</b>", b"<B class='x'>", b"<i/>", b"<br>", b"<p>", b"</p>", b"<td>", b"</td>", b"</TD >",
        b"</td", b">", b"<math>", b'class="tex"', b'class="', b"la", b'"la', b"mwe-", b"math", b"math/tex", b"mat",
        b"h", b'tex"', b"x" * 57, "ä".encode(), b" ",
        b"<div>" * 40, b"</div>" * 40, b"<x-a b=c>", b"</x-a\n>", b"</ i>", b"<1>", b"<b<b>",
    ]),
    max_size=30,
).map(b"".join)  # fmt: skip


def plain_depth(page: bytes) -> int:
    open_now: dict[bytes, int] = {}
    depth = deepest = 0
    for closes, name, rest in _TAG.findall(page):
        name = name.lower()
        if rest.endswith(b"/") or name.decode(errors="replace") in _NEVER_OPEN:
            continue
        count = open_now.get(name, 0)
        if not closes:
            open_now[name] = count + 1
            depth += 1
            deepest = max(deepest, depth)
        elif count:
            open_now[name] = count - 1
            depth -= 1
    return deepest


@given(_PIECES)
def test_agrees_with_a_plain_walk(page: bytes) -> None:
    seen = scan_markup(page)
    assert seen.tags == page.count(b"<")
    assert seen.depth == plain_depth(page)
    assert seen.has_formulas == (_FORMULA.search(page) is not None)
    assert seen.has_cells == any(
        closes and name.lower() == b"td" and not rest.endswith(b"/") for closes, name, rest in _TAG.findall(page)
    )


def test_end_tags_without_an_element_close_nothing() -> None:
    assert scan_markup(b"<b></i>" * 5000).depth == 5000


def test_more_different_names_than_the_table_holds_count_as_nested() -> None:
    page = b"".join(b"<x%d></x%d>" % (number, number) for number in range(5000))
    assert scan_markup(page).depth == 5000 - 2048
    assert scan_markup(page[: page.index(b"<x2000>")]).depth == 1
