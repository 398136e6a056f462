"""The page about the architecture: its picture is current, and all that it names exists."""

from __future__ import annotations

import ast
import re

import pytest

from tools.house import ROOT, SOURCE, functions_entered, metaphors
from tools.make_architecture import PAGE, imports, replaced, rows

HOP = re.compile(r"^(?:\d+\.|-) `([\w/]+\.py)` `([\w.]+)`", re.MULTILINE)
WAYS = ("How a document is kept", "How a document is dropped", "How a document passes through a model")


def section(title: str) -> str:
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")
    assert found, title
    return rest.partition("\n## ")[0]


def hops(title: str) -> list[tuple[str, str]]:
    return [(hop[1], hop[2]) for hop in HOP.finditer(section(title)) if hop[0][0].isdigit()]


def defined(file: str) -> set[str]:
    """Every class and function of a file by its qualified name."""
    found: set[str] = set()

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)
                walk(child, f"{prefix}{child.name}.")

    walk(ast.parse((SOURCE / file).read_text(encoding="utf-8")), "")
    return found


def test_the_picture_is_what_the_imports_say() -> None:
    # On a difference: python -m tools.make_architecture
    page = PAGE.read_text(encoding="utf-8")
    assert page == replaced(page)


def test_a_room_stands_above_what_it_imports() -> None:
    height = {room: -number for number, row in enumerate(rows(imports())) for room in row}
    for room, used in imports().items():
        for one in used:
            assert height[room] > height[one] or room in imports()[one], (room, one)


@pytest.mark.parametrize("way", WAYS)
def test_every_hop_exists(way: str) -> None:
    assert 5 <= len(hops(way)) <= 30
    assert [hop for hop in HOP.findall(section(way)) if hop[1] not in defined(hop[0])] == []


def test_a_run_passes_the_hops_of_documents_without_a_model() -> None:
    entered = {tuple(name.split(":")) for name in functions_entered()}
    assert [hop for way in WAYS[:2] for hop in hops(way) if hop not in entered] == []


def test_a_drop_is_held_by_at_most_four_objects() -> None:
    held = [hop for hop in HOP.finditer(section(WAYS[1])) if hop[0].startswith("-")]
    assert 1 <= len(held) <= 4


def test_every_metaphor_is_in_the_glossary() -> None:
    named = re.findall(r"^\| (\w+) \|", section("Words").partition("| metaphor |")[2], re.MULTILINE)
    assert len(named) <= 5
    assert sorted(named) == [one.partition(":")[0] for one in metaphors()]


def test_every_path_exists() -> None:
    names = re.findall(r"`((?:[\w.]+/)+(?:[\w.]+)?)`", PAGE.read_text(encoding="utf-8").partition("## Words")[2])
    assert len(names) > 20
    missing = [name for name in names if not (SOURCE / name).exists() and not (ROOT / name).exists()]
    assert missing == []
