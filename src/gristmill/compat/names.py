"""Maps the public names of NeMo Curator 1.4 to Gristmill. Paths are relative to `nemo_curator`.

A module of the same path in Gristmill needs no entry. `tests/contract/test_compat_names.py` checks every public name.
"""

from __future__ import annotations

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

MODULES: dict[str, tuple[str, ...]] = {
    "backends.ray_actor_pool.executor": ("backends.ray_actor_pool",),
    "backends.ray_data.utils": _CLUSTER,
    "backends.failed_task_markers": ("compat.slurm_array",),
    "backends.slurm_array": ("compat.slurm_array",),
    "backends.utils": _CLUSTER,
    "config.run": ("compat.config_run",),
    "core.constants": _CLUSTER,
    "core.utils": _CLUSTER,
    "models.base": _VLLM,
    "models.vllm_model": _VLLM,
    "stages.deduplication.fuzzy.buckets_to_edges": _FUZZY,
    "stages.deduplication.fuzzy.connected_components": _FUZZY,
    "stages.deduplication.fuzzy.identify_duplicates": _FUZZY,
    "stages.deduplication.fuzzy.lsh.stage": _FUZZY,
    "stages.deduplication.fuzzy.minhash": _FUZZY,
    "stages.deduplication.fuzzy.utils": _FUZZY,
    "stages.deduplication.id_generator": ("compat.id_generator",),
    "stages.deduplication.semantic": _SEMANTIC,
    "stages.deduplication.semantic.identify_duplicates": _SEMANTIC,
    "stages.deduplication.semantic.kmeans": _SEMANTIC,
    "stages.deduplication.semantic.pairwise": _SEMANTIC,
    "stages.deduplication.semantic.pairwise_io": _SEMANTIC,
    "stages.deduplication.semantic.ranking": _SEMANTIC,
    "stages.text.deduplication": ("compat.removal",),
    "stages.text.deduplication.removal": ("compat.removal",),
    "stages.synthetic.nemotron_cc.nemo_data_designer.base": _DESIGNER,
    "stages.synthetic.nemotron_cc.nemo_data_designer.nemotron_cc": _DESIGNER,
    "stages.file_partitioning": ("compat.readers", "stages.text.io.reader"),
    "stages.text.filters.fasttext": _FILTERS,
    "stages.text.filters.fasttext.fasttext_filters": _FILTERS,
    "stages.text.filters.heuristic.code.code": _FILTERS,
    "stages.text.filters.heuristic.repetition.repetition": _FILTERS,
    "stages.text.filters.histogram.histogram": _FILTERS,
    "stages.text.filters.token.token_count": _FILTERS,
    "stages.text.io.reader": ("compat.readers",),
    "stages.text.io.reader.base": ("compat.readers",),
    "stages.text.io.reader.jsonl": ("compat.readers",),
    "stages.text.io.reader.parquet": ("compat.readers",),
    "stages.text.io.writer": ("compat.writers",),
    "stages.text.io.writer.base": ("compat.writers",),
    "stages.text.io.writer.jsonl": ("compat.writers",),
    "stages.text.io.writer.parquet": ("compat.writers",),
    "stages.text.io.writer.utils": ("compat.grouping",),
    "stages.text.models.utils": ("stages.text.models.model", "stages.text.models.tokens"),
    "stages.text.modules.modifier": _MODIFIERS,  # until 1.3
    "stages.text.modules.score_filter": _FILTERS,  # until 1.3
    "stages.text.modifiers.fasttext": _MODIFIERS,
    "stages.text.modifiers.fasttext.fasttext_label": _MODIFIERS,
    "stages.text.modifiers.string.c4": _MODIFIERS,
    "stages.text.modifiers.string.line_remover": _MODIFIERS,
    "stages.text.modifiers.string.markdown_remover": _MODIFIERS,
    "stages.text.modifiers.string.newline_normalizer": _MODIFIERS,
    "stages.text.modifiers.string.quotation_remover": _MODIFIERS,
    "stages.text.modifiers.string.slicer": _MODIFIERS,
    "stages.text.modifiers.string.url_remover": _MODIFIERS,
    "stages.text.modifiers.unicode": _MODIFIERS,
    "stages.text.modifiers.unicode.unicode_reformatter": _MODIFIERS,
    "stages.text.modules": (*_FILTERS, *_MODIFIERS),  # where they were in its first releases
    "stages.text.utils": ("compat.text_functions",),
    "stages.text.utils.text_utils": ("compat.text_functions",),
    "tasks.sentinels": ("tasks.base",),
    "tasks.tasks": ("tasks.base",),
    "tasks.utils": ("ledger.performance",),
    "utils.atomic_io": _FILES,
    "utils.client_utils": _FILES,
    "utils.column_utils": _FILES,
    "utils.file_utils": _FILES,
    "utils.gpu_utils": _CLUSTER,
    "utils.grouping": ("compat.grouping",),
    "utils.hash_utils": _FILES,
    "utils.merge_file_prefixes": ("compat.merge_tokens",),
    "utils.operation_utils": ("compat.grouping",),
    "utils.performance_utils": ("ledger.performance",),
    "utils.ray_utils": _CLUSTER,
    "utils.retry_manifest": ("compat.slurm_array",),
    "utils.split_large_files": ("compat.split_large_files",),
    "utils.storage_utils": _FILES,
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
    "stages.text.experimental.translation.pipeline.TranslationStage": "stages.synthetic.translation:TranslationStage",
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

ABSENT: dict[str, str] = {
    "backends.base.BaseStageAdapter": _INSIDE,
    "backends.internal": _INSIDE,
    "backends.ray_actor_pool.adapter": _INSIDE,
    "backends.ray_actor_pool.raft_adapter": _INSIDE,
    "backends.ray_actor_pool.shuffle_adapter": _INSIDE,
    "backends.ray_actor_pool.utils": _INSIDE,
    "backends.ray_data.adapter": _INSIDE,
    "backends.ray_data.diagnostics": "gristmill doctor OUTPUT says what limits a run, on every executor.",
    "backends.ray_data.utils.get_actor_compute_strategy_for_stage": _INSIDE,
    "backends.ray_data.utils.get_configured_actor_pool_sizing_keys": _INSIDE,
    "backends.utils.execute_setup_on_node": _INSIDE,
    "backends.utils.get_worker_metadata_and_node_id": _INSIDE,
    "backends.utils.warn_on_env_var_override": _INSIDE,
    "backends.xenna.adapter": _INSIDE,
    "config": "The closest is gristmill run FILE.yaml INPUT OUTPUT, which takes these configuration files, or "
    "gristmill.load_recipe(FILE).",
    "core.serve": _NO_SERVE,
    "core.utils.init_cluster": "The closest is RayClient(…).start() (gristmill.core.client).",
    "core.utils.split_table_by_group": "The closest is polars: pl.from_arrow(table).partition_by(column).",
    "eval": _LLM,
    "metrics.utils.download_and_extract_prometheus": "Nothing is downloaded: install Prometheus with your system's "
    "packages, then gristmill monitor up.",
    "metrics.utils.download_grafana": "Nothing is downloaded: install Grafana with your system's packages, then "
    "gristmill monitor up.",
    "models": _LLM,
    "pipeline.pipeline.assign_root_task_ids": "Tasks get their ids from Pipeline.run().",
    "stages.audio": _TEXT_ONLY,
    "stages.base.StageMeta": "Stages register by ProcessingStage.__init_subclass__; a metaclass is not needed.",
    "stages.client_partitioning": "The closest is FilePartitioningStage, which takes a list of paths and URLs.",
    "stages.deduplication.exact.ExactDuplicateIdentification": _NO_CUDF_EXACT,
    "stages.deduplication.exact.identification": _NO_CUDF_EXACT,
    "stages.deduplication.fuzzy.lsh.lsh": _NO_CUDF,
    "stages.deduplication.fuzzy.minhash.GPUMinHash": "The closest is MinHash, which runs on CPUs.",
    "stages.deduplication.gpu_utils": _NO_CUDF,
    "stages.deduplication.io_utils": "The nearest are JsonlReader and ParquetReader with _assign_ids=True.",
    "stages.deduplication.semantic.utils": "The closest is SemanticDeduplicationWorkflow.",
    "stages.deduplication.shuffle_utils": "Gristmill needs no shuffle: its deduplication workflows sort on disk.",
    "stages.image": _TEXT_ONLY,
    "stages.interleaved": _TEXT_ONLY,
    "stages.math": "The nearest are CommonCrawlDownloadExtractStage and HtmlExtractor, which keep formulas.",
    "stages.synthetic": _LLM,
    "stages.synthetic.nemo_data_designer": _NO_DESIGNER,
    "stages.synthetic.omni": _TEXT_ONLY,
    "stages.text.classifiers.aegis.AegisModel": "The closest is AegisClassifier, which loads the model itself.",
    "stages.text.classifiers.aegis.InstructionDataGuardNet": "The closest is InstructionDataGuardClassifier.",
    "stages.text.classifiers.aegis_utils": "The closest is FormatAegisPromptStage.",
    "stages.text.classifiers.prompt_task_complexity.CustomDeberta": "The closest is PromptTaskComplexityClassifier.",
    "stages.text.classifiers.prompt_task_complexity.MeanPooling": "The closest is PromptTaskComplexityClassifier.",
    "stages.text.classifiers.prompt_task_complexity.MulticlassHead": "The closest is PromptTaskComplexityClassifier.",
    "stages.text.classifiers.utils": "The closest is TokenizerStage(sort_by_length=True).",
    "stages.text.embedders.utils": "The closest is EmbeddingCreatorStage, which makes the column itself.",
    "stages.text.experimental": _NO_TRANSLATION,
    "stages.text.io.reader.LanceReader": _NO_LANCE,
    "stages.text.io.reader.lance": _NO_LANCE,
    "stages.text.io.writer.LanceWriter": _NO_LANCE,
    "stages.text.io.writer.commit_lance_checkpoint": _NO_LANCE,
    "stages.text.io.writer.lance": _NO_LANCE,
    "stages.video": _TEXT_ONLY,
    "tasks.AudioTask": _TEXT_ONLY,
    "tasks.ImageBatch": _TEXT_ONLY,
    "tasks.ImageObject": _TEXT_ONLY,
    "tasks.InterleavedBatch": _TEXT_ONLY,
    "tasks.LanceReadTask": _NO_LANCE,
    "tasks.audio_task": _TEXT_ONLY,
    "tasks.image": _TEXT_ONLY,
    "tasks.interleaved": _TEXT_ONLY,
    "tasks.lance": _NO_LANCE,
    "tasks.ocr": _TEXT_ONLY,
    "tasks.video": _TEXT_ONLY,
    "utils.decoder_utils": _TEXT_ONLY,
    "utils.gpu_utils.ensure_cudnn_loaded": "PyTorch loads cuDNN by itself.",
    "utils.gpu_utils.get_max_model_len_from_config": "The closest is TokenizerStage(max_seq_length=None), which takes "
    "the model's own limit.",
    "utils.hf_download_utils": "The closest is huggingface_hub.snapshot_download; stages take cache_dir.",
    "utils.lance": _NO_LANCE,
    "utils.merge_file_prefixes": "The closest is merge_file_prefixes, which merges a folder of token files.",
    "utils.nvcodec_utils": _TEXT_ONLY,
    "utils.prompts": _LLM,
    "utils.resumability_actor": _RESUME,
    "utils.resumability_client": _RESUME,
    "utils.windowing_utils": _TEXT_ONLY,
    "utils.writer_utils": _TEXT_ONLY,
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
