"""Numbers as people read them."""

from __future__ import annotations


def count(number: int) -> str:
    """A whole number with separators.

    Example:
        >>> count(1234567)
        '1,234,567'
    """
    return f"{number:,}"


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
