"""Maps the public names of NeMo Curator 1.4 to Gristmill. Paths are relative to `nemo_curator`.

A module of the same path in Gristmill needs no entry. `tests/contract/test_compat_names.py` checks every public name.
"""

from __future__ import annotations

from typing import Any

VERSION = "1.4.0"
"""The release of NeMo Curator whose names these are."""

_FILTERS = ("stages.text.filters",)
_MODIFIERS = ("stages.text.modifiers",)
_FUZZY = ("compat.fuzzy_stages",)
_SEMANTIC = ("compat.semantic_stages",)
_FILES = ("compat.files",)
_CLUSTER = ("compat.cluster",)
_DESIGNER = ("compat.data_designer",)
_VLLM = ("compat.vllm_names",)
_STRING_MODIFIERS = "c4 line_remover markdown_remover newline_normalizer quotation_remover slicer url_remover"


def _below(parent: str, children: str, each: Any) -> dict[str, Any]:
    return {f"{parent}.{child}": each for child in children.split()}


MODULES: dict[str, tuple[str, ...]] = {
    "backends.experimental.ray_actor_pool": ("backends.ray_actor_pool",),  # until 1.1, with the next two
    "backends.experimental.ray_actor_pool.executor": ("backends.ray_actor_pool",),
    **_below("backends.experimental", "ray_data ray_data.executor", ("backends.ray_data",)),
    "backends.ray_actor_pool.executor": ("backends.ray_actor_pool",),
    **_below("backends", "experimental.utils ray_data.utils utils", _CLUSTER),
    **_below("backends", "failed_task_markers slurm_array", ("compat.slurm_array",)),
    "config.run": ("compat.config_run",),
    **_below("core", "constants utils", _CLUSTER),
    **_below("models", "base vllm_model", _VLLM),
    **_below(
        "stages.deduplication.fuzzy",
        "buckets_to_edges connected_components identify_duplicates lsh.stage minhash utils",
        _FUZZY,
    ),
    "stages.deduplication.id_generator": ("compat.id_generator",),
    "stages.deduplication.semantic": _SEMANTIC,
    **_below("stages.deduplication.semantic", "identify_duplicates kmeans pairwise pairwise_io ranking", _SEMANTIC),
    **_below("stages.text", "deduplication deduplication.removal", ("compat.removal",)),
    **_below("stages.synthetic.nemotron_cc.nemo_data_designer", "base nemotron_cc", _DESIGNER),
    "stages.file_partitioning": ("compat.readers", "stages.text.io.reader"),
    **_below(
        "stages.text.filters",
        "fasttext fasttext.fasttext_filters heuristic.code heuristic.code.code heuristic.repetition.repetition "
        "histogram.histogram token.token_count",
        _FILTERS,
    ),
    **_below("stages.text.filters", "code fasttext_filter heuristic_filter repetition", _FILTERS),  # until 1.1
    **_below("stages.text.io.reader", "base jsonl parquet", ("compat.readers",)),
    "stages.text.download.common_crawl": ("stages.text.download.common_crawl.stage",),
    "stages.text.io.reader": ("compat.readers",),
    **_below("stages.text.io.writer", "base jsonl parquet", ("compat.writers",)),
    "stages.text.io.writer": ("compat.writers",),
    "stages.text.io.writer.utils": ("compat.grouping", "compat.files"),
    "stages.text.models.utils": ("stages.text.models.model", "stages.text.models.tokens"),
    "stages.text.modules.modifier": _MODIFIERS,  # until 1.3
    "stages.text.modules.score_filter": _FILTERS,  # until 1.3
    **_below(
        "stages.text.modifiers", "fasttext fasttext.fasttext_label unicode unicode.unicode_reformatter", _MODIFIERS
    ),
    **_below("stages.text.modifiers.string", _STRING_MODIFIERS, _MODIFIERS),
    **_below("stages.text.modifiers", f"{_STRING_MODIFIERS} unicode_reformatter", _MODIFIERS),  # until 1.1
    "stages.text.modifiers.heuristic": _MODIFIERS,  # as its documentation writes them
    "stages.text.modules": (*_FILTERS, *_MODIFIERS),  # where they were in its first releases
    **_below("stages.text", "utils utils.text_utils", ("compat.text_functions",)),
    **_below("tasks", "sentinels tasks", ("tasks.base",)),
    "tasks.utils": ("ledger.performance",),
    **_below("utils", "atomic_io client_utils column_utils file_utils hash_utils storage_utils", _FILES),
    **_below("utils", "gpu_utils ray_utils", _CLUSTER),
    **_below("utils", "grouping operation_utils", ("compat.grouping",)),
    "utils.merge_file_prefixes": ("compat.merge_tokens",),
    "utils.performance_utils": ("ledger.performance",),
    "utils.retry_manifest": ("compat.slurm_array",),
    "utils.split_large_files": ("compat.split_large_files",),
    "utils.vllm_utils": _VLLM,
}
"""Modules of the old name, each with the modules of Gristmill that define its names, closest first."""

