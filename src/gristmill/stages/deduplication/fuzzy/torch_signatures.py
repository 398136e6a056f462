"""Band hashes on a GPU, bit-identical to those of the kernel, which is the reference, from shingles that it made.

Torch has only signed 64-bit integers. Their sums and products wrap around like unsigned ones, so only shifts and
conversions to and from tensors need care.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.kernels.minhash import Factors
from gristmill.kernels.shingles import Hashes, Shingles
from gristmill.kernels.text_column import Integers

if TYPE_CHECKING:
    import torch

SHINGLES_AT_ONCE = 1 << 24
"""Number of shingles on the device at a time; each takes about 40 bytes there."""

_LARGEST = 0xFFFFFFFF


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_MIX_1 = _signed(0xFF51AFD7ED558CCD)
_MIX_2 = _signed(0xC4CEB9FE1A85EC53)
_STEP = _signed(0x9E3779B97F4A7C15)


def torch_band_hashes(
    shingles: Shingles,
    bounds: Integers,
    flips: Factors,
    factors: Factors,
    bands: int,
    rows: int,
    *,
    device: torch.device | str,
    at_once: int = SHINGLES_AT_ONCE,
) -> Hashes:
    """The band hashes of documents with the given shingles, computed on a device.

    Args:
        shingles: The result of `listed_shingles`.
        bounds: Where the shingles of each document begin.
        flips: With `factors`, the hash functions.
        factors: One for each of `bands * rows` functions.
        bands: Number of bands.
        rows: Number of hashes per band.
        device: Device to compute on.
        at_once: Number of shingles to copy to the device at a time.
    """
    import torch

    documents = len(bounds) - 1
    counts = torch.from_numpy(np.diff(bounds)).to(device)
    owners = torch.arange(documents, device=device)
    least = torch.full((bands * rows, documents), _LARGEST, dtype=torch.int64, device=device)
    ends = torch.from_numpy(bounds[1:].copy()).to(device)
    for start in range(0, len(shingles), at_once):
        values = torch.from_numpy(shingles[start : start + at_once].astype(np.int64)).to(device)
        end = start + len(values)
        here = torch.clamp(ends, start, end) - torch.clamp(ends - counts, start, end)
        homes = torch.repeat_interleave(owners, here)
        for number in range(bands * rows):
            hashed = ((values ^ int(flips[number])) * int(factors[number])) & _LARGEST
            least[number].scatter_reduce_(0, homes, hashed, "amin")
    result = torch.empty((documents, bands), dtype=torch.int64, device=device)
    for band in range(bands):
        combined = torch.full((documents,), band, dtype=torch.int64, device=device)
        for number in range(band * rows, (band + 1) * rows):
            combined = _mixed(combined ^ least[number]) + _STEP
        result[:, band] = (_mixed(combined) & ~255) | band
    found: Hashes = result.cpu().numpy().view(np.uint64)
    return found


def _mixed(values: torch.Tensor) -> torch.Tensor:
    values = (values ^ _shifted(values)) * _MIX_1
    values = (values ^ _shifted(values)) * _MIX_2
    return values ^ _shifted(values)


def _shifted(values: torch.Tensor) -> torch.Tensor:
    """Shift right by 33 bits, filling with zeros."""
    return (values >> 33) & 0x7FFFFFFF
