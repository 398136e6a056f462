"""The report: a page that shows what a run did, built from its record alone."""

from __future__ import annotations

from gristmill.report.page import write_comparison, write_report

__all__ = ["write_comparison", "write_report"]
