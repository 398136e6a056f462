"""Statements about speed that hold on any machine, slow or fast, idle or busy.

Processor time counts, which other programs hardly lengthen; it is compared with that of other work in the same moment,
never with a number of seconds alone; and it is measured again while it is too long, because whatever disturbs a
measurement only adds to it: work that is slow by itself is slow every time.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 6
CONSTANT_S = 0.5
"""What a call may take whatever it is given: far less than a quadratic pass over a hundred thousand characters."""


def processor_seconds(work: Callable[[], object]) -> float:
    """Processor time that a call takes in this process, in all threads."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def processor_seconds_of(command: list[str]) -> float:
    """Processor time of a program from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def slowness() -> float:
    """How many times longer than on an idle machine a program takes to start and to end, in this moment; at least 1."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    return max(1.0, (time.monotonic() - begun) / 0.15)


def assert_grows_with_length(work: Callable[[Any], object], short: Any, long: Any) -> None:
    """Fails if `long`, four times as long as `short`, takes more than ten times the time: a quadratic pass takes 16."""
    short_s = long_s = float("inf")
    for _ in range(ROUNDS):
        short_s = min(short_s, processor_seconds(lambda: work(short)))
        long_s = min(long_s, processor_seconds(lambda: work(long)))
        if long_s < 10 * short_s + CONSTANT_S:
            return
    raise AssertionError(f"four times the length took {long_s / short_s:.1f} times as long: {long_s:.2f} s")


def assert_at_most(times: float, program: list[str], yardstick: list[str]) -> None:
    """Fails if a program takes more than `times` the CPU time of another one."""
    program_s = yardstick_s = float("inf")
    for _ in range(ROUNDS):
        program_s = min(program_s, processor_seconds_of(program))
        yardstick_s = min(yardstick_s, processor_seconds_of(yardstick))
        if program_s < times * yardstick_s:
            return
    raise AssertionError(f"{program} took {program_s / yardstick_s:.1f} times as long as {yardstick}, not {times}")
