"""The commands on the page about trust work on what its Python made."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import blocks, commands

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "trust.md"
EXPECTED = {
    "quarantine partly": (0, "No quarantined records"),
    "quarantine partly --cause IndexError": (0, "No matching records"),
    "why clean sample#3": (0, "read as row 3 of partition sample"),
    "why clean sample#3 --diff": (0, "read as row 3 of partition sample"),
    "rethreshold clean --set WordCountFilter.min_words=40": (0, "fewer"),
    "show clean": (0, "WordCountFilter"),
    "diff clean strict": (1, "removed"),
    "verify clean": (0, "Verified"),
}


def test_the_page_from_top_to_bottom(tmp_path: Path, sample_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "input").mkdir()
    lines = gzip.decompress(sample_path.read_bytes()).splitlines(keepends=True)
    (tmp_path / "input" / "sample.jsonl").write_bytes(b"".join(lines[:300]))
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "parameter min_words changed from 20 to 30" in done.stdout
    assert "dropped by stage 'WordCountFilter': too_few_words (score" in done.stdout
    typed = [" ".join(words) for _, block in blocks(PAGE, "sh") for words in commands("sh", block)]
    assert sorted(typed) == sorted(EXPECTED)
    for command in typed:
        code, words = EXPECTED[command]
        ran = subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "gristmill"), *shlex.split(command)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == code, (command, ran.stdout, ran.stderr)
        assert words in ran.stdout, (command, ran.stdout)
