"""Stages that add ids to documents, and split and join them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.modules.add_id import AddId
    from gristmill.stages.text.modules.joiner import DocumentJoiner
    from gristmill.stages.text.modules.splitter import DocumentSplitter

__all__ = ["AddId", "DocumentJoiner", "DocumentSplitter"]

__getattr__, __dir__ = lazy_names(
    __name__, {"add_id": ["AddId"], "joiner": ["DocumentJoiner"], "splitter": ["DocumentSplitter"]}
)
