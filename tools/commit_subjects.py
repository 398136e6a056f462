"""Check that the subjects of a branch's commits begin with the part of the project they change: `ledger: …`.

    python tools/commit_subjects.py [BASE]

Looks at the commits since the branch left BASE (by default `origin/main`, or `main`). Without git or that branch there
is nothing to check.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUBJECT = re.compile(r"[a-z][\w/.-]*(, [a-z][\w/.-]*)*: \S.*")


def main() -> None:
    bases = sys.argv[1:] or ["origin/main", "main"]
    base = next((one for one in bases if git("rev-parse", "--verify", "--quiet", one)), None)
    if base is None:
        return
    subjects = git("log", "--no-merges", "--format=%s", f"{base}..HEAD").splitlines()
    if wrong := [subject for subject in subjects if not is_fine(subject)]:
        listed = "".join(f"  {subject}\n" for subject in wrong)
        raise SystemExit(
            f"These commits do not say which part of the project they change:\n{listed}"
            "Begin a subject with it, as in 'ledger: keep the order of drops' (git rebase -i, then reword)."
        )


def is_fine(subject: str) -> bool:
    """Whether a subject names its part; 'fixup!' and the like are folded away before they land."""
    return subject.startswith(("fixup! ", "squash! ", "amend! ", "Revert ")) or bool(SUBJECT.fullmatch(subject))


def git(*arguments: str) -> str:
    """What git prints; empty if it fails or is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    main()
