"""The `fields` of readers and writers."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.errors import UsageError


def field_names(fields: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names of columns as given, None for all of them.

    Raises:
        UsageError: They are no list of names; a single text would be taken for a list of its letters.
    """
    if fields is None:
        return None
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r} is one text; give a list of column names: fields=[{fields!r}].")
    names = tuple(fields)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"fields={list(names)!r}: the names of columns are text.")
    return names
