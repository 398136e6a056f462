"""The entry point of the installed command: startup and exit.

For a short command, startup and exit take as long as the work itself. The fork server therefore starts before this
process imports anything else, and at exit nothing is torn down that the operating system reclaims anyway.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading


def main() -> None:
    """Run the command line and exit the process."""
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
    """Prepare the process for a command, regardless of how it was started."""
    # Threads of OpenBLAS otherwise spin for a tenth of a second each after numpy is imported, before they sleep.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")
    # Imports create little garbage, and collecting it takes a tenth of the time of a small job.
    gc.disable()
    # The next opened file would take the descriptor of a closed standard stream, and receive what is printed.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 (for the life of the process, as the two below)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # unprintable characters must not end the command in any locale
        sys.stdout.reconfigure(errors="backslashreplace")


def leave(code: int) -> None:
    """End the process without tearing down modules. Returns only if output cannot be flushed."""
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does: pools are told first
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # the interpreter says so
    os._exit(code)
