"""How `gristmill quarantine` says where a record is."""

from __future__ import annotations

from gristmill.cli.quarantine import _place


def test_a_byte_is_named_only_where_it_is_known() -> None:
    assert _place("in.jsonl", 20) == "in.jsonl at byte 20"
    assert _place("in.jsonl", -1) == "in.jsonl"
    assert _place("", -1) == ""
