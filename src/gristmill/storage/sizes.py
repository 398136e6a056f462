"""Sizes in bytes as people write them: ``"1GB"`` is 10**9, ``"2GiB"`` is 2**31."""

from __future__ import annotations

import re

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
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(value: str | int, *, name: str = "size") -> int:
    """The number of bytes that `value` stands for.

    Args:
        value: An int (taken as it is) or text such as ``"128MB"`` (10**6 each) or ``"1.5 GiB"`` (2**30 each).
        name: How error messages call the argument.

    Raises:
        UsageError: The value is not a size or is negative.

    Example:
        >>> parse_size("1GB"), parse_size("2GiB"), parse_size(4096)
        (1000000000, 2147483648, 4096)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise UsageError(
                f"{name}={value} is negative. Give a number of bytes, or text such as '128MB'.", value=value
            )
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    factor = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{name}={value!r} is not a size. Give a whole number of bytes, or text with a unit: "
            "KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), such as '128MB' or '1GiB'.",
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
