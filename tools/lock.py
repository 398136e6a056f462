"""Write constraints.txt: one version of every package that gristmill and its extras bring, resolved by pip.

    python -m tools.lock                    # keep the present versions, add and remove what pyproject.toml asks for
    python -m tools.lock --upgrade          # the newest versions that go together
    python -m tools.lock --upgrade ray      # only these packages

pip resolves in an environment of its own and installs nothing. Hashes are left out: pip checks them only if every
requirement has one, and an editable install of this package cannot have any.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "constraints.txt"
HEAD = """\
# The versions that the tests run with: `make` installs with these; the ranges in pyproject.toml are wider.
# Written by `python -m tools.lock`; `python -m tools.lock --upgrade [PACKAGE ...]` takes newer versions.
"""
UNLOCKED = {"vllm"}
"""Extras for GPUs only, which ask for a torch of their own."""
PLATFORM = re.compile(r"nvidia-|cuda-|triton$")
"""What torch brings on machines with a GPU only, in versions that it pins itself."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write constraints.txt.")
    parser.add_argument("--upgrade", nargs="*", metavar="PACKAGE", help="take newer versions, of all packages or these")
    parser.add_argument("--output", type=Path, default=LOCK)
    options = parser.parse_args()
    kept = pins(LOCK.read_text(encoding="utf-8"))
    if options.upgrade is not None:
        gone = {canonical(name) for name in options.upgrade or kept}
        kept = {name: version for name, version in kept.items() if name not in gone}
    found = resolved(kept)
    options.output.write_text(HEAD + "".join(f"{name}=={found[name]}\n" for name in sorted(found)), encoding="utf-8")
    print(f"{len(found)} packages in {options.output}")


def canonical(name: str) -> str:
    """The spelling of a package's name in which all spellings are equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


NOT_LOCKED = ("vllm",)
"""Extras for GPUs, which bring their own build of torch and are not tested."""


def pins(text: str) -> dict[str, str]:
    """Package and version of each line of a constraints file."""
    found = re.findall(r"^([\w.-]+)==([^\s;#]+)", text, re.MULTILINE)
    return {canonical(name): version for name, version in found}


def extras() -> list[str]:
    """The extras of the package that are locked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [extra for extra in project["optional-dependencies"] if extra not in NOT_LOCKED]


def resolved(kept: dict[str, str]) -> dict[str, str]:
    """What pip would install into an empty environment, with the versions to keep."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(f"{folder}/env", with_pip=True)
        constraints, report = Path(folder, "kept.txt"), Path(folder, "report.json")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in kept.items()), encoding="utf-8")
        command = [
            *(f"{folder}/env/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
            *("--dry-run", "--ignore-installed", "--report", str(report), "-c", str(constraints)),
            f"{ROOT}[{','.join(extras())}]",
        ]
        subprocess.run(command, check=True)
        return versions(json.loads(report.read_text(encoding="utf-8")))


def versions(report: dict[str, Any]) -> dict[str, str]:
    """Package and version of each entry of pip's report, without this package and without builds (2.13.0+cpu)."""
    found = {}
    for entry in report["install"]:
        name, version = canonical(entry["metadata"]["name"]), entry["metadata"]["version"]
        if name != "gristmill" and not PLATFORM.match(name):
            found[name] = version.partition("+")[0]
    return found


if __name__ == "__main__":
    main()
