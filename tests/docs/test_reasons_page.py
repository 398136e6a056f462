"""Every reason for a drop and every cause of a quarantine in the source is on the page that explains them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.make_cli_reference import PAGE

SOURCE = Path(__file__).resolve().parents[2] / "src" / "gristmill"
NAME = re.compile(r"[a-z]+(?:_[a-z0-9]+)+")
BY_PLACE = ("Broken", "BadRecord", "Failure", "Decisions")
"""Classes that get a cause by position."""
HOLDERS = re.compile(r"(?:[a-z_]*_)?(?:reasons?|causes?)", re.IGNORECASE)
"""Variables that hold reasons or causes."""
OTHERS = {"finish_reason", "gram_repeats"}
"""Texts of the same shape that are a field or a part of a reason."""


def constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module assigns to names."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            texts = value.elts if isinstance(value, ast.Tuple) else [value]
            for name, text in zip(names, texts, strict=False):
                if isinstance(name, ast.Name) and isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[name.id] = text.value
    return found


def values(tree: ast.Module) -> Iterator[ast.expr]:
    """The expressions of a module that are a reason or a cause."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (keyword.value for keyword in node.keywords if keyword.arg in ("reason", "cause"))
            if getattr(node.func, "id", getattr(node.func, "attr", "")) in BY_PLACE:
                yield from node.args
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(HOLDERS.fullmatch(getattr(one, "id", getattr(one, "attr", ""))) for one in targets):
                yield node.value


def test_every_reason_and_cause_is_explained() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    everywhere = {name: text for tree in trees.values() for name, text in constants(tree).items()}
    found: dict[str, Path] = {}
    for path, tree in trees.items():
        named = {**everywhere, **constants(tree)}
        for value in values(tree):
            for node in ast.walk(value):
                text = node.value if isinstance(node, ast.Constant) else named.get(getattr(node, "id", ""), "")
                if isinstance(text, str) and NAME.fullmatch(text) and text not in OTHERS:
                    found[text] = path.relative_to(SOURCE)
    assert len(found) > 80
    pages = "".join((PAGE.parent / name).read_text(encoding="utf-8") for name in ("reasons.md", "stages.md"))
    assert {text: str(path) for text, path in found.items() if f"`{text}`" not in pages} == {}
