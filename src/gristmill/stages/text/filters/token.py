"""Alias module of the filter by number of tokens."""

from __future__ import annotations

from gristmill.stages.text.filters.tokens import TokenCountFilter

__all__ = ["TokenCountFilter"]
