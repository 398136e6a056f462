"""A DeBERTa encoder for inference on a CPU: the weights of transformers' model, arranged for speed.

The attention is that of He et al., "DeBERTa", arXiv:2006.03654, with the log buckets of DeBERTaV3, arXiv:2111.09543.
Content-to-position and position-to-content scores depend only on the bucket of the distance of two tokens, so they are
computed for each token and bucket once, and a compiled kernel reads them for each pair of tokens.

Documents are computed without padding: operations on single tokens run for the tokens of all documents at once, and
attention for documents of similar lengths together. If a classifier uses only the first token, the last layer computes
only that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from gristmill.kernels.distance_bias import add_distances
from gristmill.stages.text.models.acceleration.packed_layers import with_packed_layers
from gristmill.stages.text.models.transformers_internals import classifies_first_token, is_known_deberta

# Pairs of tokens, per head, whose attention is computed together.
_PAIRS_AT_ONCE = 512 * 512
# A document joins the attention of a longer one if it has at least this share of its tokens.
_SIMILAR = 0.75
# What a masked token adds to a score: enough for a share of zero, and finite where all are masked.
_MASKED = -1e30


def distance_buckets(length: int, *, buckets: int, max_distance: int) -> torch.Tensor:
    """The bucket of each distance from -length to length - 1: near ones alone, far ones by their logarithm."""
    distances = torch.arange(-length, length)
    if buckets <= 0:
        return distances
    middle = buckets // 2
    size = distances.abs().clamp(min=middle - 1).to(torch.float32)
    spread = torch.ceil(torch.log(size / middle) / math.log((max_distance - 1) / middle) * (middle - 1)) + middle
    return torch.where(distances.abs() <= middle, distances, (spread * distances.sign()).to(torch.int64))


@dataclass(slots=True)
class Group:
    """Documents of similar lengths whose attention is computed together.

    Args:
        tokens: Positions of their tokens among all tokens.
        lengths: Number of tokens of each.
        slots: Positions of the tokens when each document is padded to the longest; None if none needs padding.
        keys: Which keys of each padded document are real; None if all are.
    """

    tokens: slice
    lengths: npt.NDArray[np.int64]
    slots: torch.Tensor | None
    keys: torch.Tensor | None


class Packing:
    """The positions of tokens in documents concatenated without padding, and their distances.

    Args:
        mask: Which tokens are real, by document.
        buckets: Bucket of each distance between two tokens, in ascending order.
        span: Number of positions in each direction.
    """

    def __init__(self, mask: torch.Tensor, buckets: torch.Tensor, span: int) -> None:
        real = mask > 0
        # From the first real token of a document to its last; what is masked between them keeps its place.
        self.inside = (real.cumsum(1) > 0) & (real.flip(1).cumsum(1).flip(1) > 0)
        self.groups = list(_groups(self.inside.sum(1).numpy(), real[self.inside]))
        reach = min(span, int(buckets.abs().max()) + 1)
        self.window = slice(span - reach, span + reach)
        self.places = (buckets + reach).clamp(0, 2 * reach - 1).numpy().astype(np.uint32)


def _groups(lengths: npt.NDArray[np.int64], real: torch.Tensor) -> Iterator[Group]:
    start = first = 0
    while first < len(lengths):
        longest = int(lengths[first])
        near = lengths[first : first + max(1, _PAIRS_AT_ONCE // max(1, longest * longest))]
        unlike = np.flatnonzero((near > longest) | (near < _SIMILAR * longest))
        near = near[: unlike[0]] if len(unlike) else near
        end = start + int(near.sum())
        if longest:
            yield _group(slice(start, end), near, real[start:end])
        start, first = end, first + len(near)


def _group(tokens: slice, lengths: npt.NDArray[np.int64], real: torch.Tensor) -> Group:
    width = int(lengths.max())
    shape = (len(lengths), width)
    if (lengths == width).all():
        return Group(tokens, lengths, None, None if bool(real.all()) else real.view(shape))
    slots = np.flatnonzero(np.arange(width) < lengths[:, None])
    keys = torch.zeros(shape, dtype=torch.bool)
    keys.view(-1)[slots] = real
    return Group(tokens, lengths, torch.from_numpy(slots), keys)


class TokenWise(nn.Module):  # type: ignore[misc]
    """The part of a layer after the attention, token by token.

    Args:
        layer: The layer of transformers.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.attention_dense, self.attention_norm = layer.attention.output.dense, layer.attention.output.LayerNorm
        self.inner, self.activation = layer.intermediate.dense, layer.intermediate.intermediate_act_fn
        self.outer, self.norm = layer.output.dense, layer.output.LayerNorm

    def forward(self, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The new vectors, from the output of the attention and the vectors before it."""
        hidden = self.attention_norm(self.attention_dense(context) + hidden)
        return self.norm(self.outer(self.activation(self.inner(hidden))) + hidden)


class _Layer(nn.Module):  # type: ignore[misc]
    """One layer; all projections of a token in one multiplication, the scale of the scores folded into the weights.

    Args:
        layer: The layer of transformers.
        relative: The vectors of the relative positions.
    """

    def __init__(self, layer: nn.Module, relative: torch.Tensor) -> None:
        super().__init__()
        own = layer.attention.self
        self.heads, self.size = own.num_attention_heads, own.attention_head_size
        self.project = _joined([(own.query_proj, _scale(own)), (own.key_proj, 1.0), (own.value_proj, 1.0)])
        for name, vectors in zip(("keys", "queries"), _position_vectors(own, relative), strict=True):
            self.register_buffer(name, vectors.transpose(1, 2).contiguous(), persistent=False)
        self.rest = TokenWise(layer)

    def forward(self, tokens: torch.Tensor, packing: Packing) -> torch.Tensor:
        """The new vectors of the tokens of all documents, one document after the other."""
        three = self.project(tokens).detach().view(len(tokens), 3, self.heads, self.size)
        if torch.is_autocast_enabled("cpu"):  # once here instead of in each product
            three = three.to(torch.get_autocast_dtype("cpu"))
        found = [self._attend(three[group.tokens], group, packing) for group in packing.groups]
        return self.rest(torch.cat(found), tokens)

    def _attend(self, three: torch.Tensor, group: Group, packing: Packing) -> torch.Tensor:
        """The context of the tokens of a group, head by head, so that the scores of one stay in the caches."""
        rows, width = len(group.lengths), int(group.lengths.max())
        whole = three
        if group.slots is not None:
            whole = three.new_zeros(rows * width, *three.shape[1:]).index_copy_(0, group.slots, three)
        query, key, value = whole.view(rows, width, 3, self.heads, self.size).permute(2, 3, 0, 1, 4)
        context = torch.empty(rows, width, self.heads, self.size)
        for head in range(self.heads):
            scores = torch.matmul(query[head], key[head].transpose(1, 2)).float()
            of_queries = torch.mm(three[:, 0, head], self.keys[head, :, packing.window]).float()
            of_keys = torch.mm(three[:, 1, head], self.queries[head, :, packing.window]).float()
            add_distances(scores.numpy(), of_queries.numpy(), of_keys.numpy(), packing.places, group.lengths)
            if group.keys is not None:
                scores.masked_fill_(~group.keys[:, None, :], _MASKED)
            context[:, :, head] = torch.matmul(torch.softmax(scores, 2), value[head])
        context = context.view(rows * width, -1)
        return context if group.slots is None else context[group.slots]


class _FirstTokenLayer(nn.Module):  # type: ignore[misc]
    """The last layer of a classifier that uses only the first token of each document.

    Args:
        layer: The layer of transformers.
        relative: The vectors of the relative positions.
    """

    def __init__(self, layer: nn.Module, relative: torch.Tensor) -> None:
        super().__init__()
        own = layer.attention.self
        self.heads, self.size = own.num_attention_heads, own.attention_head_size
        self.query = _joined([(own.query_proj, _scale(own))])
        self.project = _joined([(own.key_proj, 1.0), (own.value_proj, 1.0)])
        for name, vectors in zip(("keys", "queries"), _position_vectors(own, relative), strict=True):
            self.register_buffer(name, vectors, persistent=False)
        self.rest = TokenWise(layer)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The new vector of the first token of each document.

        Args:
            hidden: The vectors of all tokens, by document and token.
            mask: Which tokens are real.
            positions: The relative position of the first token, seen from each.
        """
        rows, length, _ = hidden.shape
        begin = hidden[:, :1]
        query = self.query(begin).view(rows, self.heads, 1, self.size)
        key, value = self.project(hidden).view(rows, length, 2, self.heads, self.size).permute(2, 0, 3, 1, 4)
        bias = torch.matmul(query, self.keys[:, positions].transpose(1, 2))
        bias = bias + (key * self.queries[:, positions]).sum(-1).unsqueeze(2)
        bias = bias.masked_fill(~mask[:, None, None, :], _MASKED)
        context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        return self.rest(context.transpose(1, 2).reshape(begin.shape), begin)


def _scale(own: Any) -> float:
    """The factor applied to attention scores."""
    return 1 / math.sqrt(own.attention_head_size * (1 + ("c2p" in own.pos_att_type) + ("p2c" in own.pos_att_type)))


def _position_vectors(own: Any, relative: torch.Tensor) -> list[torch.Tensor]:
    """The keys of the relative positions and their scaled queries, by head; zeros where an attention has none."""
    shared, kinds = own.share_att_key, own.pos_att_type
    key: Any = own.key_proj if shared else getattr(own, "pos_key_proj", None)
    query: Any = own.query_proj if shared else getattr(own, "pos_query_proj", None)
    keys = key(relative) if "c2p" in kinds else torch.zeros_like(relative)
    queries = query(relative) * _scale(own) if "p2c" in kinds else torch.zeros_like(relative)
    shape = (len(relative), own.num_attention_heads, own.attention_head_size)
    return [vectors.view(shape).transpose(0, 1).contiguous() for vectors in (keys, queries)]


def _joined(parts: list[tuple[nn.Linear, float]]) -> nn.Linear:
    """One layer that computes the outputs of several, each times a factor, concatenated."""
    weight = torch.cat([part.weight * factor for part, factor in parts])
    made = nn.Linear(weight.shape[1], weight.shape[0])
    made.weight = nn.Parameter(weight)
    made.bias = nn.Parameter(torch.cat([part.bias * factor for part, factor in parts]))
    return made


def with_own_encoders(network: nn.Module, kind: torch.dtype | None = None) -> nn.Module:
    """The network with every DeBERTa inside it replaced by `DebertaEncoder`; with packed layers if a type is passed."""
    for name, child in list(network.named_children()):
        if is_known_deberta(child):
            # A network of ours says what its head looks at.
            declared = getattr(network, "uses_first_token_only", None)
            first_only = classifies_first_token(network) if declared is None else bool(declared)
            encoder = DebertaEncoder(child, first_only=first_only).eval()
            setattr(network, name, encoder if kind is None else with_packed_layers(encoder, kind))
        else:
            with_own_encoders(child, kind)
    return network


class DebertaEncoder(nn.Module):  # type: ignore[misc]
    """Computes the last hidden state of a DeBERTa-v2 or -v3 model, like transformers' own.

    Args:
        model: A `DebertaV2Model`; its weights are shared if they are used unchanged.
        first_only: Return only the vector of the first token of each document.
    """

    def __init__(self, model: nn.Module, *, first_only: bool = False) -> None:
        super().__init__()
        self.config = model.config
        self.embeddings = model.embeddings
        encoder = model.encoder
        self.buckets = encoder.position_buckets
        self.max_distance = encoder.max_relative_positions
        self.span = encoder.rel_embeddings.num_embeddings // 2
        self.first_only = first_only
        with torch.no_grad():
            relative = encoder.get_rel_embedding()[: 2 * self.span]
            full = encoder.layer[:-1] if first_only else encoder.layer
            self.layers = nn.ModuleList(_Layer(layer, relative) for layer in full)
            if first_only:
                self.layers.append(_FirstTokenLayer(encoder.layer[-1], relative))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> BaseModelOutput:
        """The vectors of all tokens, or of the first ones; those of padding are undefined.

        Other arguments of transformers are ignored.
        """
        hidden = self.embeddings(input_ids=input_ids, mask=attention_mask)
        length = input_ids.shape[1]
        buckets = distance_buckets(length, buckets=self.buckets, max_distance=self.max_distance)
        packing = Packing(attention_mask, buckets, self.span)
        tokens = hidden[packing.inside]
        for layer in self.layers[:-1] if self.first_only else self.layers:
            tokens = layer(tokens, packing)
        hidden = tokens.new_zeros(hidden.shape).index_put_((packing.inside,), tokens)
        if self.first_only:
            # The distance of the first token from each: 0, then decreasing.
            positions = (buckets + self.span).clamp(0, 2 * self.span - 1)[1 : length + 1].flip(0)
            hidden = self.layers[-1](hidden, attention_mask > 0, positions)
        return BaseModelOutput(last_hidden_state=hidden)
