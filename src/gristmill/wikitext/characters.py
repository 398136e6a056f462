"""Control characters that stand for something while a page is converted; XML allows none of them in a dump."""

from __future__ import annotations

STASH = "\x01"
STASH_END = "\x02"
"""Around the number of a text that was put aside because nothing in it is markup."""
PIPE = "\x03"
"""A `|` that is text and separates nothing."""
BREAK = "\x04"
"""A line break by a tag, which neither ends a list item nor a table cell."""
