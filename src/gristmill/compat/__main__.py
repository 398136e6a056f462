"""`python -m gristmill.compat script.py [arguments]`: run a script that imports `nemo_curator`, unchanged."""

from __future__ import annotations

import os
import runpy
import sys

_USAGE = """Usage: python -m gristmill.compat [--force] script.py [arguments]
       python -m gristmill.compat [--force] -m module [arguments]

Run a script written for NeMo Curator on Gristmill. --force: even if NeMo Curator is installed.
"""


def main(arguments: list[str]) -> None:
    """Run the script or module as `__main__`, as Python itself would."""
    force = arguments[:1] == ["--force"]
    rest = arguments[force:]
    is_module = rest[:1] == ["-m"]
    rest = rest[is_module:]
    if not rest or rest[0].startswith("-"):
        asked_for = rest[:1] in (["-h"], ["--help"])
        (sys.stdout if asked_for else sys.stderr).write(_USAGE)
        raise SystemExit(0 if asked_for else 2)
    from gristmill.compat.finder import install
    from gristmill.errors import GristmillError

    try:
        install(force=force)
    except GristmillError as error:
        raise SystemExit(f"error: {error}") from None
    sys.argv = rest
    if is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif not os.path.exists(rest[0]):
        raise SystemExit(f"error: {rest[0]}: there is no such file.")
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
