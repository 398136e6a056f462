"""Normalises URLs and titles, so that documents can be compared by them."""

from __future__ import annotations

import string

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.text.modifiers.url import UrlNormalizer

_DROPPED = "[" + "".join(f"\\{mark}" for mark in string.punctuation) + "\\pP\\pS]+"


def normal_urls(urls: pa.Array) -> pa.Array:
    """URLs as normalised by `UrlNormalizer`, without scheme and `www.`, which rarely identify a different page."""
    return UrlNormalizer(keep_scheme=False, keep_www=False).modify_column(urls)


def normal_titles(titles: pa.Array) -> pa.Array:
    """Titles in lower case, without punctuation and with single spaces; a title of punctuation alone is empty."""
    plain = pc.replace_substring_regex(pc.utf8_lower(pc.utf8_normalize(titles, "NFKC")), _DROPPED, " ")
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(plain, r"[\s\pZ]+", " "))
