"""Reads an archive of arXiv paper by paper."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

from gristmill.errors import UsageError
from gristmill.stages.text.download.arxiv.papers import papers
from gristmill.stages.text.download.base.iterator import DocumentIterator
from gristmill.storage.row_formats import Broken

_log = logging.getLogger(__name__)


class ArxivIterator(DocumentIterator):
    """Reads the papers of an arXiv tar file: one record per paper, with all its LaTeX files.

    Anything other than the LaTeX source of a paper (a PDF, a damaged or too large source, a link or a path that leads
    out of the archive) is quarantined with its cause. Nothing is ever written to disk.

    Args:
        log_frequency: Log progress after this many papers.
        extract_tmp_dir: Accepted for compatibility and ignored, because nothing is extracted.

    Example:
        >>> ArxivIterator().output_columns()
        ['id', 'source_id', 'content']
    """

    def __init__(self, log_frequency: int = 1000, extract_tmp_dir: str | None = None) -> None:
        if isinstance(log_frequency, bool) or not isinstance(log_frequency, int) or log_frequency < 1:
            raise UsageError(f"ArxivIterator(log_frequency={log_frequency!r}): must be a whole number, at least 1.")
        self.log_frequency = log_frequency
        self.extract_tmp_dir = extract_tmp_dir

    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | Broken]:
        """The papers in order: `id`, the name of the archive as `source_id`, and the files as `content`."""
        archive = os.path.basename(file_path)
        count = 0
        with open(file_path, "rb") as stream:
            for paper in papers(stream):
                if isinstance(paper, Broken):
                    yield paper
                    continue
                count += 1
                if count % self.log_frequency == 0:
                    _log.info("%s: %d papers", archive, count)
                content = [{"name": name, "text": text} for name, text in paper.files.items()]
                yield {"id": paper.id, "source_id": archive, "content": content}

    def output_columns(self) -> list[str]:
        """The keys of the records."""
        return ["id", "source_id", "content"]
