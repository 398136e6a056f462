"""Every public name is in the API reference, exists, and has a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from typing import Literal, get_origin

import pytest

from gristmill.recipes.names import NAMES
from tools import docs_api

SHOWN = docs_api.shown_names()
MODULES = [entry.partition(":")[0] for _, _, modules in docs_api.ROOMS.values() for entry in modules]
PAGES = [docs_api.ROOT / "README.md", *sorted((docs_api.ROOT / "docs").rglob("*.md"))]
IMPORT = re.compile(r"^from (gristmill[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_what_the_module_offers(module: str) -> None:
    loaded = importlib.import_module(module)
    offered = [name for name in getattr(loaded, "__all__", ()) if not name.startswith("__")]
    assert [name for name in offered if f"{module}.{name}" not in SHOWN] == []
    for path in SHOWN:
        if path.rpartition(".")[0] == module:
            found = getattr(loaded, path.rpartition(".")[2])
            assert inspect.getdoc(found) or not callable(found) or get_origin(found) is Literal, path


def test_every_module_with_public_names_is_in_a_room() -> None:
    missing = []
    for file in (docs_api.SOURCE / "gristmill").rglob("*.py"):
        module = ".".join(file.relative_to(docs_api.SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if "__all__" in file.read_text(encoding="utf-8") and module not in (*MODULES, *docs_api.INTERNAL):
            missing.append(module)
    assert missing == []


def test_names_of_recipes_are_in_the_reference() -> None:
    homes = {docs_api.home_of(path.rpartition(".")[0], path.rpartition(".")[2]) for path in SHOWN}
    classes = {home.rpartition(".")[2] for home in homes}
    assert [name for name in NAMES if name not in classes] == []


def test_what_pages_import_is_in_the_reference() -> None:
    named = {
        f"{module}.{alias.name}"
        for page in PAGES
        for module, _ in IMPORT.findall(page.read_text(encoding="utf-8"))
        for alias in _aliases(page.read_text(encoding="utf-8"), module)
    }
    homes = {docs_api.home_of(path.rpartition(".")[0], path.rpartition(".")[2]) for path in SHOWN}
    assert len(named) > 60
    assert [path for path in sorted(named) if path not in SHOWN and _home(path) not in homes] == []


def _aliases(text: str, module: str) -> list[ast.alias]:
    found = []
    for one, names in IMPORT.findall(text):
        if one == module:
            found += ast.parse(f"from {one} import {names}").body[0].names  # type: ignore[attr-defined]
    return found


def _home(path: str) -> str:
    module, _, name = path.rpartition(".")
    return docs_api.home_of(module, name)


def test_a_page_shows_an_object_once() -> None:
    directives = re.findall(r"^::: (\S+)$", "\n".join(docs_api.pages().values()), re.MULTILINE)
    assert len(directives) == len(set(directives)) > 250
