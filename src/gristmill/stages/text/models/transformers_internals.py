"""Every undocumented part of transformers that is used, with the reason; checked by `test_library_internals.py`.

Written for transformers 5.22. Older versions that the extra `models` accepts were not tried.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

# The own encoder takes these weights and settings out of a DeBERTa and out of each of its layers, because transformers
# has no faster attention for it. A model without them, of a version that names them otherwise, runs as it is.
_OF_DEBERTA = attrgetter(
    "embeddings",
    "encoder.position_buckets",
    "encoder.max_relative_positions",
    "encoder.rel_embeddings.num_embeddings",
    "encoder.get_rel_embedding",
)
_OF_DEBERTA_LAYER = attrgetter(
    "attention.self.num_attention_heads",
    "attention.self.attention_head_size",
    "attention.self.pos_att_type",
    "attention.self.share_att_key",
    "attention.self.query_proj.bias",
    "attention.self.key_proj.bias",
    "attention.self.value_proj.bias",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "intermediate.intermediate_act_fn",
    "output.dense",
    "output.LayerNorm",
)


def is_known_deberta(model: Any) -> bool:
    """Whether a module is a DeBERTa-v2 or -v3 with relative positions and consists only of known parts."""
    config = getattr(model, "config", None)
    if (
        type(model).__name__ != "DebertaV2Model"
        or not bool(getattr(config, "relative_attention", False))
        or bool(getattr(config, "conv_kernel_size", 0))
        or int(getattr(model, "z_steps", 0)) > 1
    ):
        return False
    try:
        _OF_DEBERTA(model)
        parts = [_OF_DEBERTA_LAYER(layer) for layer in model.encoder.layer]
    except AttributeError:
        return False
    return bool(parts)


def classifies_first_token(network: Any) -> bool:
    """Whether a network is transformers' DeBERTa classifier, whose pooler uses only the first token."""
    return (
        type(network).__name__ == "DebertaV2ForSequenceClassification"
        and type(getattr(network, "pooler", None)).__name__ == "ContextPooler"
    )


def is_exact_gelu(activation: Any) -> bool:
    """Whether an activation is exact GELU (by the error function), not an approximation."""
    return type(activation).__name__ == "GELUActivation"
