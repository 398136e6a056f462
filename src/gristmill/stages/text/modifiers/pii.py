"""The modifier that replaces personal data: e-mail and IP addresses, phone numbers, bank accounts, cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.pii_scan import (
    ACCOUNT,
    ACCOUNT_SIZES,
    AT_SIGN,
    CLASSES,
    COLONS,
    NUMBER,
    find_candidates,
)
from gristmill.kernels.text_column import TextColumn, text_column
from gristmill.kernels.text_edit import build_column, splice
from gristmill.stages.text.modifiers import pii_rules
from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier, ModifiedColumn

KINDS = ("email", "iban", "credit_card", "ipv6", "ipv4", "phone")
"""The kinds of personal data. If two overlap, the one listed first wins."""

_CANDIDATES = {
    "email": AT_SIGN,
    "iban": ACCOUNT,
    "credit_card": NUMBER,
    "ipv6": COLONS,
    "ipv4": NUMBER,
    "phone": NUMBER,
}

Rule = Callable[[bytes, int, int], Iterator[pii_rules.Span]]


class PiiRedactor(ColumnModifier):
    """Replaces e-mail addresses, IP addresses, phone numbers, bank accounts (IBAN) and card numbers.

    One compiled pass finds candidates, which precise rules then verify, so that text without candidates costs next to
    nothing. Cards must belong to a network and pass Luhn's check, accounts must have their country's length and
    checksum, and numbers described as a version or section by preceding words are not IP addresses.

    Limits: e-mail domains outside ASCII, local parts in scripts other than Latin, accounts in small letters, names,
    postal addresses and national identity numbers are not found. Phone numbers without `+`, an area code in brackets, a
    leading zero or a word such as "phone" before them are only recognised in the North American form. Five pairs of
    digits that begin with 0 are treated as a French number, `git@host.tld` as an e-mail address, and a version of four
    small numbers without an introducing word as an IP address.

    Args:
        kinds: What to redact: any of email, ipv4, ipv6, phone, iban and credit_card; None for all.
        replacement: One text for all kinds, or one per kind; defaults to the kind in brackets, such as `<EMAIL>`.
        count_field_prefix: Adds a column with the number of replacements per kind, named by this prefix and the kind.
        only_public_ips: Do not redact private, loopback and reserved IP addresses.

    Raises:
        UsageError: (a ValueError) A kind is unknown.

    Example:
        >>> PiiRedactor().modify_document("Write to ann@example.com or call +1 555 234 5678.")
        'Write to <EMAIL> or call <PHONE>.'
    """

    _name = "pii_redactor"

    def __init__(
        self,
        kinds: Iterable[str] | None = None,
        *,
        replacement: str | Mapping[str, str] | None = None,
        count_field_prefix: str | None = None,
        only_public_ips: bool = False,
    ) -> None:
        asked = KINDS if kinds is None else [kinds] if isinstance(kinds, str) else list(kinds)
        named = [*asked, *(replacement if isinstance(replacement, Mapping) else ())]
        for kind in named:
            if kind not in KINDS:
                raise UsageError(
                    f"PiiRedactor does not know the kind {kind!r}; it knows {', '.join(KINDS)}."
                    f"{did_you_mean(kind, KINDS)}",
                    kind=kind,
                )
        self.kinds = tuple(kind for kind in KINDS if kind in asked)
        self.replacement = replacement
        self.count_field_prefix = count_field_prefix
        self.only_public_ips = only_public_ips

    def extra_columns(self) -> list[str]:
        """The columns with the counts, if requested."""
        return [] if self.count_field_prefix is None else [self.count_field_prefix + kind for kind in self.kinds]

    def replacement_of(self, kind: str) -> str:
        """The replacement text for a `kind`."""
        if isinstance(self.replacement, str):
            return self.replacement
        return dict(self.replacement or {}).get(kind, f"<{kind.upper()}>")

    def modify_column(self, column: pa.LargeStringArray) -> ModifiedColumn:
        """The redacted column, with counts per kind as metrics and, if requested, as columns."""
        texts = text_column(column)
        rows, starts, ends, choices = self._spans(texts)
        counts = {kind: np.zeros(len(texts), np.int64) for kind in self.kinds}
        for number, kind in enumerate(self.kinds):
            np.add.at(counts[kind], rows[choices == number], 1)
        columns: dict[str, pa.Array] = {}
        if self.count_field_prefix is not None:
            columns = {self.count_field_prefix + kind: pa.array(counts[kind]) for kind in self.kinds}
        metrics = {f"redacted_{kind}": float(number.sum()) for kind, number in counts.items()}
        if not len(rows):
            return ModifiedColumn(column, columns, metrics)
        words = [self.replacement_of(kind).encode("utf-8", "replace") for kind in self.kinds]
        sizes = np.cumsum([0, *map(len, words)], dtype=np.int64)
        word_bytes = np.frombuffer(b"".join(words), np.uint8).copy()
        for array in (word_bytes, sizes, starts, ends, choices):
            array.flags.writeable = False
        data, offsets = splice(texts.data, texts.offsets, starts, ends, choices, word_bytes, sizes)
        return ModifiedColumn(build_column(data, offsets, texts.valid), columns, metrics)

    def _spans(self, texts: TextColumn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Row, start, end and kind number of everything to replace, in order and without overlaps."""
        kinds, starts, ends = _candidates(texts)
        rules = self._rules()
        wanted = np.isin(kinds, list(rules))
        kinds, starts, ends = kinds[wanted], starts[wanted], ends[wanted]
        rows = np.searchsorted(texts.offsets, starts, side="right") - 1
        edges = np.flatnonzero(np.diff(rows, prepend=-1, append=-1))
        found: list[tuple[int, int, int, int]] = []
        for here, beyond in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            row = int(rows[here])
            base = int(texts.offsets[row])
            text = texts.data[base : texts.offsets[row + 1]].tobytes()
            hits: list[tuple[int, int, int]] = []
            for k in range(here, beyond):
                first, last = int(starts[k]) - base, int(ends[k]) - base
                for number, rule in rules[int(kinds[k])]:
                    hits.extend((number, *span) for span in rule(text, first, last))
            if hits:
                found.extend((row, base + start, base + end, number) for start, end, number in _without_overlaps(hits))
        table = np.array(found, np.int64).reshape(-1, 4)
        return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), table[:, 3].copy()

    def _rules(self) -> dict[int, list[tuple[int, Rule]]]:
        """For each type of candidate the rules that verify it, with the number of their kind."""
        rules: dict[str, Rule] = {
            "email": pii_rules.emails,
            "iban": pii_rules.ibans,
            "credit_card": pii_rules.credit_cards,
            "ipv6": partial(pii_rules.ipv6_addresses, only_public=self.only_public_ips),
            "ipv4": partial(pii_rules.ipv4_addresses, only_public=self.only_public_ips),
            "phone": pii_rules.phones,
        }
        chosen: dict[int, list[tuple[int, Rule]]] = {}
        for number, kind in enumerate(self.kinds):
            chosen.setdefault(_CANDIDATES[kind], []).append((number, rules[kind]))
        return chosen


def _candidates(texts: TextColumn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    room = 1024 + int(texts.offsets[-1] - texts.offsets[0]) // 256
    while True:
        kinds, starts, ends = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
        number = find_candidates(texts.data, texts.offsets, CLASSES, ACCOUNT_SIZES, kinds, starts, ends)
        if number <= room:
            return kinds[:number], starts[:number], ends[:number]
        room = number


def _without_overlaps(hits: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The spans in order; of two that overlap, the kind listed first wins, then the longer one."""
    hits.sort(key=lambda hit: (hit[1], hit[0], -hit[2]))
    kept: list[tuple[int, int, int]] = []
    for number, start, end in hits:
        if kept and start < kept[-1][1]:
            if number < kept[-1][2]:
                kept[-1] = (start, end, number)
            continue
        kept.append((start, end, number))
    return kept
