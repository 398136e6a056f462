"""Tells whether the files of a model are still the same, without reading gigabytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PIECES = 64
_PIECE_BYTES = 1 << 16


def folder_digest(folder: str | Path) -> str | None:
    """A digest of the files in a local folder that make a model; None where there is no such folder.

    Small files are read as a whole, of large ones pieces from all over: weights that were trained again differ
    everywhere. Of folders inside, which may hold older states of a training, only the settings count.

    Example:
        >>> folder_digest("no/such/folder") is None
        True
    """
    top = Path(folder)
    if not top.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(path for path in (*top.glob("*"), *top.glob("*/config.json")) if path.is_file()):
        digest.update(f"{path.relative_to(top)} {path.stat().st_size}\n".encode())
        digest.update(_pieces(path))
    return digest.hexdigest()[:16]


def _pieces(path: Path) -> bytes:
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= _PIECES * _PIECE_BYTES:
            return hashlib.sha256(file.read()).digest()
        found = hashlib.sha256()
        for piece in range(_PIECES):
            file.seek(piece * (size - _PIECE_BYTES) // (_PIECES - 1))
            found.update(file.read(_PIECE_BYTES))
        return found.digest()