_VARIABLES = (
    "FAILED_TASKS_DIR_ENV_VAR",
    *(f"SLURM_ARRAY_{part}_ENV_VAR" for part in ("ENABLED", "MINIMUM_SHARD_INDEX", "SHARD_INDEX", "TOTAL_SHARDS")),
)

NAMES: dict[str, str] = {
    **{f"backends.base.{name}": f"compat.slurm_array:{name}" for name in _VARIABLES},  # where they were before 1.4
    "core.client.SlurmRayClient": "compat.slurm:SlurmRayClient",
    "stages.deduplication.exact.workflow.ID_GENERATOR_OUTPUT_FILENAME": "compat.id_generator:EXACT_FILE",
    "stages.deduplication.fuzzy.workflow.ID_GENERATOR_OUTPUT_FILENAME": "compat.id_generator:FUZZY_FILE",
    "tasks._EmptyTask": "tasks.base:EmptyTask",  # its name until 1.3
    **{f"stages.text.modules.{name}": f"stages.text.filters:{name}" for name in ("Filter", "Score", "ScoreFilter")},
    "stages.text.modules.Modify": "stages.text.modifiers:Modify",
    **dict.fromkeys(
        (
            "stages.text.experimental.translation.TranslationStage",
            "stages.text.experimental.translation.pipeline.TranslationStage",
            "stages.text.translation.TranslationPipeline",  # as a page of its documentation calls it
        ),
        "stages.synthetic.translation:TranslationStage",
    ),
}
"""Names that are not found by their module, as `module:name` of Gristmill."""

_TEXT_ONLY = "Gristmill curates text; there is no equivalent for this kind of data."
_LLM = (
    "The closest is LLMStage (gristmill.stages.text.annotate), which asks a model about every document: any prompt, "
    "answers as text or by a JSON schema."
)
_NO_TRANSLATION = (
    "The closest is TranslationStage (gristmill.stages.synthetic), which cuts, translates and joins documents itself; "
    "LLMStage grades translations."
)
_NO_DESIGNER = (
    "The nearest are LLMStage (gristmill.stages.text.annotate) and the stages in stages.synthetic.nemotron_cc."
)
_NO_SERVE = "Gristmill serves no models; start vLLM or another server beside it and call that from a stage."
_NO_LANCE = "The nearest are ParquetReader and ParquetWriter; Lance exports Parquet."
_INSIDE = "It is an internal of NeMo Curator's engine. Executors of Gristmill: LocalExecutor, RayDataExecutor, "
_INSIDE += "XennaExecutor and RayActorPoolExecutor."
_NO_CUDF = "Gristmill deduplicates on CPUs without cuDF: see FuzzyDeduplicationWorkflow."
_NO_CUDF_EXACT = "The closest is ExactDeduplicationWorkflow, which needs no GPU and no shuffle."
_RESUME = "Runs resume by the record beside their output (OUTPUT.gristmill); nothing has to be started for that."

