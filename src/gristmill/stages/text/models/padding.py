"""Padding and pooling: moves padding behind the tokens, and combines the token vectors of a row into one."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gristmill.stages.text.models.tokens import ATTENTION_MASK_FIELD


def padding_before(mask: torch.Tensor) -> torch.Tensor | None:
    """The amount of padding before the first token of each row; None if no row has any."""
    real = (mask > 0).to(torch.int64)
    if bool(real[:, 0].all()):
        return None
    return real.argmax(1)


def moved(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The tensor with each row rotated to the left by the given number of positions."""
    width = values.shape[1]
    sources = (torch.arange(width, device=values.device) + places.unsqueeze(1)) % width
    return values.gather(1, sources if values.dim() == 2 else sources.unsqueeze(-1).expand_as(values))


def from_first_token(network: Any) -> Any:
    """The network, with a forward pass that returns the same for padding on the left and on the right.

    Networks with learned positions, or that use the first token of a row, would use padding instead.

    Args:
        network: A model of transformers, called with names; the vectors of tokens come back where the tokens were.
    """
    plain = network.forward

    @functools.wraps(plain)
    def forward(*args: Any, **inputs: Any) -> Any:
        mask = inputs.get(ATTENTION_MASK_FIELD)
        before = None if args or mask is None else padding_before(mask)
        if before is None:
            return plain(*args, **inputs)
        given = plain(
            **{name: moved(value, before) if _by_token(value, mask) else value for name, value in inputs.items()}
        )
        return _first_moved(given, mask, -before)

    network.forward = forward
    return network


def _by_token(value: Any, mask: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == mask.shape


def _first_moved(given: Any, mask: torch.Tensor, places: torch.Tensor) -> Any:
    """The output of a network with the vectors of its tokens moved, if they come first."""
    first = given[0]
    if first.dim() != 3 or first.shape[:2] != mask.shape:
        return given
    if isinstance(given, tuple):
        return (moved(first, places), *given[1:])
    given[next(iter(given))] = moved(first, places)
    return given


def mean_of_tokens(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of the vectors of each row that `mask` marks as real; zeros for a row without any."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def pool(hidden: torch.Tensor, mask: torch.Tensor, *, how: str) -> torch.Tensor:
    """One vector per row of `hidden`, from the tokens that `mask` marks as real.

    Args:
        hidden: Rows × tokens × features.
        mask: Rows × tokens, 1 for real tokens; padding may be on either side.
        how: `mean_pooling`, `last_token` or `first_token`.
    """
    if how == "mean_pooling":
        return mean_of_tokens(hidden, mask)
    rows = torch.arange(len(hidden), device=hidden.device)
    if how == "last_token":
        places = torch.arange(mask.shape[1], device=mask.device)
        return hidden[rows, (mask * places).argmax(1)]
    first: torch.Tensor = hidden[rows, mask.argmax(1)]
    return first
