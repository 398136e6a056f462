"""A DeBERTa encoder for inference: the weights of transformers' model, arranged for speed and for export.

The attention is that of He et al., "DeBERTa", arXiv:2006.03654, with the log buckets of DeBERTaV3, arXiv:2111.09543.
Content-to-position and position-to-content scores depend only on the distance of two tokens, so they are computed for
each distance once and read along diagonals, instead of being gathered for each pair of tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

# Pairs of tokens whose scores are computed together.
_SCORES_AT_ONCE = 512 * 512


def distance_buckets(length: int, *, buckets: int, max_distance: int) -> torch.Tensor:
    """The bucket of each distance from -length to length - 1: near ones alone, far ones by their logarithm.

    The first distance never occurs. It makes the number of distances even, and products with them a third faster.
    """
    distances = torch.arange(-length, length)
    if buckets <= 0:
        return distances
    middle = buckets // 2
    size = distances.abs().clamp(min=middle - 1).to(torch.float32)
    spread = torch.ceil(torch.log(size / middle) / math.log((max_distance - 1) / middle) * (middle - 1)) + middle
    return torch.where(distances.abs() <= middle, distances, (spread * distances.sign()).to(torch.int64))


class _Layer(nn.Module):  # type: ignore[misc]
    """One layer; all projections of a token in one multiplication, the scale of the scores folded into the weights."""

    def __init__(self, layer: nn.Module, relative: torch.Tensor) -> None:
        super().__init__()
        own = layer.attention.self
        self.heads = own.num_attention_heads
        self.size = own.attention_head_size
        kinds = own.pos_att_type
        scale = 1 / math.sqrt(self.size * (1 + ("c2p" in kinds) + ("p2c" in kinds)))
        parts = (own.query_proj, own.key_proj, own.value_proj)
        factors = (scale, 1.0, 1.0)
        weight = torch.cat([part.weight * factor for part, factor in zip(parts, factors, strict=True)])
        bias = torch.cat([part.bias * factor for part, factor in zip(parts, factors, strict=True)])
        self.project = nn.Linear(weight.shape[1], weight.shape[0])
        self.project.weight, self.project.bias = nn.Parameter(weight), nn.Parameter(bias)
        shared = own.share_att_key
        key: Any = own.key_proj if shared else getattr(own, "pos_key_proj", None)
        query: Any = own.query_proj if shared else getattr(own, "pos_query_proj", None)
        self.has_c2p, self.has_p2c = "c2p" in kinds, "p2c" in kinds
        if self.has_c2p:
            self.register_buffer("position_keys", self._by_head(key(relative)), persistent=False)
        if self.has_p2c:
            self.register_buffer("position_queries", self._by_head(query(relative) * scale), persistent=False)
        self.attention_dense, self.attention_norm = layer.attention.output.dense, layer.attention.output.LayerNorm
        self.inner, self.activation = layer.intermediate.dense, layer.intermediate.intermediate_act_fn
        self.outer, self.norm = layer.output.dense, layer.output.LayerNorm

    def _by_head(self, positions: torch.Tensor) -> torch.Tensor:
        return positions.view(-1, self.heads, self.size).permute(1, 0, 2).contiguous()

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None, places: torch.Tensor) -> torch.Tensor:
        """`places` says for each distance from -length to length - 1 on which relative position it is."""
        rows, length, width = hidden.shape
        # Heads first: then a product with all positions is one batched multiplication per head.
        three = self.project(hidden).view(rows * length, 3, self.heads, self.size).permute(1, 2, 0, 3).contiguous()
        shape = (self.heads, rows, length, self.size)
        query, key, value = (part.view(shape) for part in three)
        keys, queries = self._positions(places)
        found = []
        for part in _parts(rows, length):
            own = None if mask is None else mask[part]
            found.append(self._attend(query[:, part], key[:, part], value[:, part], own, keys, queries))
        context = torch.cat(found).reshape(rows, length, width)
        hidden = self.attention_norm(self.attention_dense(context) + hidden)
        return self.norm(self.outer(self.activation(self.inner(hidden))) + hidden)

    def _positions(self, places: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The keys of the distances in falling order, and the queries in rising order, one column for each distance."""
        keys = self.position_keys.index_select(1, places.flip(0)).transpose(1, 2) if self.has_c2p else None
        queries = self.position_queries.index_select(1, places).transpose(1, 2) if self.has_p2c else None
        return keys, queries

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        position_keys: torch.Tensor | None,
        position_queries: torch.Tensor | None,
    ) -> torch.Tensor:
        """The context of some documents, heads last."""
        heads, rows, length, size = query.shape
        bias = None
        if position_keys is not None:
            # Distance i - j falls from left to right in row i; the first one, length - 1, is in row length - 1.
            scores = torch.bmm(query.reshape(heads, rows * length, size), position_keys)
            bias = diagonals(scores.view(heads * rows, length, 2 * length), length - 1)
        if position_queries is not None:
            # Here row j holds the distances i - j, which rise with i; the roles are exchanged afterwards.
            scores = torch.bmm(key.reshape(heads, rows * length, size), position_queries)
            other = diagonals(scores.view(heads * rows, length, 2 * length), length).transpose(1, 2)
            bias = other if bias is None else bias + other
        if bias is not None:
            bias = bias.view(heads, rows, length, length)
        if mask is not None:
            lowest = torch.finfo(query.dtype).min
            empty = torch.zeros((), dtype=query.dtype, device=query.device)
            bias = torch.where(mask, empty if bias is None else bias, lowest).expand(heads, rows, length, length)
        context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        return context.permute(1, 2, 0, 3)


