"""Finds candidates for personal data in a column, the few places worth a closer look, in one pass.

Ordinary text costs one table lookup per byte. Every candidate is bounded or advances the pass, so that hostile text
stays linear.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import inlined, kernel
from gristmill.kernels.text_column import Bytes, Integers

AT_SIGN = 0
NUMBER = 1
COLONS = 2
ACCOUNT = 3

_DIGIT, _LETTER, _HEX, _UPPER, _LOCAL, _JOINT = 1, 2, 4, 8, 16, 32

# Lengths of the accounts of each country, from the registry that ISO 13616 names.
_IBAN_SIZES = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28,
    "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20,
    "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25,
    "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27,
    "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip

LOCAL_PART = 64
DOMAIN = 255
LONGEST_NUMBER = 19
LONGEST_IBAN = 34


def _classes() -> npt.NDArray[np.uint8]:
    table = np.zeros(256, np.uint8)
    table[list(b"0123456789")] |= _DIGIT | _HEX | _LOCAL
    table[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")] |= _LETTER | _UPPER | _LOCAL
    table[list(b"abcdefghijklmnopqrstuvwxyz")] |= _LETTER | _LOCAL
    table[list(b"abcdefABCDEF")] |= _HEX
    table[list(b"._%+'-")] |= _LOCAL
    table[128:] |= _LOCAL
    # What may stand between the digits of one number; the last six bytes are of no-break space and of two hyphens.
    table[list(b" -./()\xc2\xa0\xe2\x80\x91\x93")] |= _JOINT
    table.flags.writeable = False
    return table


def _account_sizes() -> npt.NDArray[np.uint8]:
    table = np.zeros(26 * 26, np.uint8)
    for country, size in _IBAN_SIZES.items():
        table[(ord(country[0]) - 65) * 26 + ord(country[1]) - 65] = size
    table.flags.writeable = False
    return table


CLASSES = _classes()
ACCOUNT_SIZES = _account_sizes()


@inlined
def _account_end(data: Bytes, start: int, end: int, classes: Bytes, sizes: Bytes) -> int:
    """The end of the bank account at `start`, if it has its country's length and the check sum of ISO 7064; else 0."""
    size = int(sizes[(int(data[start]) - 65) * 26 + int(data[start + 1]) - 65])
    values = np.empty(LONGEST_IBAN, np.int64)
    taken = 0
    at = start
    while taken < size and at < end:
        byte = int(data[at])
        if classes[byte] & _DIGIT:
            values[taken] = byte - 48
            taken += 1
        elif classes[byte] & _UPPER:
            values[taken] = byte - 55
            taken += 1
        elif byte == 0xC2 and at + 1 < end and data[at + 1] == 0xA0:
            at += 1
        elif byte != 32 or data[at - 1] == 32:
            return 0
        at += 1
    if taken < size or size == 0 or (at < end and classes[data[at]] & (_DIGIT | _LETTER)):
        return 0
    remainder = 0
    for k in range(size):
        value = values[(k + 4) % size]
        remainder = (remainder * (100 if value > 9 else 10) + value) % 97
    return at if remainder == 1 else 0


@kernel
def find_candidates(
    data: Bytes,
    offsets: Integers,
    classes: Bytes,
    sizes: Bytes,
    kinds: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> int:
    """Fill `kinds`, `starts` and `ends` with the candidates in order; return how many there are.

    If there are more than fit, the rest is only counted: call again with room for all.
    """
    room = len(kinds)
    found = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        i = begin
        number_end = colons_end = begin
        while i < end:
            byte = data[i]
            kind = -1
            first = last = i
            if byte == 64:
                first = i
                while first > begin and i - first < LOCAL_PART and classes[data[first - 1]] & _LOCAL:
                    first -= 1
                last = i + 1
                dots = 0
                while last < end and last - i <= DOMAIN:
                    after = data[last]
                    if after == 46:
                        dots += 1
                    elif after != 45 and not classes[after] & (_DIGIT | _LETTER):
                        break
                    last += 1
                if dots and first < i:
                    kind = AT_SIGN
            elif byte == 58 and i >= colons_end:
                while first > begin and i - first < 5 and classes[data[first - 1]] & _HEX:
                    first -= 1
                colons = 0
                while last < end and last - i < 64:
                    after = data[last]
                    if after == 58:
                        colons += 1
                    elif after != 46 and not classes[after] & _HEX:
                        break
                    last += 1
                colons_end = last
                if colons > 1:
                    kind = COLONS
            elif classes[byte] & _DIGIT and i >= number_end:
                digits = dots = run = longest = gap = 0
                j = i
                while j < end:
                    after = data[j]
                    if classes[after] & _DIGIT:
                        digits += 1
                        run += 1
                        gap = 0
                        longest = max(longest, run)
                        last = j + 1
                    elif classes[after] & _JOINT and gap < 4:
                        dots += after == 46
                        gap += 1
                        run = 0
                    else:
                        break
                    j += 1
                number_end = last
                if (digits > 6 or (dots > 2 and digits > 3)) and (longest <= LONGEST_NUMBER or digits > longest):
                    kind = NUMBER
            elif classes[byte] & _UPPER and i + 3 < end and classes[data[i + 3]] & _DIGIT:
                inside = i > begin and classes[data[i - 1]] & (_LETTER | _DIGIT)
                if not inside and classes[data[i + 1]] & _UPPER and classes[data[i + 2]] & _DIGIT:
                    last = _account_end(data, i, end, classes, sizes)
                    if last:
                        kind = ACCOUNT
            if kind >= 0:
                if found < room:
                    kinds[found], starts[found], ends[found] = kind, first, last
                found += 1
            i += 1
    return found
