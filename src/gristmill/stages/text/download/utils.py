"""Functions for downloads and pages that scripts import from here."""

from __future__ import annotations

import re
import shutil
import unicodedata

from gristmill.errors import optional_module
from gristmill.stages.text.extraction.charset import decode_page, sniffed_encoding
from gristmill.stages.text.extraction.language import NAMES, language_code

_TAG = re.compile(r"<[a-zA-Z!/]")
_UNKNOWN = ("Unknown", "un", 0, 0.0)
_WORST_RANK = 1200


def check_s5cmd_installed() -> bool:
    """Whether the program `s5cmd` is on the path."""
    return shutil.which("s5cmd") is not None


def remove_control_characters(text: str) -> str:
    r"""The text without invisible characters: controls, format marks, and unassigned code points.

    Example:
        >>> remove_control_characters("a\x00b\u200bc")
        'abc'
    """
    if text.isprintable():
        return text
    return "".join(char for char in text if char.isprintable() or not unicodedata.category(char).startswith("C"))


def detect_language(text: str) -> list[tuple[str, str, int, float]]:
    """The likely languages of a text or page, most likely first: name, code, percent, score.

    A percentage says how close the language is among those listed. For a text that matches none, returns `("Unknown",
    "un", 0, 0.0)`.

    Example:
        >>> detect_language("The quick brown fox jumps over the lazy dog, and nobody minds it at all.")[0][:2]
        ('English', 'en')
    """
    detect = optional_module("resiliparse.parse.lang", "detect_language").detect_fast
    if _TAG.search(text, 0, 4096):
        extract = optional_module("resiliparse.extract.html2text", "detect_language").extract_plain_text
        text = extract(text, alt_texts=False, preserve_formatting=False)
    found = detect(text[:20_000], n_results=3) if language_code(text) else ()
    ranks = [(code, rank) for code, rank in found if code in NAMES and 0 < rank < _WORST_RANK]
    if not ranks:
        return [_UNKNOWN]
    nearness = [_WORST_RANK - rank for _, rank in ranks]
    shares = [round(100 * near / sum(nearness)) for near in nearness]
    return [
        (NAMES[code], code, share, float(near)) for (code, _), share, near in zip(ranks, shares, nearness, strict=True)
    ]


def lang_detect(text: str) -> str:
    """The English name of the language of a text or page in capital letters, `UNKNOWN` if it matches none.

    Example:
        >>> lang_detect("Portez ce vieux whisky au juge blond qui fume, et ne lui dites pas qui vous envoie.")
        'FRENCH'
    """
    return detect_language(text)[0][0].upper()


def decode_html(html_bytes: bytes) -> str | None:
    """The text of a page, in UTF-8 or in its declared or detected encoding; None for no bytes at all.

    Example:
        >>> decode_html("<p>Käse</p>".encode("utf-8"))
        '<p>Käse</p>'
    """
    return decode_page(html_bytes) if html_bytes else None


def try_decode_with_detected_encoding(html_bytes: bytes) -> str | None:
    """The text of a page in its detected encoding; None if the bytes do not fit it."""
    encoding = sniffed_encoding(html_bytes) if html_bytes else None
    try:
        return html_bytes.decode(encoding) if encoding else None
    except (UnicodeDecodeError, LookupError):
        return None
