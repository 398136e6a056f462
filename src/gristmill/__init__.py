"""Gristmill: text curation for training language models, from a laptop to a Ray cluster."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
