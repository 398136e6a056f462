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


def distance_buckets(length: int, *, buckets: int, max_distance: int) -> torch.Tensor:
    """The bucket of each distance from -(length - 1) to length - 1: near ones alone, far ones by their logarithm."""
    distances = torch.arange(-(length - 1), length)
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
        """`places` says for each distance from -(length - 1) on which relative position it is."""
        rows, length, width = hidden.shape
        # Heads first: then a product with all positions is one batched multiplication per head.
        three = self.project(hidden).view(rows * length, 3, self.heads, self.size).permute(1, 2, 0, 3).contiguous()
        query, key, value = three[0], three[1], three[2]
        bias = self._bias(query, key, places, rows, length)
        if mask is not None:
            lowest = torch.finfo(query.dtype).min
            empty = torch.zeros((), dtype=query.dtype, device=query.device)
            bias = torch.where(mask, empty if bias is None else bias, lowest)
            bias = bias.expand(self.heads, rows, length, length)
        shape = (self.heads, rows, length, self.size)
        context = nn.functional.scaled_dot_product_attention(
            query.view(shape), key.view(shape), value.view(shape), attn_mask=bias, scale=1.0
        )
        context = context.permute(1, 2, 0, 3).reshape(rows, length, width)
        hidden = self.attention_norm(self.attention_dense(context) + hidden)
        return self.norm(self.outer(self.activation(self.inner(hidden))) + hidden)

    def _bias(
        self, query: torch.Tensor, key: torch.Tensor, places: torch.Tensor, rows: int, length: int
    ) -> torch.Tensor | None:
        bias = None
        shape = (self.heads * rows, length, 2 * length - 1)
        if self.has_c2p:
            # Distance i - j falls from left to right in row i.
            positions = self.position_keys[:, places.flip(0)].transpose(1, 2)
            bias = diagonals(torch.bmm(query, positions).view(shape))
        if self.has_p2c:
            # Here row j holds the distances i - j, which rise with i; the roles are exchanged afterwards.
            positions = self.position_queries[:, places].transpose(1, 2)
            other = diagonals(torch.bmm(key, positions).view(shape)).transpose(1, 2)
            bias = other if bias is None else bias + other
        return None if bias is None else bias.view(self.heads, rows, length, length)


def diagonals(scores: torch.Tensor) -> torch.Tensor:
    """The square with `result[i, j] = scores[i, j - i + length - 1]`, for each matrix of `scores`."""
    count, length, distances = scores.shape
    if not torch.onnx.is_in_onnx_export():
        return scores.as_strided((count, length, length), (length * distances, distances - 1, 1), length - 1)
    # The same by slicing: row i starts one element earlier in a row that is one element shorter.
    flat = scores.reshape(count, length * distances)[:, length - 1 : length - 1 + length * (distances - 1)]
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
            mask = (attention_mask > 0)[None, :, None, :]
        for layer in self.layers:
            hidden = layer(hidden, mask, places)
        return BaseModelOutput(last_hidden_state=hidden)
