"""The installed command: the first thing of it to run, and the last.

Both ends of a short command cost as much as its work. At the beginning the process that workers come from starts before
this one imports anything else; at the end nothing is taken apart that the system takes back at once.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading


def main() -> None:
    """Run the command line, and end the process."""
    prepare_process()
    if sys.argv[1:2] == ["dedup"]:
        from gristmill.cli.early_start import start_for_dedup

        start_for_dedup(sys.argv[2:])
    from gristmill.cli.main import cli

    try:
        cli(prog_name="gristmill")
    except SystemExit as end:
        if isinstance(end.code, int):
            leave(end.code)
        raise


def prepare_process() -> None:
    """Make the process ready for a command, whatever it was started with."""
    # Imports make no garbage worth looking for, and looking takes a tenth of a small job.
    gc.disable()
    # A closed standard stream would be the next file that is opened, and that file get what is printed.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 (for the life of the process, as the two below)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # whatever the locale, nothing that is shown ends the command
        sys.stdout.reconfigure(errors="backslashreplace")


def leave(code: int) -> None:
    """End the process as the interpreter does, but for taking modules apart; returns where output is stuck."""
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does: pools are told first
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # the interpreter says so
    os._exit(code)
