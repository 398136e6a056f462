"""Where scripts look for the workflows, and which arguments they give by position."""

from __future__ import annotations

import importlib
import inspect

import pytest

from gristmill.stages import deduplication


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("deduplication.exact.workflow", "ExactDeduplicationWorkflow"),
        ("deduplication.exact", "ExactDeduplicationWorkflow"),
        ("deduplication.fuzzy.workflow", "FuzzyDeduplicationWorkflow"),
        ("deduplication.fuzzy", "FuzzyDeduplicationWorkflow"),
        ("deduplication.semantic.workflow", "SemanticDeduplicationWorkflow"),
        ("deduplication.semantic", "SemanticDeduplicationWorkflow"),
        ("text.deduplication", "TextDuplicatesRemovalWorkflow"),
        ("text.deduplication.removal_workflow", "TextDuplicatesRemovalWorkflow"),
        ("text.deduplication", "TextSemanticDeduplicationWorkflow"),
        ("text.deduplication.semantic", "TextSemanticDeduplicationWorkflow"),
    ],
)
def test_every_way_leads_to_the_same_workflow(module: str, name: str) -> None:
    found = importlib.import_module(f"gristmill.stages.{module}")
    assert getattr(found, name) is getattr(deduplication, name)
    with pytest.raises(AttributeError, match="Nothing"):
        found.Nothing  # noqa: B018


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("ExactDeduplicationWorkflow", ["output_path", "input_path", "input_filetype", "input_blocksize"]),
        ("FuzzyDeduplicationWorkflow", ["cache_path", "output_path", "input_path", "input_filetype"]),
        ("SemanticDeduplicationWorkflow", ["input_path", "output_path", "n_clusters"]),
        ("TextSemanticDeduplicationWorkflow", ["input_path", "output_path"]),
        ("TextDuplicatesRemovalWorkflow", ["input_path", "ids_to_remove_path", "output_path", "input_filetype"]),
    ],
)
def test_the_first_arguments_keep_their_order(name: str, first: list[str]) -> None:
    parameters = [*inspect.signature(getattr(deduplication, name)).parameters.values()]
    assert [parameter.name for parameter in parameters[: len(first)]] == first
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters[: len(first)])
