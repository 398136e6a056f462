from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel, DebertaV2Model

from gristmill.kernels.distance_bias import add_distances
from gristmill.stages.text.classifiers.deberta import Deberta
from gristmill.stages.text.models.acceleration import deberta_encoder
from gristmill.stages.text.models.acceleration.deberta_encoder import DebertaEncoder, Packing, with_own_encoders
from gristmill.stages.text.models.acceleration.int8 import with_int8_layers
from tests.unit.stages.text.models.tiny import deberta_config

# Random weights of this size give attention that differs from token to token, and errors of rounding below the limit.
SIZE = {"initializer_range": 0.2}
CONFIGS = {
    "v3": {},
    "v2 with keys of its own": {"share_att_key": False, "norm_rel_ebd": "none"},
    "no buckets": {"position_buckets": -1},
    "no buckets and few distances": {"position_buckets": -1, "max_relative_positions": 16},
    "many buckets": {"position_buckets": 32},
    "content to position": {"pos_att_type": ["c2p"]},
    "position to content": {"pos_att_type": ["p2c"]},
    "neither": {"pos_att_type": []},
    "positions in the input": {"position_biased_input": True},
    "token types and narrow embeddings": {"type_vocab_size": 2, "embedding_size": 16},
}
LENGTHS = [41, 30, 30, 17, 3, 1]


