"""What users read is free of the stilted phrases that `tools/wording.py` knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.wording import PROSE, ROOT, SOURCE, files, find, hits_in_module, hits_in_prose, phrases


def test_no_text_has_a_stilted_phrase() -> None:
    # On a failure: python tools/wording.py lists the places with suggestions.
    assert list(map(str, find())) == []


def test_all_texts_are_searched() -> None:
    assert ROOT / "docs/reference/cli.md" in files(ROOT, *PROSE)
    assert ROOT / "src/gristmill/report/assets/report.js" in files(ROOT, *PROSE)
    assert ROOT / "src/gristmill/cli/run.py" in files(ROOT, *SOURCE)
    assert ROOT / "src/gristmill/kernels/shingles.py" in files(ROOT, *SOURCE)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Show at most so many documents.", ["so many"]),
        ("It is no stage.", ["is no stage"]),
        ("There is no stage.", []),
        ("It is no longer there, is no slower, and gives up.", []),
        ("The same command takes the run up where it stopped.", ["takes the run up where"]),
        ("The function gives\n    a number.", ["gives"]),
        ("An interrupted run\n  goes on   where it was.", ["goes on where"]),
        ("Nobody has read it.", ["Nobody"]),
    ],
)
def test_phrases(text: str, found: list[str]) -> None:
    assert [phrase for _, phrase, _ in phrases(text)] == found


def test_hits_name_the_line_and_respect_exceptions(tmp_path: Path) -> None:
    module = tmp_path / "one.py"
    module.write_text(
        '"""Fine.\n\nIt gives a value.\n\n>>> print("nobody")\n"""\n'
        'a = f"{1} is no {2} stage, this is no stage."\n'
        'b = "gives"  # wording: a name of the format\n'
        "c = 1  # nobody\n",
        encoding="utf-8",
    )
    assert [(hit.line, hit.phrase) for hit in hits_in_module(module)] == [(3, "gives"), (7, "is no stage")]
    page = tmp_path / "page.md"
    page.write_text("It\ngives. <!-- wording: a quotation -->\nNobody.\n", encoding="utf-8")
    assert [(hit.line, hit.phrase) for hit in hits_in_prose(page)] == [(3, "Nobody")]
