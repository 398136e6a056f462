"""The Python on the pages runs, block after block, as a reader would type it, on the shipped sample.

Blocks marked `py` instead of `python` need what a test machine has not (a model hub, a cluster); they are not run.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECIPE = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_the_python_on_the_page_runs(page: Path, tmp_path: Path, sample_path: Path) -> None:
    lines = gzip.decompress(sample_path.read_bytes()).splitlines(keepends=True)
    for folder in ("input", "in", "crawl"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sample.jsonl").write_bytes(b"".join(lines[:300]))
    for recipe in RECIPE.findall(page.read_text(encoding="utf-8")):
        name = yaml.safe_load(recipe)["name"]
        (tmp_path / f"{name}.yaml").write_text(recipe, encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks(page)), encoding="utf-8")
    run = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{page.name}:\n{run.stdout}\n{run.stderr}"
