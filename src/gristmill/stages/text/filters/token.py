"""The filter by number of tokens under the path of its own."""

from __future__ import annotations

from gristmill.stages.text.filters.tokens import TokenCountFilter

__all__ = ["TokenCountFilter"]
