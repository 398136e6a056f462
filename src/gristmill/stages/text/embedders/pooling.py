"""How the vectors of a document's tokens become one vector."""

from __future__ import annotations

import torch


def pool(hidden: torch.Tensor, mask: torch.Tensor, *, how: str) -> torch.Tensor:
    """One vector per row of `hidden`, from the tokens that `mask` marks as real.

    Args:
        hidden: Rows × tokens × features.
        mask: Rows × tokens, 1 for real tokens; padding may be on either side.
        how: `mean_pooling`, `last_token` or `first_token`.
    """
    rows = torch.arange(len(hidden), device=hidden.device)
    if how == "mean_pooling":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    if how == "last_token":
        places = torch.arange(mask.shape[1], device=mask.device)
        return hidden[rows, (mask * places).argmax(1)]
    first: torch.Tensor = hidden[rows, mask.argmax(1)]
    return first
