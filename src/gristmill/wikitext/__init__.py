"""Wikitext, the markup of Wikipedia and other MediaWiki sites, as plain text."""

from __future__ import annotations

from gristmill.wikitext.convert import Tables, to_text
from gristmill.wikitext.pages import PageKind, page_kind

__all__ = ["PageKind", "Tables", "page_kind", "to_text"]
