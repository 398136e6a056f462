"""Recipes in the form of NeMo Curator's configuration files, written from tables of facts.

The structure (sections, keys, nesting, required values) is that of its files; the words around it are ours.
"""

from __future__ import annotations

from typing import Any

import yaml

from gristmill.recipes.loader import load_recipe
from gristmill.recipes.names import FILTER, NAMES, WORKFLOWS

HYDRA: dict[str, Any] = {
    "defaults": ["_self_", {"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}],
    "hydra": {"run": {"dir": "."}, "output_subdir": None},
    "documentation": "Any words, which nobody reads here: ${not.a.reference} and ???",
}
RAY = {"_target_": "nemo_curator.core.client.RayClient", "num_cpus": None, "num_gpus": 4}
PATHS = {"input_path": "???", "output_path": "???"}


def target(name: str) -> str:
    """The import path of a class there."""
    module = WORKFLOWS.get(name) or NAMES[name].module
    return f"{module.replace('gristmill', 'nemo_curator', 1)}.{name}"


def filtered(filters: list[tuple[str, dict[str, Any]]], **variables: Any) -> dict[str, Any]:
    """A file that reads JSONL, applies filters in order and writes JSONL."""
    wrapped = [
        {
            "_target_": "nemo_curator.stages.text.filters.score_filter.ScoreFilter",
            "filter_obj": {"_target_": target(name), **parameters},
            "text_field": "${text_field}",
            "score_field": None,
        }
        for name, parameters in filters
    ]
    reader = {
        "_target_": target("JsonlReader"),
        "file_paths": "${input_path}",
        "files_per_partition": None,
        "blocksize": None,
        "fields": None,
    }
    writer = {"_target_": target("JsonlWriter"), "path": "${output_path}", "fields": None}
    return {**HYDRA, **PATHS, "text_field": "text", **variables, "stages": [reader, *wrapped, writer]}


def heuristic(name: str) -> dict[str, Any]:
    """The cascade of a shipped recipe in that form."""
    placed = {"input_path": "in", "output_path": "out"}
    entries = [entry for entry in load_recipe(name, variables=placed).stages if NAMES[entry.name].kind == FILTER]
    return filtered(
        [
            (entry.name, {key: value for key, value in entry.parameters.items() if key != "text_field"})
            for entry in entries
        ]
    )


def code() -> dict[str, Any]:
    """Filters for Python."""
    return filtered(
        [
            ("PythonCommentToCodeFilter", {"min_comment_to_code_ratio": 0.001, "max_comment_to_code_ratio": 0.85}),
            ("NumberOfLinesOfCodeFilter", {"min_lines": 5, "max_lines": 20000}),
            ("TokenizerFertilityFilter", {"path_to_tokenizer": "${path_to_tokenizer}", "min_char_to_token_ratio": 2}),
        ],
        path_to_tokenizer="???",
    )


def fasttext() -> dict[str, Any]:
    """Language and quality by fastText."""
    return filtered(
        [
            ("FastTextLangId", {"model_path": "${fasttext_langid_model_path}", "min_langid_score": 0.3}),
            (
                "FastTextQualityFilter",
                {"model_path": "${fasttext_quality_model_path}", "label": "__label__hq", "alpha": 3, "seed": 42},
            ),
        ],
        fasttext_langid_model_path="???",
        fasttext_quality_model_path="???",
    )


def _deduplication(name: str, parameters: dict[str, Any], **variables: Any) -> dict[str, Any]:
    given = {key: f"${{{key}}}" for key in ("input_path", "output_path", *variables)}
    workflow = [{"_target_": target(name), **given, **parameters}]
    return {**HYDRA, **PATHS, **variables, "ray_client": RAY, "workflow": workflow}


def exact() -> dict[str, Any]:
    """A list of exact duplicates."""
    return _deduplication(
        "ExactDeduplicationWorkflow",
        {
            "input_blocksize": "2GiB", "input_file_extensions": None, "read_kwargs": None, "write_kwargs": None,
            "assign_id": True, "perform_removal": False, "env_vars": None,
        },
        input_filetype="jsonl", text_field="text", id_field=None,
    )  # fmt: skip


def fuzzy() -> dict[str, Any]:
    """A list of near-duplicates."""
    return _deduplication(
        "FuzzyDeduplicationWorkflow",
        {
            "input_blocksize": "1GiB", "input_file_extensions": None, "read_kwargs": None, "cache_kwargs": None,
            "write_kwargs": None, "perform_removal": False, "seed": 42, "char_ngrams": 24, "num_bands": 20,
            "minhashes_per_band": 13, "use_64_bit_hash": False, "bands_per_iteration": 5, "env_vars": None,
        },
        cache_path="???", input_filetype="jsonl", text_field="text",
    )  # fmt: skip


def semantic() -> dict[str, Any]:
    """Documents without those that mean nearly the same as another one."""
    return _deduplication(
        "TextSemanticDeduplicationWorkflow",
        {
            "perform_removal": True, "model_identifier": "sentence-transformers/all-MiniLM-L6-v2",
            "embedding_max_seq_length": 512, "embedding_max_chars": None, "embedding_pooling": "mean_pooling",
            "embedding_model_inference_batch_size": 256, "n_clusters": 100, "eps": 0.01,
            "ranking_strategy": {
                "_target_": "nemo_curator.stages.deduplication.semantic.RankingStrategy",
                "metadata_cols": ["cosine_dist_to_cent"], "ascending": True,
            },
            "kmeans_embedding_output_dtype": "float16", "pairwise_compute_dtype": "float16",
            "pairwise_batch_size": 1024, "use_id_generator": False, "id_generator_state_file": None,
            "input_files_per_partition": 1, "verbose": True, "clear_output": True,
        },
        cache_path="???", input_filetype="jsonl", output_filetype="jsonl", text_field="text", id_field="id",
    )  # fmt: skip


def text(whole: dict[str, Any]) -> str:
    """The file as YAML."""
    return yaml.safe_dump(whole, sort_keys=False)
