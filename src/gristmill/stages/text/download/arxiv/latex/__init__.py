"""LaTeX to text, for the sources of papers."""

from __future__ import annotations

from gristmill.stages.text.download.arxiv.latex.convert import LatexText, latex_to_text
from gristmill.stages.text.download.arxiv.latex.macros import LatexError

__all__ = ["LatexError", "LatexText", "latex_to_text"]
