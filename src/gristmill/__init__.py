"""Gristmill: text curation for training language models, from a laptop to a Ray cluster.

The names that most scripts need can be imported from here; each is loaded on its first use.
"""

from __future__ import annotations

from os import environ

from gristmill.lazy import lazy_names

TYPE_CHECKING = False  # `typing` would take longer to import than all of this
if TYPE_CHECKING:
    from gristmill.ledger.ask.ledger import Ledger
    from gristmill.pipeline.pipeline import Pipeline
    from gristmill.recipes.loader import load_recipe
    from gristmill.stages.base import ProcessingStage
    from gristmill.stages.deduplication.exact.workflow import ExactDeduplicationWorkflow
    from gristmill.stages.deduplication.fuzzy.workflow import FuzzyDeduplicationWorkflow
    from gristmill.stages.deduplication.semantic.text_workflow import TextSemanticDeduplicationWorkflow
    from gristmill.stages.function_decorators import processing_stage
    from gristmill.stages.resources import Resources
    from gristmill.stages.text.filters.doc_filter import DocumentFilter
    from gristmill.stages.text.filters.score_filter import Filter, Score, ScoreFilter
    from gristmill.stages.text.io.reader import JsonlReader, ParquetReader
    from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
    from gristmill.stages.text.modifiers.doc_modifier import DocumentModifier
    from gristmill.stages.text.modifiers.modifier import Modify
    from gristmill.tasks.document import DocumentBatch

__version__ = "0.1.0"
__all__ = [
    "DocumentBatch",
    "DocumentFilter",
    "DocumentModifier",
    "ExactDeduplicationWorkflow",
    "Filter",
    "FuzzyDeduplicationWorkflow",
    "JsonlReader",
    "JsonlWriter",
    "Ledger",
    "Modify",
    "ParquetReader",
    "ParquetWriter",
    "Pipeline",
    "ProcessingStage",
    "Resources",
    "Score",
    "ScoreFilter",
    "TextSemanticDeduplicationWorkflow",
    "__version__",
    "load_recipe",
    "processing_stage",
]

if not TYPE_CHECKING:  # to a type checker, any other name is an error
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ledger.ask.ledger": ["Ledger"],
            "pipeline.pipeline": ["Pipeline"],
            "recipes.loader": ["load_recipe"],
            "stages.base": ["ProcessingStage"],
            "stages.deduplication": [
                "ExactDeduplicationWorkflow",
                "FuzzyDeduplicationWorkflow",
                "TextSemanticDeduplicationWorkflow",
            ],
            "stages.function_decorators": ["processing_stage"],
            "stages.resources": ["Resources"],
            "stages.text.filters.doc_filter": ["DocumentFilter"],
            "stages.text.filters.score_filter": ["Filter", "Score", "ScoreFilter"],
            "stages.text.io.reader": ["JsonlReader", "ParquetReader"],
            "stages.text.io.writer": ["JsonlWriter", "ParquetWriter"],
            "stages.text.modifiers.doc_modifier": ["DocumentModifier"],
            "stages.text.modifiers.modifier": ["Modify"],
            "tasks.document": ["DocumentBatch"],
        },
    )

if environ.get("GRISTMILL_COMPAT"):
    from importlib import import_module

    import_module("gristmill.compat.finder").install(force=environ["GRISTMILL_COMPAT"] == "force")
