"""The workflows of GitHub: they parse, pin what they use, and call only targets that the Makefile has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))
PYTHONS = ["3.11", "3.12", "3.13"]


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = load(ROOT / ".github" / "workflows" / f"{name}.yml")["jobs"]
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


def commands(name: str) -> set[str]:
    """The make targets that a workflow calls, with the values of its matrix filled in."""
    found = set()
    for job in jobs(name).values():
        for run in (step["run"] for step in job["steps"] if "run" in step):
            for target in re.findall(r"\bmake ((?:[\w-]|\$\{\{ matrix\.versions \}\})+)", run):
                values = [one["versions"] for one in job.get("strategy", {}).get("matrix", {}).get("include", [])]
                found |= {re.sub(r"\$\{\{.*\}\}", value, target) for value in values or [""]}
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_to_a_commit_with_its_version(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert len(used) == sum("uses" in step for step in steps(path)) > 0
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_one_version_of_each_action() -> None:
    used = {one for path in WORKFLOWS for one in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))}
    assert len({action.partition("@")[0] for action in used}) == len(used)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_target_exists(path: Path) -> None:
    assert commands(path.stem)
    assert commands(path.stem) <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_and_jobs_end(path: Path) -> None:
    loaded = load(path)
    assert loaded["permissions"] == {"contents": "read"}
    for name, job in loaded["jobs"].items():
        assert "timeout-minutes" in job, name
        assert "latest" not in job["runs-on"], name


def test_the_supported_pythons_are_tested_and_built_for() -> None:
    assert jobs("ci")["quick"]["strategy"]["matrix"]["python"] == PYTHONS
    assert jobs("release")["wheel"]["strategy"]["matrix"]["python"] == PYTHONS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert classified == PYTHONS
    assert project["requires-python"] == ">=3.11,<3.14"


def test_what_runs_when() -> None:
    assert commands("ci") >= {"check", "test-core", "test-quick", "docs", "dist", "image"}
    nightly = {"services", "test-integration", "test-cluster", "bench-nightly", "test-oldest", "test-newest"}
    assert commands("nightly") >= nightly
    assert commands("release") >= {"dist", "docs"}
    when = load(ROOT / ".github" / "workflows" / "release.yml")[True]  # YAML reads the key 'on' as true
    assert when == {"push": {"tags": ["v*"]}}


def test_help_names_every_target_that_people_call() -> None:
    told = re.findall(r'@echo "make ([\w-]+)|; (test-[\w-]+):', MAKEFILE)
    named = {one or other for one, other in told}
    assert named - {"test"} <= TARGETS
    phony = re.search(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == TARGETS


def test_the_forms_for_issues_and_addresses() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert load(path)
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert load(ROOT / "CITATION.cff")["repository-code"] == urls["Source"]
    assert all(address.startswith((urls["Source"], urls["Documentation"])) for address in urls.values())


def test_one_version_everywhere() -> None:
    from gristmill import __version__

    assert load(ROOT / "CITATION.cff")["version"] == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\d\S*)", changelog, re.MULTILINE)[0] == __version__
