"""Merging the token files of several partitions, by the name in `nemo_curator.utils.merge_file_prefixes`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from gristmill.errors import InputError, InputNotFoundError, UsageError
from gristmill.storage.atomic import AtomicFile
from gristmill.storage.token_formats.megatron import index_bytes
from gristmill.storage.token_formats.reading import ShardTokens


def merge_file_prefixes(input_dir: str, output_prefix: str) -> None:
    """Write the Megatron files (`.bin` with `.idx`) of a folder as one pair, in the order of their names.

    Args:
        input_dir: The folder.
        output_prefix: The path of the new pair without extension.

    Raises:
        InputNotFoundError: The folder holds no such files.
        InputError: A pair is damaged, or their tokens are of different types.

    Example:
        >>> merge_file_prefixes("tokens/", "all_tokens")  # writes all_tokens.bin and all_tokens.idx
    """
    target = os.path.abspath(output_prefix)
    parts = [path for path in sorted(Path(input_dir).glob("*.bin")) if path.name[0] not in "._"]
    if not parts:
        raise InputNotFoundError(f"The folder {input_dir!r} holds no .bin files to merge.", path=input_dir)
    if Path(f"{target}.bin") in (path.resolve() for path in parts):
        raise UsageError(f"output_prefix={output_prefix!r} is one of the files to merge: choose another name.")
    shards = [_opened(path) for path in parts]
    for path, shard in zip(parts, shards, strict=True):
        if shard.dtype != shards[0].dtype:
            raise InputError(
                f"{path} holds tokens of type {shard.dtype} and {parts[0]} of type {shards[0].dtype}; files of "
                "different types cannot be merged."
            )
    with AtomicFile(f"{target}.bin") as merged:
        for path in parts:
            with path.open("rb") as file:
                merged.copy(file)
    with AtomicFile(f"{target}.idx") as index:
        index.write(index_bytes(np.concatenate([shard.lengths for shard in shards]), shards[0].dtype))


def _opened(path: Path) -> ShardTokens:
    if not path.with_suffix(".idx").is_file():
        raise InputError(f"{path} has no .idx beside it, so its document boundaries are unknown.")
    return ShardTokens(str(path))
