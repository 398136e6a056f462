"""Every public name of NeMo Curator 1.4 for text, and its counterpart: `compat_names.txt`.

A line holds the path below `nemo_curator`, how often its documentation and tutorials use it (counted for the names that
Gristmill lacked at first), and `found` or `absent`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import compat
from gristmill.compat import names
from gristmill.compat.finder import MissingName
from gristmill.errors import NotSupportedError

LINES = (Path(__file__).parent / "compat_names.txt").read_text(encoding="utf-8").splitlines()
NAMES = {path: (int(uses), fate) for path, uses, fate in (line.split() for line in LINES if line[0] != "#")}
FOUND_BEFORE = (91, 507)
"""Names and uses of them that Gristmill had when the others were counted."""
BY_CHANCE = ("utils.split_large_files.parse_args", "utils.grouping.pairwise")
"""Counted by their bare name, which tutorials use for functions of their own."""


@pytest.fixture(autouse=True)
def curator() -> Iterator[None]:
    compat.install(force=True)
    yield
    compat.uninstall()


def _found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"nemo_curator.{module}"), name)


def test_every_public_name_has_the_listed_fate() -> None:
    wrong = []
    for path, (_, fate) in NAMES.items():
        is_absent = isinstance(_found(path), MissingName)
        if is_absent != (fate == "absent"):
            wrong.append(path)
    assert wrong == []
    assert len(NAMES) > 570


def test_what_is_absent_says_what_is_near() -> None:
    for path, (_, fate) in NAMES.items():
        if fate == "absent":
            with pytest.raises(NotSupportedError, match=rf"Gristmill has no nemo_curator\.{path}\. \S"):
                _found(path)()  # type: ignore[operator]


def test_most_of_what_documentation_uses_is_found() -> None:
    used = {path: entry for path, entry in NAMES.items() if entry[0] and path not in BY_CHANCE}
    found = {path: uses for path, (uses, fate) in used.items() if fate == "found"}
    names_used, uses = FOUND_BEFORE[0] + len(used), FOUND_BEFORE[1] + sum(count for count, _ in used.values())
    assert (FOUND_BEFORE[0] + len(found)) / names_used >= 0.9
    assert (FOUND_BEFORE[1] + sum(found.values())) / uses >= 0.95


def test_the_table_names_modules_that_exist() -> None:
    for homes in names.MODULES.values():
        for home in homes:
            importlib.import_module(f"gristmill.{home}")
    for target in names.NAMES.values():
        home, _, name = target.partition(":")
        assert hasattr(importlib.import_module(f"gristmill.{home}"), name)
