"""What the tests of documentation share: the code on a page, in order, as one script on the shipped sample.

A block marked `python` or `sh` is run by a test as it stands. One marked `py` or `bash` needs what a test machine lacks
(a network, a cluster, an installation), and `console` shows a session with prompts and output.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SAMPLE = ROOT / "src" / "gristmill" / "recipes" / "sample" / "sample.jsonl.gz"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = ("sh", "bash", "console")
CHANGED = 1
"""The exit code of a comparison that finds differences."""

_RUN = """
def _gristmill(*arguments):
    import subprocess, sys
    code = subprocess.run([sys.executable, "-m", "gristmill", *arguments]).returncode
    if code and (arguments[0], code) != ("diff", 1):
        raise SystemExit(f"gristmill {' '.join(arguments)} ended with {code}")
"""


def blocks(page: Path, *kinds: str) -> list[tuple[str, str]]:
    """Kind and text of the blocks of these kinds, in order."""
    return [(kind, text) for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind in kinds]


def commands(kind: str, text: str) -> list[list[str]]:
    """The arguments of the lines of a block that call gristmill."""
    found = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = line.removeprefix("$ ") if kind == "console" else line
        words = shlex.split(re.sub(r"(^|\s)#.*", "", line))
        if "gristmill" in words[:1]:
            found.append(words[1:])
        elif kind == "sh" and words:
            raise ValueError(f"{line!r} does not call gristmill; mark the block as `bash`.")
    return found


def script_of(page: Path, *kinds: str) -> str:
    """The blocks of a page as one script."""
    parts = [_RUN]
    for kind, text in blocks(page, *kinds):
        if kind == "python":
            parts.append(text)
        else:
            lines = [f"    _gristmill({', '.join(map(repr, words))})" for words in commands(kind, text)]
            parts.append("\n".join(['if __name__ == "__main__":', *lines]))
    return "\n\n".join(parts)


def sample_lines(count: int | None = None) -> list[bytes]:
    """The first documents of the shipped sample."""
    return gzip.decompress(SAMPLE.read_bytes()).splitlines(keepends=True)[:count]


def run_page(page: Path, folder: Path, *kinds: str) -> str:
    """Run the blocks of a page in a folder that has the inputs that pages speak of; returns what was printed."""
    for name in ("input", "in", "crawl"):
        if not (folder / name).exists():
            (folder / name).mkdir()
            (folder / name / "sample.jsonl").write_bytes(b"".join(sample_lines(300)))
    for _, recipe in blocks(page, "yaml"):
        (folder / f"{yaml.safe_load(recipe)['name']}.yaml").write_text(recipe, encoding="utf-8")
    script = folder / "page.py"
    script.write_text(script_of(page, *kinds), encoding="utf-8")
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    run = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{page.name}:\n{run.stdout}\n{run.stderr}"
    return run.stdout
