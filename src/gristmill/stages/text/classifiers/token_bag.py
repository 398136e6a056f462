"""A linear classifier over the tokens of a text, as a part of a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn


class TokenBag(nn.Module):  # type: ignore[misc]
    """Gives a value for each class from the tokens that occur, whatever their order.

    The features are those of TF-IDF: one plus the logarithm of a token's count, times its rarity, scaled to length 1.

    Args:
        vocabulary: The number of tokens.
        classes: The number of classes.
    """

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("rarity", torch.zeros(vocabulary))
        self.weights = nn.Embedding(vocabulary, classes)
        nn.init.zeros_(self.weights.weight)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The values of all classes for each row of tokens."""
        real = mask > 0
        count = _counts(torch.where(real, ids, -1)).float()
        value = (1 + count.log()) * self.rarity[ids] * real
        # Every occurrence of a token carries its share, so that their sum is its value.
        share = value / count
        norm = (value * share).sum(1, keepdim=True).sqrt().clamp(min=1e-6)
        return torch.bmm((share / norm)[:, None, :], self.weights(ids))[:, 0]


def _counts(ids: torch.Tensor) -> torch.Tensor:
    """How often the token of each place occurs in its row."""
    ordered = ids.sort(1).values
    return torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)


def token_rarity(
    ids: Sequence[Sequence[int]], vocabulary: int, *, without: Sequence[int] = ()
) -> npt.NDArray[np.float32]:
    """How rare each token is (smoothed, Spärck Jones 1972); tokens that mean nothing, `without`, count 0."""
    seen = np.zeros(vocabulary, np.int64)
    for row in ids:
        seen[np.unique(np.asarray(row, np.int64))] += 1
    rarity = np.log((1 + len(ids)) / (1 + seen)) + 1
    rarity[list(without)] = 0
    return rarity.astype(np.float32)


def token_features(
    ids: Sequence[Sequence[int]], rarity: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The features of `TokenBag` as a sparse matrix: ends of rows (from 0 on), columns, values."""
    ends, columns, values = [0], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for row in ids:
        tokens, counts = np.unique(np.asarray(row, np.int64), return_counts=True)
        value = (1 + np.log(counts)) * rarity[tokens]
        columns.append(tokens)
        values.append((value / max(float(np.sqrt((value**2).sum())), 1e-6)).astype(np.float32))
        ends.append(ends[-1] + len(tokens))
    return np.array(ends, np.int64), np.concatenate(columns), np.concatenate(values)