_NO_DTYPES = "The closest is pyarrow: schema.empty_table().to_pandas().dtypes."
_NO_CONSTANTS = "Filters and modifiers of Gristmill hold such lists and patterns themselves; copy those that you need."
ABSENT: dict[str, str] = {
    "backends.ray_data.diagnostics": "gristmill doctor OUTPUT says what limits a run, on every executor.",
    "config": "The closest is gristmill run FILE.yaml INPUT OUTPUT, which takes these configuration files, or "
    "gristmill.load_recipe(FILE).",
    "core.serve": _NO_SERVE,
    "core.utils.init_cluster": "The closest is RayClient(…).start() (gristmill.core.client).",
    "core.utils.split_table_by_group": "The closest is polars: pl.from_arrow(table).partition_by(column).",
    "eval": _LLM,
    "metrics.constants": "The ports of a running monitor are those given to gristmill monitor up.",
    "metrics.utils.download_and_extract_prometheus": "Nothing is downloaded: install Prometheus with your system's "
    "packages, then gristmill monitor up.",
    "metrics.utils.download_grafana": "Nothing is downloaded: install Grafana with your system's packages, then "
    "gristmill monitor up.",
    "models": _LLM,
    "pipeline.pipeline.assign_root_task_ids": "Tasks get their ids from Pipeline.run().",
    "stages.base.StageMeta": "Stages register by ProcessingStage.__init_subclass__; a metaclass is not needed.",
    "stages.client_partitioning": "The closest is FilePartitioningStage, which takes a list of paths and URLs.",
    "stages.deduplication.fuzzy.minhash.GPUMinHash": "The closest is MinHash, which runs on CPUs.",
    "stages.deduplication.io_utils": "The nearest are JsonlReader and ParquetReader with _assign_ids=True.",
    "stages.deduplication.semantic.utils": "The closest is SemanticDeduplicationWorkflow.",
    "stages.deduplication.shuffle_utils": "Gristmill needs no shuffle: its deduplication workflows sort on disk.",
    "stages.math": "The nearest are CommonCrawlDownloadExtractStage and HtmlExtractor, which keep formulas.",
    "stages.synthetic": _LLM,
    "stages.synthetic.nemo_data_designer": _NO_DESIGNER,
    "stages.text.classifiers.aegis.AegisModel": "The closest is AegisClassifier, which loads the model itself.",
    "stages.text.classifiers.aegis.InstructionDataGuardNet": "The closest is InstructionDataGuardClassifier.",
    "stages.text.classifiers.aegis_utils": "The closest is FormatAegisPromptStage.",
    "stages.text.classifiers.prompt_task_complexity.CustomDeberta": "The closest is PromptTaskComplexityClassifier.",
    "stages.text.classifiers.prompt_task_complexity.MeanPooling": "The closest is PromptTaskComplexityClassifier.",
    "stages.text.classifiers.prompt_task_complexity.MulticlassHead": "The closest is PromptTaskComplexityClassifier.",
    "stages.text.classifiers.utils": "The closest is TokenizerStage(sort_by_length=True).",
    "stages.text.download.html_extractors.utils": "Extractors have lists of stop words; stop_lists= replaces them.",
    "stages.text.embedders.utils": "The closest is EmbeddingCreatorStage, which makes the column itself.",
    "stages.text.experimental": _NO_TRANSLATION,
    "stages.text.utils.text": "The closest are the modifiers in stages.text.modifiers.",
    "utils.gpu_utils.ensure_cudnn_loaded": "PyTorch loads cuDNN by itself.",
    "utils.gpu_utils.get_max_model_len_from_config": "The closest is TokenizerStage(max_seq_length=None), which takes "
    "the model's own limit.",
    "utils.hf_download_utils": "The closest is huggingface_hub.snapshot_download; stages take cache_dir.",
    "utils.merge_file_prefixes": "The closest is merge_file_prefixes, which merges a folder of token files.",
    "utils.prompts": _LLM,
    **_below("stages.deduplication.exact", "ExactDuplicateIdentification identification", _NO_CUDF_EXACT),
    **_below("stages.deduplication", "fuzzy.lsh.lsh gpu_utils", _NO_CUDF),
    **_below("stages.text", "download.wikipedia.constants utils.constants", _NO_CONSTANTS),
    **_below("utils", "resumability_actor resumability_client", _RESUME),
    **_below("utils.column_utils", "pyarrow_string_to_pandas_dtype pyarrow_to_pandas_dtype", _NO_DTYPES),
    **_below("stages", "audio image interleaved synthetic.omni video", _TEXT_ONLY),
    **_below(
        "tasks", "AudioTask ImageBatch ImageObject InterleavedBatch audio_task image interleaved ocr video", _TEXT_ONLY
    ),
    **_below("utils", "decoder_utils nvcodec_utils windowing_utils writer_utils", _TEXT_ONLY),
    **_below("stages.text.io", "reader.LanceReader reader.lance writer.LanceWriter writer.lance", _NO_LANCE),
    "stages.text.io.writer.commit_lance_checkpoint": _NO_LANCE,
    **dict.fromkeys(("tasks.LanceReadTask", "tasks.lance", "utils.lance"), _NO_LANCE),
    **_below("backends", "base.BaseStageAdapter internal ray_data.adapter xenna.adapter", _INSIDE),
    **_below("backends.ray_actor_pool", "adapter raft_adapter shuffle_adapter utils", _INSIDE),
    **_below(
        "backends.ray_data.utils",
        "get_actor_compute_strategy_for_stage get_configured_actor_pool_sizing_keys",
        _INSIDE,
    ),
    **_below(
        "backends.utils",
        "execute_setup_on_node get_configured_actor_pool_sizing_keys get_num_workers_for_nodes "
        "get_stage_num_workers_per_node get_worker_metadata_and_node_id validate_num_workers_per_node "
        "warn_on_env_var_override ACTOR_POOL_SIZING_KEYS",
        _INSIDE,
    ),
}
"""Modules and names that Gristmill does not have, with the closest equivalent; for a module, all names below it."""

ATTRIBUTES: dict[str, dict[str, str]] = {"ExactDuplicateIdentification": {"name": "ExactDuplicateIds"}}
"""Attributes of missing classes that scripts use to find what a workflow wrote, by class name."""


def absence(path: str) -> str | None:
    """The advice for a name that Gristmill does not have; None if there is none."""
    while path:
        if path in ABSENT:
            return ABSENT[path]
        path = path.rpartition(".")[0]
    return None
