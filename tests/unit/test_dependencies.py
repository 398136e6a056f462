"""The lock, the oldest versions and the rule for commit subjects: what the tools read and write."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools.commit_subjects import is_fine
from tools.lock import HEAD, LOCK, canonical, extras, pins, versions
from tools.oldest import oldest

ROOT = Path(__file__).resolve().parents[2]


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_the_lock_is_what_the_tool_writes() -> None:
    text = LOCK.read_text(encoding="utf-8")
    lines = text.removeprefix(HEAD).splitlines()
    assert text.startswith(HEAD)
    assert lines == [f"{name}=={version}" for name, version in sorted(pins(text).items())]


def test_the_lock_has_every_dependency_within_its_range() -> None:
    locked = pins(LOCK.read_text(encoding="utf-8"))
    for name, least in oldest(extras()).items():
        assert canonical(name) in locked, f"run 'make lock': {name} is not in constraints.txt"
        assert release(locked[canonical(name)]) >= release(least), name


def test_every_requirement_has_one_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds: dict[str, set[str]] = {}
    for extra in project["optional-dependencies"]:
        for name, version in oldest([extra]).items():
            bounds.setdefault(canonical(name), set()).add(version)
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}
    assert len(oldest([])) == len(project["dependencies"])


def test_oldest_refuses_unknown_extras() -> None:
    with pytest.raises(SystemExit, match="nosuch"):
        oldest(["nosuch"])


def test_versions_from_the_report_of_pip() -> None:
    found = [("Torch", "2.13.0+cpu"), ("gristmill", "0.1.0"), ("nvidia-cublas-cu12", "12.8"), ("PyYAML", "6.0.3")]
    report = {"install": [{"metadata": {"name": name, "version": version}} for name, version in found]}
    assert versions(report) == {"torch": "2.13.0", "pyyaml": "6.0.3"}


@pytest.mark.parametrize(
    ("subject", "fine"),
    [
        ("ledger: keep the order of drops", True),
        ("benchmarks, docs: both baselines of models", True),
        ("stages/text: read Markdown", True),
        ("fixup! ledger: keep the order", True),
        ("Keep the order of drops", False),
        ("ledger:keep the order", False),
        ("Ledger: keep the order", False),
        ("fixed a bug: really", False),
    ],
)
def test_subjects_of_commits(subject: str, fine: bool) -> None:
    assert is_fine(subject) is fine
