"""Writes documents as Megatron's `.bin` and `.idx`, with the names and parameters of existing scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gristmill.errors import UsageError
from gristmill.stages.source_sink import Mode
from gristmill.stages.text.io.writer.tokens import TokenWriter
from gristmill.storage.token_formats.megatron import DTYPE_CODES, index_bytes

_EXTENSIONS = (".bin", ".idx")


class MegatronTokenizerWriter(TokenWriter):
    """Tokenizes documents and writes Megatron's indexed dataset, a `.bin` and an `.idx` per partition.

    `TokenWriter(format="megatron")` does the same and can also pack documents and limit the size of shards.

    Args:
        path: Output folder.
        file_extension: `.bin` and `.idx`; other values are errors.
        write_kwargs: `storage_options` for the file system.
        name: Name of the stage.
        mode: How to treat existing files, as for other writers.
        append_mode_implemented: False; `mode="ignore"` adds partitions that do not exist yet.
        model_identifier: The tokenizer: a folder, a `tokenizer.json` or SentencePiece file, `package:NAME` or a hub id.
        cache_dir: Cache folder for hub downloads.
        hf_token: Access token for gated models; it is never shown.
        text_field: Column that holds the text.
        tokenization_batch_size: Accepted for compatibility and ignored; batches follow the size of the texts.
        append_eod: Append the end-of-text token to every document.
        transformers_init_kwargs: Options for transformers' `from_pretrained`, which then loads the tokenizer.

    Raises:
        UsageError: (a ValueError) `model_identifier` is missing, or another option is invalid.

    Example:
        >>> pipeline.add_stage(MegatronTokenizerWriter("tokens/", model_identifier="my-tokenizer/", append_eod=True))
    """

    name = "megatron_tokenizer_writer"
    fork_safe = True

    def __init__(
        self,
        path: str,
        file_extension: Sequence[str] | None = None,
        write_kwargs: Mapping[str, Any] | None = None,
        name: str = "megatron_tokenizer_writer",
        mode: Mode = "ignore",
        append_mode_implemented: bool = False,
        model_identifier: str | None = None,
        cache_dir: str | None = None,
        hf_token: str | None = None,
        text_field: str = "text",
        tokenization_batch_size: int = 1000,
        append_eod: bool = False,
        transformers_init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if model_identifier is None:
            raise UsageError("MegatronTokenizerWriter needs model_identifier: a tokenizer folder or a hub id.")
        if file_extension is not None and sorted(file_extension) != list(_EXTENSIONS):
            raise UsageError(
                f"MegatronTokenizerWriter(file_extension={list(file_extension)!r}): the files end with "
                f"{' and '.join(_EXTENSIONS)}."
            )
        if append_mode_implemented:
            raise UsageError(
                "MegatronTokenizerWriter(append_mode_implemented=True): there is no append mode; mode='ignore' adds "
                "partitions that do not exist yet."
            )
        settings = dict(write_kwargs or {})
        options = settings.pop("storage_options", None)
        if settings:
            raise UsageError(
                f"MegatronTokenizerWriter(write_kwargs={dict(write_kwargs or {})!r}): unknown option "
                f"{next(iter(settings))!r}; the only valid option is storage_options."
            )
        super().__init__(
            path,
            model_identifier,
            "megatron",
            text_field=text_field,
            append_eod=append_eod,
            mode=mode,
            cache_dir=cache_dir,
            hf_token=hf_token,
            transformers_init_kwargs=transformers_init_kwargs,
            storage_options=options,
        )
        self.name = name
        self.model_identifier = self.tokenizer
        self.tokenization_batch_size = tokenization_batch_size

    def write_data(
        self,
        bin_file: BinaryIO,
        token_dtype: npt.DTypeLike,
        eod_token_id: int,
        tokens_batch: Sequence[Sequence[int]],
        sequence_lengths: list[int],
    ) -> None:
        """Append token lists to an open `.bin`, and their lengths to `sequence_lengths`; for use in scripts."""
        for tokens in tokens_batch:
            row = [*tokens, eod_token_id] if self.append_eod else list(tokens)
            bin_file.write(np.array(row, token_dtype).tobytes())
            sequence_lengths.append(len(row))

    def write_idx_data(
        self, file_prefix: str, token_size: int, token_dtype_code: int, sequence_lengths: Sequence[int]
    ) -> None:
        """Write the `.idx` for a `.bin` with sequences of these lengths; for use in scripts."""
        names = {code: name for name, code in DTYPE_CODES.items()}
        if token_dtype_code not in names or np.dtype(names[token_dtype_code]).itemsize != token_size:
            raise UsageError(
                f"token_dtype_code={token_dtype_code} with token_size={token_size}: valid codes are "
                f"{', '.join(f'{code} ({name})' for code, name in sorted(names.items()))}."
            )
        with open(f"{file_prefix}.idx", "wb") as file:
            file.write(index_bytes(sequence_lengths, names[token_dtype_code]))
