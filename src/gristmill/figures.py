"""Sizes in bytes (``"1GB"`` is 10**9, ``"2GiB"`` is 2**31), shares, times and text as people write them."""

from __future__ import annotations

import re
from functools import partial

from gristmill.errors import UsageError

_UNITS = {
    "": 1,
    "b": 1,
    **{
        prefix + ending: base**power
        for power, prefix in enumerate("kmgtp", start=1)
        for ending, base in (("", 1000), ("b", 1000), ("ib", 1024), ("i", 1024))
    },
}
# Control characters except tab and newline, and marks that change the direction of the following text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
printable = partial(_UNPRINTABLE.sub, lambda match: match[0].encode("unicode_escape").decode())
"""Text from data, files or recipes made safe for a terminal: control characters are escaped."""
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(value: str | int, *, name: str = "size") -> int:
    """Parse a size and return its number of bytes.

    Args:
        value: An int (used unchanged) or text such as ``"128MB"`` (10**6 each) or ``"1.5 GiB"`` (2**30 each).
        name: Name of the argument in error messages.

    Raises:
        UsageError: The value is not a size or is negative.

    Example:
        >>> parse_size("1GB"), parse_size("2GiB"), parse_size(4096)
        (1000000000, 2147483648, 4096)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise UsageError(
                f"{name}={value} is negative. Pass a number of bytes, or text such as '128MB'.", value=value
            )
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    factor = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{name}={value!r} is not a size. Pass a whole number of bytes, or text with a unit: KB, MB, GB, TB "
            "(powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), such as '128MB' or '1GiB'.",
            value=value,
        )
    number = match.group(1)
    return int(number) * factor if number.isdigit() else int(float(number) * factor)


def format_size(size: int) -> str:
    """`size` bytes as a short text in powers of 1000.

    Example:
        >>> format_size(999), format_size(1_500_000)
        ('999 B', '1.5 MB')
    """
    if abs(size) < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("KB", "MB", "GB", "TB"):
        value /= 1000
        if abs(value) < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} PB"


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    Example:
        >>> plural(1, "document"), plural(2, "document")
        ('1 document', '2 documents')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def share(part: float | None) -> str:
    """A share in percent; never 0 % or 100 % unless it is exactly that.

    Example:
        >>> share(0.1234), share(1.0), share(0.99999), share(None)
        ('12.3 %', '100 %', '>99.9 %', '–')
    """
    if part is None:
        return "–"
    if part in (0.0, 1.0):
        return f"{part:.0%}".replace("%", " %")
    percent = 100 * part
    if percent < 0.1:
        return "<0.1 %"
    if percent > 99.9:
        return ">99.9 %"
    return f"{percent:.1f} %"


def duration(seconds: float | None) -> str:
    """A time span in the two largest units.

    Example:
        >>> duration(0.25), duration(65), duration(7322), duration(None)
        ('0.25 s', '1 min 5 s', '2 h 2 min', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{max(seconds, 0.0):.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def rate(per_second: float) -> str:
    """A rate of rows.

    Example:
        >>> rate(12345.6), rate(0.5)
        ('12,346/s', '0.5/s')
    """
    return f"{per_second:,.0f}/s" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}/s"
