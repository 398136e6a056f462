"""Progress in a notebook: a small table below the cell that renews itself, and nothing that steers a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TextIO

from gristmill import notebook
from gristmill.observe.display import Display, last_line, line_of
from gristmill.observe.events import Event, Notice, RunFinished, RunStarted

REFRESH_S = 0.5
"""A browser draws each picture anew, and a saved notebook holds the last one."""
_MAX_NOTICES = 20


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, and not only one that has imported it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay(Display):
    """A bar, the figures of the run and the stages that have dropped something, as HTML that is sent to the page.

    A page that shows no HTML gets the figures as text.
    """

    def __init__(self, stream: TextIO, interval: float, now: Callable[[], float]) -> None:
        super().__init__(stream, interval, now)
        self._handle: Any = None
        self._notices: list[str] = []

    def _show(self, event: Event) -> None:
        from IPython.display import display

        if isinstance(event, Notice):
            self._notices = [*self._notices, event.message][-_MAX_NOTICES:]
        if isinstance(event, RunStarted):
            self._handle = display(self._picture(), display_id=True, raw=True)
        elif self._handle is not None and isinstance(event, RunFinished):
            # What the stages dropped is shown by the result.
            self._handle.update(self._bundle(last_line(self._progress)), raw=True)
            self._handle, self._notices = None, []
        elif self._handle is not None and self._now() - self._drawn >= REFRESH_S:
            self._drawn = self._now()
            self._handle.update(self._picture(), raw=True)

    def _picture(self) -> dict[str, str]:
        progress = self._progress
        done = progress.share_done
        bar = f'<progress max="1"{"" if done is None else f" value={done:.3f}"} aria-label="Progress"></progress> '
        rows = [
            (name, count.rows_in, count.rows_out, sum(count.dropped.values()), sum(count.quarantined.values()))
            for name, count in progress.stages.items()
            if count.dropped or count.quarantined
        ]
        names = ("stage", "rows in", "kept", "dropped", "quarantined")
        stages = notebook.table(names, rows[: notebook.MAX_ROWS]) if rows else ""
        return self._bundle(line_of(progress), before=bar, after=stages)

    def _bundle(self, line: str, *, before: str = "", after: str = "") -> dict[str, str]:
        notices = "".join(f"<p>{notebook.escaped(notice, 2000)}</p>" for notice in self._notices)
        shown = f"<div>{notices}{before}<span>{notebook.escaped(line, 2000)}</span>{after}</div>"
        return {"text/html": shown, "text/plain": "\n".join([*self._notices, line])}
