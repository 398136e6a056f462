"""Every package that an extra installs is used."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
MODULES = {"mecab-python3": "MeCab", "scikit-learn": "sklearn"}
"""Packages whose module is not called as they are."""
NOT_IMPORTED = {"unidic-lite": "the dictionary of MeCab"}


def _requirements() -> list[tuple[str, str]]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    found = [(extra, re.split(r"[\[<>=!~; ]", one)[0]) for extra, all_of in extras.items() for one in all_of]
    return [(extra, name) for extra, name in found if extra != "dev" and name != "gristmill"]


@pytest.mark.parametrize(("extra", "name"), _requirements())
def test_every_package_of_an_extra_is_used(extra: str, name: str) -> None:
    """Imported, or named as the module that is imported by its name."""
    module = MODULES.get(name, name.replace("-", "_"))
    used = re.search(rf"^ *(import|from) {module}\b|\"{module}\"", SOURCE, re.MULTILINE)
    assert used or name in NOT_IMPORTED, f"nothing uses {name} of the extra {extra}"
