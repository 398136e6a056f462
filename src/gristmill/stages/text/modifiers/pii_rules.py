"""Precise rules for addresses, phone numbers, bank accounts and cards, on the bytes of a document.

Each rule looks at one candidate that the scan found and returns the spans to redact. All expressions are bounded, so
none can cause catastrophic backtracking.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

Span = tuple[int, int]

# Domains do not end like this, but names of files with an "@" do: logo@2x.png.
_FILE_ENDINGS = frozenset(
    b"png jpg jpeg gif svg webp bmp ico tif tiff css js json html htm php xml pdf yaml yml txt mp3 mp4".split()
)

# Letters of Latin scripts outside ASCII (U+00C0 to U+024F) as two bytes.
_ATOM = rb"(?:[A-Za-z0-9_%+'\-]|[\xc3-\xc9][\x80-\xbf])"
_EMAIL = re.compile(
    rb"(?:[A-Za-z0-9_]|[\xc3-\xc9][\x80-\xbf])" + _ATOM + rb"{0,63}(?:\." + _ATOM + rb"{1,63}){0,20}"
    rb"@((?:[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?\.){1,20}([A-Za-z]{2,24}|xn--[A-Za-z0-9\-]{2,59}))"
    rb"(?!-?[A-Za-z0-9])"
)


def emails(text: bytes, start: int, end: int) -> Iterator[Span]:
    """E-mail addresses with a domain that ends in letters and not like a file."""
    match = _EMAIL.search(text, start, min(len(text), end + 2))
    if match and match[2].lower() not in _FILE_ENDINGS:
        yield match.start(), match.end()


def ibans(text: bytes, start: int, end: int) -> Iterator[Span]:
    """Bank accounts, which the scan has already checked."""
    yield start, end


_CARD = re.compile(
    rb"(?<![0-9A-Za-z])(?<![0-9][.\-])(?<![0-9]{4} )"
    rb"(?:[2-6][0-9]{3}([ \-])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?:\1[0-9]{3})?"
    rb"|3[0-9]{3}([ \-])[0-9]{6}\2[0-9]{4,5}|[2-6][0-9]{13,18})"
    rb"(?![0-9A-Za-z])(?![.\-][0-9])"
)


def credit_cards(text: bytes, start: int, end: int) -> Iterator[Span]:
    """Card numbers of the major networks, grouped or without spaces, that pass the Luhn check (ISO/IEC 7812)."""
    for match in _CARD.finditer(text, start, min(len(text), end + 2)):
        digits = [byte - 48 for byte in match[0] if 48 <= byte <= 57]
        if _is_issued(digits) and _passes_luhn(digits):
            yield match.span()


def _is_issued(digits: list[int]) -> bool:
    """Whether a network issues numbers of this length with this prefix."""
    size = len(digits)
    head = int("".join(map(str, digits[:6])))
    two, three, four = head // 10_000, head // 1_000, head // 100
    if two in (34, 37):
        return size == 15
    if two in (36, 38, 39) or 300 <= three <= 305:
        return size == 14
    if digits[0] == 4:
        return size in (16, 19)
    if 51 <= two <= 55 or 2221 <= four <= 2720:
        return size == 16
    if 3528 <= four <= 3589 or four == 6011 or two == 65 or 644 <= three <= 649 or two == 62:
        return 16 <= size <= 19
    return two in (50, 56, 57, 58, 60, 61, 63, 67) and 16 <= size <= 19


def _passes_luhn(digits: list[int]) -> bool:
    total = sum(digits[-1::-2])
    for digit in digits[-2::-2]:
        total += digit * 2 - 9 * (digit > 4)
    return total % 10 == 0 and len(set(digits)) > 1


_OCTET = rb"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(
    rb"(?<![0-9A-Za-z_])(?<![0-9A-Za-z][.\-])(?:" + _OCTET + rb"\.){3}" + _OCTET + rb"(?![0-9])(?![.\-]?[0-9A-Za-z_])"
)
_NUMBERED = re.compile(
    rb"(?:version|vers|ver|v|release|rev|revision|build|firmware|update|patch|section|sect|sec|chapter|clause|article|"
    rb"paragraph|para|figure|fig|table|appendix|step|rule|item|oid|\xc2\xa7)s?\.?[ :=]{0,2}\Z|[A-Za-z]/\Z",
    re.IGNORECASE,
)


_TITLE = re.compile(rb"(?:\.(?: |\xc2\xa0)| {1,3})[A-Z\x80-\xff]")


def ipv4_addresses(text: bytes, start: int, end: int, *, only_public: bool = False) -> Iterator[Span]:
    """Four numbers up to 255, unless preceding words or their position suggest a version or a section."""
    if text.count(b".", start, end) < 3:
        return
    for match in _IPV4.finditer(text, start, min(len(text), end + 2)):
        before = text[max(0, match.start() - 16) : match.start()]
        if match[0].startswith(b"0.") or _NUMBERED.search(before) or _is_heading(match[0], text, match.start()):
            continue
        if not only_public or ipaddress.IPv4Address(match[0].decode()).is_global:
            yield match.span()


def _is_heading(word: bytes, text: bytes, start: int) -> bool:
    """Whether four small numbers at the start of a line number a section rather than a host."""
    if not _TITLE.match(text, start + len(word)):
        return False
    line = text[max(0, start - 16) : start].rpartition(b"\n")[2]
    return not line.strip(b" #*>") and not word.startswith(b"10.") and all(int(part) <= 40 for part in word.split(b"."))


def ipv6_addresses(text: bytes, start: int, end: int, *, only_public: bool = False) -> Iterator[Span]:
    """Addresses of eight groups, or shortened ones of a range in use; not scopes of program code (`a::b`)."""
    while text[end - 1] == 46 or (text[end - 1] == 58 and text[end - 2 : end] != b"::"):
        end -= 1
    if text[max(0, start - 1) : start].isalnum() or text[end : end + 1].isalnum() or text[end : end + 1] == b":":
        return
    word = text[start:end].decode()
    try:
        address = ipaddress.IPv6Address(word)
    except ValueError:
        return
    in_use = address.packed[0] >> 5 == 1 or address.packed[0] in (0xFC, 0xFD, 0xFE, 0xFF)
    groups = sum(1 for group in word.split(":") if group)
    if not any(char.isdigit() for char in word) or not (groups >= 4 or (in_use and len(word.split(":")[0]) == 4)):
        return
    if not only_public or address.is_global:
        yield start, end


_BETWEEN = rb"\)?(?:[ .\-/]|\xc2\xa0|\xe2\x80[\x91\x93])?\(?"
_EXTENSION = rb"(?:[ ,]{0,2}(?:ext\.?|x) ?[0-9]{1,5})?"
_FREE = rb"(?<![0-9A-Za-z+])(?<![0-9][.\-/])"
_ALONE = _FREE + rb"(?<![0-9] )"
_CLOSED = rb"(?![0-9])(?![.\-/][0-9])"
_ENDED = rb"(?![0-9])(?![ .\-/][0-9])"
# (555) 234-5678, 555-234-5678, 1.555.234.5678
_NORTH_AMERICAN = re.compile(
    _FREE + rb"(?:1[ .\-])?(?:\([2-9][0-9]{2}\) ?[2-9][0-9]{2}[ .\-]|[2-9][0-9]{2}([.\-])[2-9][0-9]{2}\1)[0-9]{4}"
    + _CLOSED + _EXTENSION, re.IGNORECASE,
)  # fmt: skip
_LONGEST_RUN = 200
_PHONES = (
    # +49 (0)30 1234567
    re.compile(
        rb"(?<![0-9A-Za-z+])\+ ?\(?[1-9](?:" + _BETWEEN + rb"[0-9]){7,14}" + _CLOSED + _EXTENSION, re.IGNORECASE
    ),
    # 0049 30 1234567
    re.compile(_ALONE + rb"00[1-9][0-9]{0,2}[ .\-/](?:\(?[0-9]" + _BETWEEN + rb"){6,12}[0-9]" + _CLOSED),
    # 01 23 45 67 89
    re.compile(_ALONE + rb"0[1-9]([ .\-])[0-9]{2}(?:\1[0-9]{2}){3}" + _ENDED),
    # (030) 123 4567
    re.compile(_ALONE + rb"\(0[1-9][0-9]{0,4}\) ?[0-9]{2,4}(?:[ \-]?[0-9]{2,5}){1,2}" + _ENDED),
    # 020 7946 0958, 0171-1234567, 0471/234567
    re.compile(_ALONE + rb"0[1-9][0-9]{1,3}[ /\-][0-9]{3,4}[ \-]?[0-9]{3,4}" + _ENDED),
)  # fmt: skip
_ANNOUNCED = re.compile(
    rb"\b(?:tel|telephone|telefon|telefono|telef\xc3\xb3no|t\xc3\xa9l|t\xc3\xa9l\xc3\xa9phone|phone|ph|mobile|mobil|mob|"
    rb"cell|cellphone|fax|call|dial|whatsapp|sms|handy|hotline)\.?"
    rb"(?: ?(?:number|no\.?|nr\.?|us|at|on|me|is)){0,3}[ :#]{0,3}\(?\Z",
    re.IGNORECASE,
)
_ANNOUNCED_NUMBER = re.compile(rb"\(?[0-9](?:" + _BETWEEN + rb"[0-9]){6,14}" + _ENDED + _EXTENSION, re.IGNORECASE)
_NO_PHONE = re.compile(
    rb"(?:19|20)[0-9]{2}([.\-/])[01]?[0-9]\1[0-3]?[0-9]"
    rb"|[0-3]?[0-9]([.\-/ ])[0-3]?[0-9]\2(?:19|20)[0-9]{2}"
    rb"|97[89][ \-]?[0-9](?:[ \-]?[0-9]){9}"
    rb"|[0-9]{1,3}(?:\.[0-9]{3}){2,}"
    rb"|(?:[0-9]{1,3}\.){3}[0-9]{1,3}"
)


def phones(text: bytes, start: int, end: int) -> Iterator[Span]:
    """Phone numbers: international, North American, in common European forms, or introduced by a word like "tel"."""
    first = start
    while first > 0 and first > start - 3 and text[first - 1 : first] in (b"+", b"(", b" "):
        first -= 1
    last = min(len(text), end + 9)
    before = text[max(0, start - 28) : start]
    if _ANNOUNCED.search(before):
        match = _ANNOUNCED_NUMBER.match(text, start - before.endswith(b"("), last)
        if match and not _NO_PHONE.fullmatch(match[0].strip(b"()")):
            yield match.span()
            start = first = match.end()
    # A longer run of digits is a table; only the North American form is distinct enough to be looked for in it.
    patterns = (_NORTH_AMERICAN,) if end - start > _LONGEST_RUN else (_NORTH_AMERICAN, *_PHONES)
    for pattern in patterns:
        for match in pattern.finditer(text, first, last):
            if not _NO_PHONE.fullmatch(match[0]):
                yield match.span()
