"""The pages for people who come from other tools: their names exist, and both scripts do the same."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gristmill
from gristmill.recipes.names import NAMES

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
CLASS = re.compile(r"`([A-Z]\w+)")
HERE = ("backends.ray_data", "stages.text.filters", "stages.text.modifiers", "stages.function_decorators")


def rows(page: str) -> list[list[str]]:
    """The cells of the table that says which stage replaces which."""
    text = (HOW_TO / page).read_text(encoding="utf-8").partition("## Which stage replaces")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]


def is_here(name: str) -> bool:
    modules = [importlib.import_module(f"gristmill.{one}") for one in HERE]
    return name in NAMES or any(hasattr(one, name) for one in (gristmill, *modules))


@pytest.mark.parametrize("page", ["from-datatrove.md", "from-data-juicer.md"])
def test_what_replaces_a_step_exists(page: str) -> None:
    assert [name for row in rows(page) for name in CLASS.findall(row[1]) if not is_here(name)] == []
    assert len(rows(page)) > 15


def test_the_steps_of_datatrove_exist() -> None:
    spec = importlib.util.find_spec("datatrove")
    if spec is None or spec.origin is None:
        pytest.skip("needs datatrove")
    source = "".join(path.read_text(encoding="utf-8") for path in Path(spec.origin).parent.rglob("*.py"))
    named = [name for row in rows("from-datatrove.md") for name in CLASS.findall(row[0])]
    assert [name for name in named if not re.search(rf"^class {name}\b", source, re.MULTILINE)] == []


def test_the_script_for_nemo_curator_does_the_same_before_and_after(tmp_path: Path, sample_path: Path) -> None:
    text = (HOW_TO / "from-nemo-curator.md").read_text(encoding="utf-8")
    [before] = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    [after] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "crawl").mkdir()
    lines = gzip.decompress(sample_path.read_bytes()).splitlines(keepends=True)[:300]
    for place in range(2):
        (tmp_path / "crawl" / f"{place}.jsonl").write_bytes(b"".join(lines[place::2]))
    # The cluster is left out: what is shown here does not depend on it, and starting one takes long.
    local = before.replace("from nemo_curator.backends.ray_data import RayDataExecutor\n", "")
    local = local.replace("pipeline.run(RayDataExecutor())", "pipeline.run()")
    local = "\n".join(line for line in local.splitlines() if "client" not in line.lower())
    for name, script in (("before", local), ("after", after)):
        (tmp_path / f"{name}.py").write_text(script, encoding="utf-8")
        start = ["-m", "gristmill.compat"] if name == "before" else []
        run = subprocess.run(
            [sys.executable, *start, f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, f"{name}:\n{run.stdout}\n{run.stderr}"
    written = {
        name: sorted(
            json.dumps(json.loads(line), sort_keys=True)
            for path in (tmp_path / name).glob("*.jsonl")
            for line in path.read_text(encoding="utf-8").splitlines()
        )
        for name in ("before", "after")
    }
    assert 0 < len(written["after"]) < 300
    assert written["before"] == written["after"]
