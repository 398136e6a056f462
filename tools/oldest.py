"""Print the oldest supported version of every dependency as constraints: the lower bounds in pyproject.toml.

    python -m tools.oldest [EXTRA ...] > oldest.txt
    pip install -c oldest.txt .

Without extras these are the dependencies of the core. `make test-oldest` installs them and runs the tests.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?>=(?P<oldest>[\w.]+)")


def main() -> None:
    for name, version in oldest(sys.argv[1:]).items():
        print(f"{name}=={version}")


def oldest(extras: list[str]) -> dict[str, str]:
    """The lower bound of each requirement of the core and these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    if unknown := sorted(set(extras) - set(optional)):
        raise SystemExit(f"Unknown extras {unknown}; pyproject.toml has {sorted(optional)}.")
    found: dict[str, str] = {}
    for line in [*project["dependencies"], *(line for extra in extras for line in optional[extra])]:
        if line.startswith("gristmill["):
            continue
        match = REQUIREMENT.fullmatch(line)
        if match is None:
            raise SystemExit(f"{line!r} in pyproject.toml has no lower bound: write it as 'name>=1.2'.")
        found[match["name"]] = match["oldest"]
    return found


if __name__ == "__main__":
    main()