def _parts(rows: int, length: int) -> list[slice]:
    """The documents in groups whose scores, about this many per head, stay in the processor's caches."""
    if torch.onnx.is_in_onnx_export():
        return [slice(None)]
    size = max(1, _SCORES_AT_ONCE // (length * length))
    return [slice(start, start + size) for start in range(0, rows, size)]


def diagonals(scores: torch.Tensor, start: int) -> torch.Tensor:
    """The square with `result[i, j] = scores[i, j - i + start]`, for each matrix of `scores`."""
    count, length, distances = scores.shape
    if not torch.onnx.is_in_onnx_export():
        return scores.as_strided((count, length, length), (length * distances, distances - 1, 1), start)
    # The same by slicing: row i starts one element earlier in a row that is one element shorter.
    flat = scores.reshape(count, length * distances)[:, start : start + length * (distances - 1)]
    return flat.reshape(count, length, distances - 1)[:, :, :length]


def faster(network: nn.Module) -> nn.Module:
    """The network with every DeBERTa inside it exchanged for `DebertaEncoder`, for inference on a CPU."""
    for name, child in list(network.named_children()):
        if DebertaEncoder.supports(child):
            setattr(network, name, DebertaEncoder(child).eval())
        else:
            faster(child)
    return network


class DebertaEncoder(nn.Module):  # type: ignore[misc]
    """Gives the last hidden state of a DeBERTa-v2 or -v3 model, as transformers' own would.

    Args:
        model: A `DebertaV2Model`; its weights are shared where they are used unchanged.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        config = model.config
        self.config = config
        self.embeddings = model.embeddings
        encoder = model.encoder
        self.buckets = encoder.position_buckets
        self.max_distance = encoder.max_relative_positions
        self.span = encoder.rel_embeddings.num_embeddings // 2
        with torch.no_grad():
            relative = encoder.get_rel_embedding()[: 2 * self.span]
            self.layers = nn.ModuleList(_Layer(layer, relative) for layer in encoder.layer)

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether the model is one that this encoder reproduces."""
        config = getattr(model, "config", None)
        return (
            type(model).__name__ == "DebertaV2Model"
            and bool(getattr(config, "relative_attention", False))
            and not getattr(config, "conv_kernel_size", 0)
            and getattr(model, "z_steps", 0) <= 1
        )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> BaseModelOutput:
        """The vectors of all tokens; those of padding mean nothing. Other arguments of transformers are not used."""
        hidden = self.embeddings(input_ids=input_ids, mask=attention_mask)
        length = input_ids.shape[1]
        buckets = distance_buckets(length, buckets=self.buckets, max_distance=self.max_distance).to(input_ids.device)
        places = (buckets + self.span).clamp(0, 2 * self.span - 1)
        mask = None
        if torch.onnx.is_in_onnx_export() or not bool(attention_mask.all()):
            mask = (attention_mask > 0)[:, None, :]
        for layer in self.layers:
            hidden = layer(hidden, mask, places)
        return BaseModelOutput(last_hidden_state=hidden)