def inputs(lengths: list[int], *, side: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens, and which of them are real."""
    width = max(lengths)
    ids = torch.randint(3, 60, (len(lengths), width), generator=torch.Generator().manual_seed(1))
    places = torch.arange(width)
    mask = torch.stack([places < n if side == "right" else places >= width - n for n in lengths]).to(torch.int64)
    return ids * mask, mask


def model_of(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return DebertaV2Model(deberta_config(**SIZE, **changes)).eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", list(CONFIGS))
def test_vectors_equal_those_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(**CONFIGS[name])
    ids, mask = inputs(LENGTHS)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
        for similar in (0.0, 0.75, 1.0):  # all documents together, some, and equal lengths only
            monkeypatch.setattr(deberta_encoder, "_SIMILAR", similar)
            found = DebertaEncoder(model)(ids, mask).last_hidden_state
            assert ((found - expected) * mask[:, :, None]).abs().max() < 1e-5
            first = DebertaEncoder(model, first_only=True)(ids, mask).last_hidden_state
            assert first.shape == (len(LENGTHS), 1, expected.shape[2])
            assert (first[:, 0] - expected[:, 0]).abs().max() < 1e-5


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=4), st.integers(0, 9))
def test_what_distances_add_equals_the_plain_definition(lengths: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    tokens, longest, positions = sum(lengths), max(lengths), 20
    of_queries, of_keys = random.random((2, tokens, positions), np.float32)
    places = random.integers(0, positions, 2 * longest).astype(np.uint32)
    scores = random.random((len(lengths), longest, longest), np.float32)
    expected = scores.copy()
    start = 0
    for number, length in enumerate(lengths):
        for query in range(length):
            for key in range(length):
                place = places[longest + query - key]
                expected[number, query, key] += of_queries[start + query, place] + of_keys[start + key, place]
        start += length
    add_distances(scores, of_queries, of_keys, places, np.array(lengths))
    assert np.allclose(scores, expected, atol=1e-6)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 3000))
def test_groups_take_every_token_once_and_pad_little(lengths: list[int], pairs: int) -> None:
    width = max(1, *lengths)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).to(torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deberta_encoder, "_PAIRS_AT_ONCE", pairs)
        packing = Packing(mask, torch.arange(-width, width), 512)
    assert [length for group in packing.groups for length in group.lengths] == [length for length in lengths if length]
    ends = [0, *(group.tokens.stop for group in packing.groups)]
    assert [group.tokens.start for group in packing.groups] == ends[:-1]
    assert ends[-1] == sum(lengths)
    for group in packing.groups:
        longest = group.lengths.max()
        assert len(group.lengths) == 1 or len(group.lengths) * longest**2 <= pairs
        assert (group.lengths >= 0.75 * longest).all()
        assert (group.slots is None) == bool((group.lengths == longest).all())


@pytest.mark.parametrize("hole", [False, True])
def test_padding_on_the_left_and_masked_tokens_within_a_text_count_for_nothing(hole: bool) -> None:
    model = model_of()
    ids, mask = inputs([9, 9, 8] if hole else [9, 5, 2], side="left")
    if hole:
        mask[1, 4] = 0
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
        found = DebertaEncoder(model)(ids, mask).last_hidden_state
    assert ((found - expected) * mask[:, :, None]).abs().max() < 1e-5


def test_long_documents_have_the_vectors_of_transformers_in_float32_and_nearly_in_8_bits() -> None:
    model = model_of(position_buckets=256, max_position_embeddings=512, max_relative_positions=-1)
    ids, mask = inputs([300, 260, 70])
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
        own = DebertaEncoder(model).eval()
        assert ((own(ids, mask).last_hidden_state - expected) * mask[:, :, None]).abs().max() < 2e-5
        eight = with_int8_layers(own)(ids, mask).last_hidden_state
    assert ((eight - expected) * mask[:, :, None]).abs().mean() < 0.02


def test_the_last_layer_of_a_first_token_classifier_computes_no_other_token() -> None:
    torch.manual_seed(0)
    network = with_own_encoders(AutoModelForSequenceClassification.from_config(deberta_config(num_labels=3)).eval())
    seen: list[torch.Size] = []
    network.deberta.layers[-1].rest.inner.register_forward_hook(lambda _layer, given, _out: seen.append(given[0].shape))
    ids, mask = inputs([7, 4])
    with torch.no_grad():
        assert network(input_ids=ids, attention_mask=mask).logits.shape == (2, 3)
    assert seen == [torch.Size([2, 1, 32])]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_head_over_all_tokens_gets_them_all(pooling: str) -> None:
    torch.manual_seed(0)
    base = deberta_config(**SIZE).to_dict()
    labels = {"0": "a", "1": "b", "2": "c"}
    network = Deberta({"base_config": base, "fc_dropout": 0.1, "id2label": labels, "pooling": pooling}).eval()
    ids, mask = inputs(LENGTHS)
    batch = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad():
        expected = network(batch)
        found = with_own_encoders(network)(batch)
        eight = with_int8_layers(network)(batch)
    assert network.model.first_only == (pooling == "cls")
    assert (found - expected).abs().max() < 1e-5
    assert (eight - expected).abs().max() < 0.03


class OtherLogits(Deberta):
    def logits(self, batch: Any) -> torch.Tensor:
        hidden = self.model(**batch).last_hidden_state
        return self.fc(hidden[:, 1])  # type: ignore[no-any-return]


class OtherForward(Deberta):
    def forward(self, batch: Any) -> torch.Tensor:
        hidden = self.model(**batch).last_hidden_state
        return self.fc(hidden[:, 1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [OtherLogits, OtherForward])
def test_a_subclass_with_hooks_of_its_own_gets_all_tokens(kind: type[Deberta]) -> None:
    torch.manual_seed(0)
    config = {"base_config": deberta_config(**SIZE).to_dict(), "fc_dropout": 0.1, "id2label": {"0": "a", "1": "b"}}
    network = kind(config).eval()
    ids, mask = inputs([9, 5])
    batch = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad():
        expected = network(batch)
        assert (with_own_encoders(network)(batch) - expected).abs().max() < 1e-5
    assert not network.model.first_only


def test_models_of_other_kinds_stay_as_they_are() -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=9, **small))
    absolute = DebertaV2Model(deberta_config(relative_attention=False, position_biased_input=True))
    convolving = DebertaV2Model(deberta_config(conv_kernel_size=3))
    renamed = DebertaV2Model(deberta_config())
    layer = renamed.encoder.layer[1].attention
    layer.renamed = layer.self
    del layer.self
    network = with_own_encoders(nn.ModuleList([bert, absolute, convolving, renamed]))
    assert list(network) == [bert, absolute, convolving, renamed]
