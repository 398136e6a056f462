"""Decodes the bytes of a page: by declaration, by the page itself, or by detection.

The bytes take precedence over declarations: valid UTF-8 (that is not plain ASCII) is UTF-8 whatever was declared, and a
declaration that does not match the bytes is ignored.
"""

from __future__ import annotations

import codecs
import re

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META_BYTES = 4096
_META = re.compile(
    rb"<(?:meta|\?xml)\b[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE
)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_STATEFUL = ("iso2022_jp", "utf-16-le", "utf-16-be")
"""Encodings whose bytes may all be ASCII without being ASCII text."""
_STATEFUL_SIGNS = (b"\x1b", b"\x00")
"""Bytes that a page in such an encoding contains: escape sequences, or the other half of its `<`."""
_MAX_BAD = 0.002
"""Maximum share of broken characters in a page that is still decoded as declared."""


def decode_page(content: bytes, declared: str | None = None) -> str:
    """The text of a page. Never fails: undecodable bytes become U+FFFD.

    Args:
        content: The page as served.
        declared: The charset that the server declared, or its whole `Content-Type`.

    Example:
        >>> decode_page("<p>Käse für Bären</p>".encode("latin-1"), "text/html; charset=utf-8")
        '<p>Käse für Bären</p>'
    """
    for mark, encoding in _BOMS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace")
    if any(sign in content for sign in _STATEFUL_SIGNS):
        stateful = next((encoding for encoding in _labels(content, declared) if encoding in _STATEFUL), None)
        if stateful is not None and (text := _strict(content, stateful)) is not None and "<" in text[:_META_BYTES]:
            return text
    text = _strict(content, "utf-8")
    if text is not None:
        return text
    for encoding in _labels(content, declared):
        if encoding not in _STATEFUL and (text := _mostly(content, encoding)) is not None:
            return text
    sniffed = _sniffed(content)
    text = _strict(content, sniffed) if sniffed else None
    if text is not None:
        return text
    return _mostly(content, "utf-8") or content.decode(sniffed or "utf-8", "replace")


def sniffed_encoding(content: bytes) -> str | None:
    """The name of the encoding that the bytes look like; None if nothing fits."""
    return _sniffed(content)


def _labels(content: bytes, declared: str | None) -> list[str]:
    """The encodings that the server and the page declare."""
    return [encoding for encoding in (_of_header(declared), _of_meta(content)) if encoding]


def _of_header(declared: str | None) -> str | None:
    if not declared:
        return None
    found = _CHARSET.search(declared)
    return _known(found[1] if found else declared if "/" not in declared else "")


def _of_meta(content: bytes) -> str | None:
    found = _META.search(content, 0, _META_BYTES)
    encoding = _known(found[1].decode("ascii")) if found else None
    # Written in ASCII, so the page cannot be in UTF-16.
    return "utf-8" if encoding in ("utf-16-le", "utf-16-be") else encoding


def _known(label: str) -> str | None:
    """The codec for a web encoding label only: some of Python's codecs are unsafe for untrusted text."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    label = label.strip().lower()
    found: str | None = map_encoding_to_html5("iso-8859-1" if label == "latin-1" else label, fallback_utf8=False)
    # The browsers' names stand for larger sets than Python's.
    return {"shift_jis": "cp932", "euc_kr": "cp949", "gbk": "gb18030"}.get(found or "", found)


def _strict(content: bytes, encoding: str) -> str | None:
    try:
        return content.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        return None


def _mostly(content: bytes, encoding: str) -> str | None:
    """The text with U+FFFD in place of a few broken characters; None if there are many."""
    try:
        text = content.decode(encoding, "replace")
    except LookupError:
        return None
    return text if text.count("\ufffd") <= 1 + len(text) * _MAX_BAD else None


def _sniffed(content: bytes) -> str | None:
    from resiliparse.parse.encoding import detect_encoding

    found: str | None = detect_encoding(content)
    return {"shift_jis": "cp932", "euc_kr": "cp949", "gbk": "gb18030"}.get(found or "", found)
