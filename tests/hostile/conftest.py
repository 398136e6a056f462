"""Gathers what was tried from the tests; `make test-hostile` writes it to `docs/reference/hostile.md`.

A test says in the first line of its docstring what is tried and what happens. It counts as one attack per case, unless
it records how many it made: `record_property("tried", n)`.
"""

from __future__ import annotations

import time

import pytest

from tests.hostile.attempt import FULL
from tests.hostile.table import FOLDER, PAGE, WHAT, Table, first_line

TABLE = pytest.StashKey[Table]()
BEGAN = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Called in the controller and in each worker of xdist; reports of all workers come to the controller."""
    if FULL and not hasattr(config, "workerinput"):
        config.stash[TABLE], config.stash[BEGAN] = Table(), time.monotonic()
        config.pluginmanager.register(Gatherer(config))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Send the docstring along with the reports: the controller collects no tests of its own."""
    item.user_properties.append((WHAT, first_line(getattr(getattr(item, "function", None), "__doc__", ""))))


class Gatherer:
    """Adds every report to the table and writes the page, if every test of the folder took part."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if FOLDER.name in report.nodeid.split("::")[0].split("/"):
            self._config.stash[TABLE].add(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        table = self._config.stash[TABLE]
        if missing := table.missing(FOLDER):
            terminalreporter.write_line(
                f"{PAGE.name} is left as it was: {len(missing)} tests did not run ({missing[0]}, …)"
            )
            return
        PAGE.write_text(table.page(time.monotonic() - self._config.stash[BEGAN]), encoding="utf-8")
        terminalreporter.write_line(f"written: {PAGE.name}")
