"""A DeBERTa encoder for inference: the weights of transformers' model, arranged for speed.

The attention is that of He et al., "DeBERTa", arXiv:2006.03654, with the log buckets of DeBERTaV3, arXiv:2111.09543.
Content-to-position and position-to-content scores depend only on the distance of two tokens, so they are computed for
each distance once and read along diagonals, instead of being gathered for each pair of tokens.

Documents are computed without their padding where that is faster: what concerns a single token is done for the tokens
of all documents at once, and attention for one document after the other. Where a classifier looks at the first token
alone, the last layer computes no other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from gristmill.stages.text.models.transformers_internals import classifies_first_token, is_known_deberta

# Pairs of tokens whose scores are computed together.
_SCORES_AT_ONCE = 512 * 512
# Numbers in the vectors of a document from which it is worth the calls of an attention of its own.
_NUMBERS_ALONE = 16_384


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


class TokenWise(nn.Module):  # type: ignore[misc]
    """What follows the attention in a layer, token by token.

    Args:
        layer: The layer of transformers.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.attention_dense, self.attention_norm = layer.attention.output.dense, layer.attention.output.LayerNorm
        self.inner, self.activation = layer.intermediate.dense, layer.intermediate.intermediate_act_fn
        self.outer, self.norm = layer.output.dense, layer.output.LayerNorm

    def forward(self, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The new vectors, from what the attention gave and the vectors before it."""
        hidden = self.attention_norm(self.attention_dense(context) + hidden)
        return self.norm(self.outer(self.activation(self.inner(hidden))) + hidden)


class _Layer(nn.Module):  # type: ignore[misc]
    """One layer; all projections of a token in one multiplication, the scale of the scores folded into the weights.

    Args:
        layer: The layer of transformers.
        relative: The vectors of the relative positions.
        first_only: Whether `first` will be called instead of `forward`; then queries are projected on their own.
    """

    def __init__(self, layer: nn.Module, relative: torch.Tensor, *, first_only: bool = False) -> None:
        super().__init__()
        own = layer.attention.self
        self.heads = own.num_attention_heads
        self.size = own.attention_head_size
        kinds = own.pos_att_type
        scale = 1 / math.sqrt(self.size * (1 + ("c2p" in kinds) + ("p2c" in kinds)))
        parts = [(own.query_proj, scale), (own.key_proj, 1.0), (own.value_proj, 1.0)]
        self.query: Any = _joined(parts[:1]) if first_only else None
        self.project = _joined(parts[1:] if first_only else parts)
        shared = own.share_att_key
        key: Any = own.key_proj if shared else getattr(own, "pos_key_proj", None)
        query: Any = own.query_proj if shared else getattr(own, "pos_query_proj", None)
        self.has_c2p, self.has_p2c = "c2p" in kinds, "p2c" in kinds
        if self.has_c2p:
            self.register_buffer("position_keys", self._by_head(key(relative)), persistent=False)
        if self.has_p2c:
            self.register_buffer("position_queries", self._by_head(query(relative) * scale), persistent=False)
        self.rest = TokenWise(layer)

    def _by_head(self, positions: torch.Tensor) -> torch.Tensor:
        return positions.view(-1, self.heads, self.size).permute(1, 0, 2).contiguous()

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None, places: torch.Tensor) -> torch.Tensor:
        """The new vectors of documents with their padding.

        Args:
            hidden: The vectors, by document and token.
            mask: Which tokens are real, in three dimensions; None when all are.
            places: For each distance from -length to length - 1 the relative position that it is on.
        """
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
        return self.rest(torch.cat(found).reshape(rows, length, width), hidden)

    def packed(self, hidden: torch.Tensor, lengths: list[int], places: torch.Tensor) -> torch.Tensor:
        """The new vectors of the tokens of all documents, one document after the other, without padding."""
        three = self.project(hidden).view(len(hidden), 3, self.heads, self.size).permute(1, 2, 0, 3).contiguous()
        keys, queries = self._positions(places)
        found = []
        for document in three.split(lengths, dim=2):
            bias = _bias_alone(document[0], document[1], keys, queries)
            # All of four dimensions: torch has a fused attention for these alone.
            bias = None if bias is None else bias.unsqueeze(0)
            query, key, value = document.unsqueeze(1)
            context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
            found.append(context[0].transpose(0, 1).reshape(-1, hidden.shape[1]))
        return self.rest(torch.cat(found), hidden)

    def first(self, hidden: torch.Tensor, mask: torch.Tensor | None, places: torch.Tensor) -> torch.Tensor:
        """The new vector of the first token of each document; the arguments are those of `forward`."""
        rows, length, _ = hidden.shape
        begin = hidden[:, :1]
        query = self.query(begin).view(rows, self.heads, 1, self.size)
        pair = self.project(hidden).view(rows, length, 2, self.heads, self.size).permute(2, 0, 3, 1, 4)
        key, value = pair[0], pair[1]
        keys, queries = self._positions(places)
        bias = None
        if keys is not None:
            # From distance 0 on, which is that of the first token, they fall.
            bias = torch.matmul(query, keys[:, :, length - 1 : 2 * length - 1])
        if queries is not None:
            other = (key * queries[:, :, 1 : length + 1].transpose(1, 2).flip(1)).sum(-1).unsqueeze(2)
            bias = other if bias is None else bias + other
        if mask is not None:
            bias = _masked(bias, mask[:, None], query)
        context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        return self.rest(context.transpose(1, 2).reshape(begin.shape), begin)

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
            bias = _masked(bias, mask, query).expand(heads, rows, length, length)
        context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        return context.permute(1, 2, 0, 3)


def _joined(parts: list[tuple[nn.Linear, float]]) -> nn.Linear:
    """One layer that gives the outputs of several, each times a factor, one after the other."""
    weight = torch.cat([part.weight * factor for part, factor in parts])
    made = nn.Linear(weight.shape[1], weight.shape[0])
    made.weight = nn.Parameter(weight)
    made.bias = nn.Parameter(torch.cat([part.bias * factor for part, factor in parts]))
    return made


def _masked(bias: torch.Tensor | None, mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The bias, with the lowest number where the mask is not set."""
    empty = torch.zeros((), dtype=query.dtype, device=query.device)
    return torch.where(mask, empty if bias is None else bias, torch.finfo(query.dtype).min)


def _bias_alone(
    query: torch.Tensor, key: torch.Tensor, keys: torch.Tensor | None, queries: torch.Tensor | None
) -> torch.Tensor | None:
    """What distances add to the scores of one document, of shape (heads, query, key).

    Args:
        query: The queries, by head and token.
        key: The keys, likewise.
        keys: The keys of the distances, or None; for as many tokens or more.
        queries: The queries of the distances, or None.
    """
    length = query.shape[1]
    # Rows i of c2p, and rows j of p2c, that is [i, j] and [j, i].
    rows = None if keys is None else diagonals(torch.bmm(query, _near(keys, length)), length - 1)
    other = None if queries is None else diagonals(torch.bmm(key, _near(queries, length)), length).transpose(1, 2)
    if rows is None or other is None:
        return other if rows is None else rows
    return rows + other


def _near(positions: torch.Tensor, length: int) -> torch.Tensor:
    """The vectors of the distances from -length to length - 1, of those for longer documents, in either order."""
    longest = positions.shape[2] // 2
    return positions[:, :, longest - length : longest + length]


def _parts(rows: int, length: int) -> list[slice]:
    """The documents in groups whose scores, about this many per head, stay in the processor's caches."""
    size = max(1, _SCORES_AT_ONCE // (length * length))
    return [slice(start, start + size) for start in range(0, rows, size)]


def diagonals(scores: torch.Tensor, start: int) -> torch.Tensor:
    """The square with `result[i, j] = scores[i, j - i + start]`, for each matrix of `scores`."""
    count, length, distances = scores.shape
    return scores.as_strided((count, length, length), (length * distances, distances - 1, 1), start)


def with_own_encoders(network: nn.Module) -> nn.Module:
    """The network with every DeBERTa inside it replaced by `DebertaEncoder`."""
    for name, child in list(network.named_children()):
        if is_known_deberta(child):
            # A network of ours says what its head looks at.
            declared = getattr(network, "uses_first_token_only", None)
            first_only = classifies_first_token(network) if declared is None else bool(declared)
            setattr(network, name, DebertaEncoder(child, first_only=first_only).eval())
        else:
            with_own_encoders(child)
    return network


class DebertaEncoder(nn.Module):  # type: ignore[misc]
    """Gives the last hidden state of a DeBERTa-v2 or -v3 model, as transformers' own would.

    Args:
        model: A `DebertaV2Model`; its weights are shared where they are used unchanged.
        first_only: Give the vector of the first token of each document alone.
    """

    def __init__(self, model: nn.Module, *, first_only: bool = False) -> None:
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
            ends = [first_only and layer is encoder.layer[-1] for layer in encoder.layer]
            self.layers = nn.ModuleList(
                _Layer(layer, relative, first_only=end) for layer, end in zip(encoder.layer, ends, strict=True)
            )
        self.first_only = first_only

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> BaseModelOutput:
        """The vectors of all tokens, or of the first ones; those of padding mean nothing.

        Other arguments of transformers are not used.
        """
        hidden = self.embeddings(input_ids=input_ids, mask=attention_mask)
        length = input_ids.shape[1]
        buckets = distance_buckets(length, buckets=self.buckets, max_distance=self.max_distance).to(input_ids.device)
        places = (buckets + self.span).clamp(0, 2 * self.span - 1)
        mask = None
        if not bool(attention_mask.all()):
            mask = (attention_mask > 0)[:, None, :]
        full = self.layers[:-1] if self.first_only else self.layers
        lengths = self._lengths_alone(attention_mask)
        if lengths is None:
            for layer in full:
                hidden = layer(hidden, mask, places)
        else:
            hidden = self._packed(full, hidden, attention_mask > 0, lengths, places)
        if self.first_only:
            hidden = self.layers[-1].first(hidden, mask, places)
        return BaseModelOutput(last_hidden_state=hidden)

    def _lengths_alone(self, mask: torch.Tensor) -> list[int] | None:
        """The tokens of each document, if padding is on the right and documents are long enough to compute alone."""
        real = mask > 0
        if int(real.sum()) * self.config.hidden_size < _NUMBERS_ALONE * len(mask):
            return None
        if not bool(real[:, 0].all()) or bool((real[:, 1:] & ~real[:, :-1]).any()):
            return None
        lengths: list[int] = real.sum(1).tolist()
        return lengths

    def _packed(
        self, layers: Any, hidden: torch.Tensor, mask: torch.Tensor, lengths: list[int], places: torch.Tensor
    ) -> torch.Tensor:
        """The vectors after some layers that leave out the padding."""
        tokens = hidden[mask]
        for layer in layers:
            tokens = layer.packed(tokens, lengths, places)
        result = tokens.new_zeros(hidden.shape)
        result[mask] = tokens
        return result
