"""How many bands of how many hashes find pairs above a similarity: the S-curve of locality-sensitive hashing."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.errors import UsageError

MOST_HASHES = 140
"""More hashes would find little more and cost more."""
WANTED_RECALL = 0.99
"""Which share of the pairs exactly at the threshold is to be found; of those above it more is."""
MOST_BANDS = 256


@dataclass(frozen=True)
class Banding:
    """Bands of a signature; two documents are compared when they agree in all hashes of at least one band.

    Example:
        >>> round(Banding(20, 7).probability(0.8), 3)
        0.991
    """

    bands: int
    rows: int

    def __post_init__(self) -> None:
        if not 1 <= self.bands <= MOST_BANDS or self.rows < 1:
            raise UsageError(
                f"num_bands={self.bands} and minhashes_per_band={self.rows}: give 1 to {MOST_BANDS} bands of at least "
                "1 hash, or leave both out to have them derived from the threshold."
            )

    @property
    def hashes(self) -> int:
        """The length of a signature."""
        return self.bands * self.rows

    def probability(self, similarity: float) -> float:
        """How likely a pair of this Jaccard similarity is to be compared."""
        return 1.0 - float((1.0 - similarity**self.rows) ** self.bands)

    def curve(self) -> dict[float, float]:
        """The probability for similarities from 0.1 to 1."""
        return {tenth / 20: round(self.probability(tenth / 20), 4) for tenth in range(2, 21)}

    def __str__(self) -> str:
        points = ", ".join(f"{at:.2f} → {self.probability(at):.1%}" for at in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95))
        return f"{self.bands} bands of {self.rows} hashes; pairs compared by similarity: {points}"


def derive_banding(threshold: float) -> Banding:
    """The most selective bands that still find nearly all pairs at the threshold.

    Example:
        >>> derive_banding(0.8)
        Banding(bands=20, rows=7)
    """
    for rows in range(MOST_HASHES, 0, -1):
        for bands in range(1, min(MOST_BANDS, MOST_HASHES // rows) + 1):
            if Banding(bands, rows).probability(threshold) >= WANTED_RECALL:
                return Banding(bands, rows)
    return Banding(MOST_HASHES, 1)
