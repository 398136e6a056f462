"""The token columns: their names, their Arrow form, and how rows become one padded tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    import torch

    from gristmill.tasks.document import DocumentBatch

INPUT_ID_FIELD = "input_ids"
ATTENTION_MASK_FIELD = "attention_mask"
SEQ_ORDER_FIELD = "_curator_seq_order"
TOKEN_FIELDS = (INPUT_ID_FIELD, ATTENTION_MASK_FIELD)

PaddingSide = Literal["left", "right"]
Integers = npt.NDArray[np.int64]

_METADATA_KEY = "tokens"


def format_name_with_suffix(model_identifier: str, suffix: str = "_classifier") -> str:
    """The name of a stage that uses a model: the last part of its identifier, as a valid identifier.

    Example:
        >>> format_name_with_suffix("nvidia/quality-classifier-deberta", "_model")
        'quality_classifier_deberta_model'
    """
    last = model_identifier.replace("\\", "/").rstrip("/").split("/")[-1]
    return last.split(":")[-1].replace("-", "_").lower() + suffix


class TokenLists:
    """Unpadded token lists as one flat array with offsets, straight from the Arrow column.

    Args:
        column: A list column of integers; a missing list counts as an empty one.
    """

    __slots__ = ("lengths", "offsets", "values")

    def __init__(self, column: pa.Array | pa.ChunkedArray) -> None:
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):  # what combine_chunks returns without any chunk
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        if array.null_count:
            array = array.fill_null([])
        offsets = array.offsets.to_numpy().astype(np.int64)
        self.values: npt.NDArray[Any] = array.values.to_numpy(zero_copy_only=False)
        self.offsets: Integers = offsets
        self.lengths: Integers = np.diff(offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, index: int) -> npt.NDArray[Any]:
        """The tokens of one row."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def cut(self, length: int, *, side: PaddingSide = "right") -> TokenLists:
        """The lists with at most `length` tokens each, cut at the padding side."""
        cut = TokenLists.__new__(TokenLists)
        starts, ends = self.offsets[:-1], self.offsets[1:]
        kept = np.minimum(self.lengths, length)
        begin = starts if side == "right" else ends - kept
        cut.lengths = kept
        cut.offsets = np.concatenate([[0], np.cumsum(kept)])
        places = np.arange(cut.offsets[-1]) - np.repeat(cut.offsets[:-1] - begin, kept)
        cut.values = self.values[places]
        return cut


def list_column(values: npt.NDArray[Any], lengths: Integers) -> pa.LargeListArray:
    """The Arrow list column of `values` cut into pieces of the given lengths."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))


def padded(lists: TokenLists, rows: Integers, *, fill: int, side: PaddingSide) -> npt.NDArray[np.int64]:
    """The token lists of `rows` as a matrix as wide as the longest of them."""
    lengths = lists.lengths[rows]
    width = int(lengths.max()) if len(lengths) else 0
    matrix = np.full((len(rows), width), fill, np.int64)
    for place, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        if side == "right":
            matrix[place, :length] = lists.row(row)
        else:
            matrix[place, width - length :] = lists.row(row)
    return matrix


def padded_mask(lengths: Integers, *, side: PaddingSide) -> npt.NDArray[np.int64]:
    """The attention mask of `padded` for lists of these lengths."""
    width = int(lengths.max()) if len(lengths) else 0
    places = np.arange(width)
    if side == "right":
        return (places[None, :] < lengths[:, None]).astype(np.int64)
    return (places[None, :] >= width - lengths[:, None]).astype(np.int64)


def clip_tokens(
    token_o: dict[str, Any], padding_side: PaddingSide = "right", *, max_length: int | None = None
) -> dict[str, torch.Tensor]:
    """The batch without the columns in which every row is padding.

    Args:
        token_o: A batch with `input_ids` and `attention_mask`; other tensors of the same shape are cut with them.
        padding_side: The padding side.
        max_length: Maximum number of columns to keep, counted from the other side.
    """
    width = int(token_o[ATTENTION_MASK_FIELD].sum(1).max())
    width = width if max_length is None else min(width, max_length)
    clipped: dict[str, torch.Tensor] = {}
    for name, tensor in token_o.items():
        if name == "metadata":
            continue
        if tensor.dim() < 2 or tensor.shape[1] == width:
            clipped[name] = tensor
        else:
            clipped[name] = tensor[:, :width] if padding_side == "right" else tensor[:, tensor.shape[1] - width :]
    return clipped


def token_facts(batch: DocumentBatch) -> Mapping[str, Any]:
    """The tokenizer's notes about the token columns of `batch`: the padding id and the digest of its settings."""
    facts: Mapping[str, Any] = batch._metadata.get(_METADATA_KEY) or {}
    return facts


def note_token_facts(batch: DocumentBatch, facts: Mapping[str, Any] | None) -> DocumentBatch:
    """The batch with the tokenizer's notes for the model stage; None removes them."""
    rest = {key: value for key, value in batch._metadata.items() if key != _METADATA_KEY}
    batch._metadata = rest if facts is None else {**rest, _METADATA_KEY: dict(facts)}
    return batch
