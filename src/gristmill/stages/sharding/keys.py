"""Random keys: the position of a document depends on a seed and its origin, never on which worker processed it or when.

A key is a stratum (16 bits: split and length class) above 48 random bits, so that files sorted by key hold one stratum
after another, each in random order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gristmill.errors import UsageError
from gristmill.figures import printable

if TYPE_CHECKING:
    from gristmill.tasks.document import DocumentBatch

Keys = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

RANDOM_BITS = 48
RANDOM_MASK = np.uint64((1 << RANDOM_BITS) - 1)
LENGTH_CLASSES = 64
MAX_SPLITS = 1 << (16 - 6)
_SPLIT_SEED = 0x73706C6974


def mixed(values: Keys, seed: int) -> Keys:
    """Well-spread 64-bit numbers, one for each value, that differ for every seed.

    The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), applied
    to the seed and then to value and seed.

    Example:
        >>> len(set(mixed(np.arange(1000, dtype=np.uint64), seed=1).tolist()))
        1000
    """
    with np.errstate(over="ignore"):
        start = _finalise(np.array([seed & ((1 << 64) - 1)], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        return _finalise((values ^ start) + np.uint64(0x9E3779B97F4A7C15))


def _finalise(values: Keys) -> Keys:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def source_seed(seed: int, source: int) -> int:
    """The seed of source number `source`: documents of different sources are drawn independently."""
    return (seed * 0x100000001B3 + source + 1) & ((1 << 64) - 1)


def copy_keys(keys: Keys, copies: Integers) -> Keys:
    """Keys of repeated documents: copy 0 keeps its key, every other copy gets a new one."""
    again = copies > 0
    if not again.any():
        return keys
    keys = keys.copy()
    with np.errstate(over="ignore"):
        keys[again] = _finalise(keys[again] + copies[again].astype(np.uint64) * np.uint64(0xD1342543DE82EF95))
    return keys


@dataclass(frozen=True)
class Placement:
    """How documents are ordered, split and balanced.

    Attributes:
        seed: Random seed of the order.
        source: Number of the source, if several are mixed.
        splits: Name to fraction; their sum is 1. Empty: no splits.
        split_field: Documents with equal values in this column go to the same split; None: by origin.
        balance: "length" balances document lengths across shards.
        token_field: Column that holds the number of tokens; None if tokens are not counted.
        id_field: Column that holds ids, for tracing documents; None if there is none.
        license_field: Column that holds licences; None if there is none.
        drop_fields: Columns that are not written, such as temporary token counts.
    """

    seed: int = 0
    source: int = 0
    splits: Mapping[str, float] = field(default_factory=dict)
    split_field: str | None = None
    balance: str | None = None
    token_field: str | None = None
    id_field: str | None = None
    license_field: str | None = None
    drop_fields: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The columns that placement needs."""
        named = (self.split_field, self.token_field, self.id_field, self.license_field)
        return list(dict.fromkeys(name for name in named if name is not None))

    def keys(self, batch: DocumentBatch, documents: Keys, sizes: Integers) -> Keys:
        """The key of every document of the batch."""
        strata = self._splits(batch, documents) * LENGTH_CLASSES
        if self.balance == "length":
            strata += length_classes(sizes)
        random = copy_keys(mixed(documents, source_seed(self.seed, self.source)), _occurrences(documents))
        return (random & RANDOM_MASK) | (strata.astype(np.uint64) << np.uint64(RANDOM_BITS))

    def _splits(self, batch: DocumentBatch, documents: Keys) -> Integers:
        if len(self.splits) < 2:
            return np.zeros(len(documents), np.int64)
        drawn = mixed(documents, source_seed(_SPLIT_SEED, self.source))
        if self.split_field is not None and batch.columns.has(self.split_field):
            from gristmill.kernels.hashing import hash_column

            groups = hash_column(batch.text(self.split_field))
            drawn = np.where(groups != 0, mixed(groups, _SPLIT_SEED), drawn)
        edges = split_edges(self.splits)
        places: Integers = np.searchsorted(edges, drawn, side="right").astype(np.int64)
        return places


def split_edges(splits: Mapping[str, float]) -> Keys:
    """Where the hashes of the second, third … split begin."""
    sums = np.cumsum(list(splits.values()))[:-1]
    return np.array([min(int(share * (1 << 64)), (1 << 64) - 1) for share in sums], np.uint64)


def length_classes(sizes: Integers) -> Integers:
    """Two classes per doubling of the length; at most `LENGTH_CLASSES`."""
    with np.errstate(divide="ignore"):
        classes = np.floor(2 * np.log2(np.maximum(sizes, 1)))
    limited: Integers = np.minimum(classes.astype(np.int64), LENGTH_CLASSES - 1)
    return limited


def _occurrences(documents: Keys) -> Integers:
    """For each row, the number of equal rows before it; copies of a document are neighbours."""
    places = np.arange(len(documents))
    first = np.ones(len(documents), bool)
    first[1:] = documents[1:] != documents[:-1]
    result: Integers = places - np.maximum.accumulate(np.where(first, places, 0))
    return result


def checked_splits(splits: Mapping[str, Any] | None, option: str = "splits") -> dict[str, float]:
    """The splits as fractions that sum to 1; the last one may be None, which gets the rest.

    Raises:
        UsageError: A fraction is not between 0 and 1, they do not sum to 1, or a name cannot be part of a file name.
    """
    found: dict[str, float] = {}
    given = dict(splits or {})
    if len(given) > MAX_SPLITS:
        raise UsageError(f"{option}: at most {MAX_SPLITS} splits are possible, not {len(given)}.")
    for name, share in given.items():
        if not isinstance(name, str) or not name or not name.replace("_", "").isalnum():
            raise UsageError(
                f"{option}: the split name {printable(repr(name))} becomes part of file names. Use letters, digits and "
                "underscores, such as 'train'."
            )
        if share is None and name == list(given)[-1]:
            share = 1 - sum(found.values())
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise UsageError(f"{option}: the fraction of {name!r} is {share!r}. It must be above 0 and at most 1.")
        found[name] = float(share)
    if found and abs(sum(found.values()) - 1) > 1e-9:
        raise UsageError(
            f"{option}: the fractions {', '.join(f'{name}={share:g}' for name, share in found.items())} sum to "
            f"{sum(found.values()):g}, not to 1. Change one, or omit the fraction of the last split."
        )
    return found
