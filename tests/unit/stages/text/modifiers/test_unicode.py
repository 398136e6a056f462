"""The repair of wrongly decoded text: the same as ftfy's for every document, also those it is not shown."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import MissingExtraError
from gristmill.stages.text.modifiers import UnicodeReformatter

ftfy = pytest.importorskip("ftfy")

SETTINGS = [{}, {"uncurl_quotes": True, "fix_line_breaks": True, "normalization": "NFC"}, {"unescape_html": True}]
SETTINGS += [{"max_decode_length": 3}, {"unescape_html": False, "fix_line_breaks": True}]
pieces = st.sampled_from(
    ["a", " ", "\n", "\r\n", "\t", "&amp;", "<b>", "sÃ³", "“q”", "\x1b[31m", "\x00", "\x0c", "\x7f", "ﬁ", "é"]
)
texts = st.one_of(st.text(max_size=20), st.lists(pieces, max_size=25).map("".join))


@pytest.mark.parametrize("options", SETTINGS)
@settings(max_examples=150, deadline=None)
@given(values=st.lists(st.one_of(st.none(), texts), max_size=4))
def test_every_document_is_as_ftfy_makes_it(options, values):
    modifier = UnicodeReformatter(**options)
    got = modifier.modify_column(pa.array(values, pa.large_string())).to_pylist()
    assert got == [None if v is None else ftfy.fix_text(v, config=modifier.config) for v in values]


def test_a_configuration_of_ftfy_is_taken():
    modifier = UnicodeReformatter(config=ftfy.TextFixerConfig(normalization=None, uncurl_quotes=True))
    assert modifier.modify_document("“sÃ³”") == '"só"'


def test_without_ftfy_only_text_that_needs_it_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    assert UnicodeReformatter().modify_document("plain") == "plain"
    with pytest.raises(MissingExtraError, match=r"pip install 'gristmill\[unicode\]'"):
        UnicodeReformatter().modify_document("sÃ³")
