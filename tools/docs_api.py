"""Make the API reference: a page per room with a mkdocstrings directive for every public name, when the site is built.

Nothing is imported: names and where they are defined are read from the source. A test holds the result against the
packages at run time.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
FOLDER = "reference/api"
CONSTANTS = "CONSTANTS"
"""Stands for all statistics, which are constants of their module."""

ROOMS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "pipeline": (
        "Pipelines, stages and tasks",
        "The classes that every pipeline uses. The names in `gristmill` itself are shortcuts to the most common ones.",
        (
            "gristmill",
            "gristmill.pipeline",
            "gristmill.tasks",
            "gristmill.stages.base:CompositeStage,FusedStage,ProcessingStage,get_stage_class",
            "gristmill.stages.core",
            "gristmill.stages.resources",
            "gristmill.stages.function_decorators",
            "gristmill.stages.function_definitions",
            "gristmill.stages.source_sink:SourceStage,ReaderStage,SinkStage,PartFile",
        ),
    ),
    "readers-and-writers": (
        "Readers and writers",
        "Files in and files out. See [choose what to read and write](../../how-to/input-and-output.md).",
        (
            "gristmill.stages.text.io",
            "gristmill.stages.text.io.reader",
            "gristmill.stages.text.io.reader.table_files",
            "gristmill.stages.text.io.reader.text",
            "gristmill.stages.text.io.reader.pdf",
            "gristmill.stages.text.io.reader.dumps",
            "gristmill.stages.text.io.reader.wikipedia",
            "gristmill.stages.text.io.reader.warc",
            "gristmill.stages.text.io.reader.rows",
            "gristmill.stages.text.io.writer",
            "gristmill.stages.text.io.writer.tables:ArrowWriter,CsvWriter",
        ),
    ),
    "download": (
        "Download and extraction",
        "From web archives, HTML, LaTeX and wikitext to plain text.",
        (
            "gristmill.stages.text.extraction",
            "gristmill.stages.text.download",
            "gristmill.stages.text.download.base",
            "gristmill.stages.text.download.html_extractors",
            "gristmill.stages.text.download.common_crawl",
            "gristmill.stages.text.download.common_crawl.download:CommonCrawlWARCDownloader,CommonCrawlWARCReader",
            "gristmill.stages.text.download.common_crawl.extract",
            "gristmill.stages.text.download.common_crawl.stage",
            "gristmill.stages.text.download.common_crawl.url_generation",
            "gristmill.stages.text.download.common_crawl.warc_iterator",
            "gristmill.stages.text.download.wikipedia",
            "gristmill.stages.text.download.arxiv",
            "gristmill.stages.text.download.arxiv.latex",
            "gristmill.wikitext",
        ),
    ),
    "filters": (
        "Filters",
        "Which documents stay. See [write a filter](../../how-to/write-a-fast-filter.md).",
        (
            "gristmill.stages.text.filters",
            "gristmill.stages.text.filters.heuristic",
            "gristmill.stages.text.filters.published",
            "gristmill.stages.text.filters.extension",
            "gristmill.stages.text.filters.fasttext",
            "gristmill.stages.text.filters.histogram",
            "gristmill.stages.text.filters.token",
            "gristmill.stages.text.filters.tokens",
            f"gristmill.stages.text.filters.statistics:Statistic,TextStatistics,{CONSTANTS}",
        ),
    ),
    "modifiers": (
        "Modifiers and document modules",
        "Stages that change texts, add ids, split documents and join them.",
        (
            "gristmill.stages.text.modifiers",
            "gristmill.stages.text.modifiers.string",
            "gristmill.stages.text.modifiers.unicode",
            "gristmill.stages.text.modifiers.fasttext",
            "gristmill.stages.text.modifiers.url",
            "gristmill.stages.text.modules",
        ),
    ),
    "models": (
        "Classifiers, embeddings and models",
        "See [classify and embed documents](../../how-to/classify.md).",
        (
            "gristmill.stages.text.classifiers",
            "gristmill.stages.text.classifiers.base",
            "gristmill.stages.text.embedders",
            "gristmill.stages.text.models",
            "gristmill.stages.text.annotate",
            "gristmill.models.client",
            "gristmill.stages.text.models.generation:TransformersClient,InProcessClient",
            "gristmill.stages.text.models.vllm_engine:VLLMClient",
            "gristmill.stages.text.embedders.vllm:VLLMEmbeddingModelStage",
            "gristmill.stages.synthetic",
            "gristmill.stages.synthetic.nemotron_cc.base:BaseSyntheticStage",
            "gristmill.stages.synthetic.nemotron_cc.nemotron_cc",
            "gristmill.training.labelled_data:LabelledTexts,read_labelled",
            "gristmill.training.linear:train_linear",
            "gristmill.training.networks:train_deberta,train_head",
            "gristmill.training.result:Evaluation,evaluate",
        ),
    ),
    "deduplication": (
        "Deduplication",
        "See [remove duplicates](../../how-to/deduplicate.md) and [decontaminate](../../how-to/decontaminate.md).",
        (
            "gristmill.stages.deduplication",
            "gristmill.stages.deduplication.decontamination",
            "gristmill.stages.deduplication.exact",
            "gristmill.stages.deduplication.fuzzy",
            "gristmill.stages.deduplication.repeated",
            "gristmill.stages.deduplication.semantic",
            "gristmill.stages.text.deduplication",
            "gristmill.stages.text.deduplication.removal_workflow",
            "gristmill.stages.text.deduplication.semantic",
        ),
    ),
    "sharding": (
        "Shuffling, sampling and mixing",
        "See [shuffle and mix](../../how-to/shuffle-and-mix.md).",
        ("gristmill.stages.sharding",),
    ),
    "executors": (
        "Executors",
        "Every setting is in [executors](../executors.md). See [write an executor](../../how-to/write-an-executor.md).",
        (
            "gristmill.backends.base",
            "gristmill.backends.plan",
            "gristmill.backends.registry",
            "gristmill.backends.local",
            "gristmill.backends.local.config",
            "gristmill.backends.ray.cluster:ClusterConfig",
            "gristmill.backends.ray.stage_specs:RayStageSpec,XennaStageSpec",
            "gristmill.backends.ray_data",
            "gristmill.backends.ray_data.executor:RayDataConfig",
            "gristmill.backends.xenna",
            "gristmill.backends.xenna.executor:XennaConfig",
            "gristmill.backends.ray_actor_pool",
            "gristmill.core.client",
            "gristmill.execution.driver:Work",
            "gristmill.execution.in_process:run_in_process",
            "gristmill.execution.runner:SegmentRunner,set_up_node",
            "gristmill.execution.partition_output:TaskEnd",
            "gristmill.tracking.origins:Lineage,lineage_of",
        ),
    ),
    "ledger": (
        "Ledger, verification and reports",
        "What happened to documents. See [resume, quarantine, replay, and ask why](../../how-to/trust.md).",
        (
            "gristmill.ledger",
            "gristmill.ledger.performance",
            "gristmill.ledger.prove.verify:VerifyReport,verify",
            "gristmill.ledger.record.quarantine:QuarantineEntry,list_quarantine,read_quarantine",
            "gristmill.report",
        ),
    ),
    "recipes": (
        "Recipes",
        "Pipelines written in YAML. See [recipes](../recipes.md).",
        ("gristmill.recipes",),
    ),
    "monitoring": (
        "Monitoring",
        "See [monitor runs](../../how-to/monitor.md).",
        (
            "gristmill.metrics.start_prometheus_grafana",
            "gristmill.metrics.utils",
        ),
    ),
    "errors": (
        "Errors",
        "Every error that Gristmill raises on purpose. All are subclasses of `GristmillError`.",
        ("gristmill.errors",),
    ),
    "compat": (
        "Compatibility",
        "See [run existing scripts](../../how-to/run-existing-scripts.md).",
        ("gristmill.compat",),
    ),
}
"""The pages: title, introduction and modules. An object is shown once; `module:A,B` takes only these names."""

SHORTCUTS = "gristmill"
"""The package whose names are shortcuts: an object is shown elsewhere if it can be."""

INTERNAL = {
    "gristmill.backends.local.shared_files": "files between workers",
    "gristmill.compat.finder": "the import hook behind gristmill.compat",
    "gristmill.compat.grouping": "imported by scripts under its name in NeMo Curator",
    "gristmill.compat.id_generator": "imported by scripts under its name in NeMo Curator",
    "gristmill.compat.readers": "imported by scripts under its name in NeMo Curator",
    "gristmill.compat.split_large_files": "imported by scripts under its name in NeMo Curator",
    "gristmill.compat.writers": "imported by scripts under its name in NeMo Curator",
    "gristmill.kernels.numba_internals": "private parts of numba",
    "gristmill.observe.memory": "measurements for the engines",
    "gristmill.stages.text.models.acceleration": "how models run faster",
    "gristmill.storage.arrow_functions": "Arrow's functions without their import",
}
"""Modules with an `__all__` that is not for users, with the reason."""


@cache
def _tree(module: str) -> ast.Module:
    place = SOURCE.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _is_module(name: str) -> bool:
    place = SOURCE.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def _assigned(module: str) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in _tree(module).body:
        if isinstance(node, ast.Assign):
            found.update({target.id: node.value for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


def _calls(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == name


def _imported(module: str) -> dict[str, tuple[str, str]]:
    """Names that a module takes from others of the package, also those it only names for a type checker."""
    found = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gristmill"):
            for name in node.names:
                found[name.asname or name.name] = (node.module or "", name.name)
    return found


@cache
def _lazy(module: str) -> dict[str, str]:
    """Names of a package by the module that has them, from the table of its lazy names."""
    tables = [node for node in ast.walk(_tree(module)) if isinstance(node, ast.Dict)]
    homes: dict[str, str] = {}
    for table in tables:
        for key, value in zip(table.keys, table.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                continue
            home = f"{module}.{key.value}"
            if not _is_module(home):
                continue
            if isinstance(value, ast.List | ast.Tuple):
                names = [item.value for item in value.elts if isinstance(item, ast.Constant)]
            else:  # the public names of another package: `heuristic.__all__`
                names = public_names(home)
            homes.update({str(name): home for name in names})
    return homes


def _defined(module: str) -> list[str]:
    return [
        node.name
        for node in _tree(module).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]


@cache
def public_names(module: str) -> tuple[str, ...]:
    """What a module offers: its `__all__`, else its public classes and functions; of `module:A,B`, these names."""
    module, _, chosen = module.partition(":")
    if chosen:
        constants = [name for name, value in _assigned(module).items() if _calls(value, "Statistic")]
        return tuple(name for one in chosen.split(",") for name in (constants if one == CONSTANTS else [one]))
    listed = _assigned(module).get("__all__")
    if listed is None:
        classes = [node.name for node in _tree(module).body if isinstance(node, ast.ClassDef)]
        return tuple(name for name in _defined(module) if module != "gristmill.errors" or name in classes)
    if isinstance(listed, ast.List | ast.Tuple):
        return tuple(item.value for item in listed.elts if isinstance(item, ast.Constant) and item.value[:2] != "__")
    return tuple(sorted(_lazy(module)))


def home_of(module: str, name: str) -> str:
    """The path at which a name is defined."""
    if name in _defined(module) or name in _assigned(module):
        return f"{module}.{name}"
    if name in _lazy(module):
        return home_of(_lazy(module)[name], name)
    if name in _imported(module):
        other, original = _imported(module)[name]
        return other + "." + original if _is_module(f"{other}.{original}") else home_of(other, original)
    raise LookupError(f"{module} has {name!r} in __all__, but neither defines nor imports it.")


@cache
def shown_names() -> dict[str, str]:
    """Every public path (`module.name`) with the path at which the reference shows it: that in its own room."""
    entries = [entry for _, _, modules in ROOMS.values() for entry in modules]
    shown: dict[str, str] = {}
    for entry in sorted(entries, key=SHORTCUTS.__eq__):
        module = entry.partition(":")[0]
        for name in public_names(entry):
            shown.setdefault(home_of(module, name), f"{module}.{name}")
    return {
        f"{module}.{name}": shown[home_of(module, name)]
        for entry in entries
        for module in [entry.partition(":")[0]]
        for name in public_names(entry)
    }


@cache
def pages() -> dict[str, str]:
    """The Markdown of every page, by its path below docs/."""
    found: dict[str, str] = {}
    overview = ["# API reference", "", "Generated from the docstrings. Anything not listed here is private.", ""]
    overview += ["| page | modules |", "|---|---|"]
    for room, (title, introduction, modules) in ROOMS.items():
        lines = [f"# {title}", "", introduction, ""]
        for entry in modules:
            module = entry.partition(":")[0]
            paths = [f"{module}.{name}" for name in public_names(entry)]
            lines += [f"## `{module}`", ""]
            for path in paths:
                if shown_names()[path] == path:
                    home = home_of(module, path.rpartition(".")[2])
                    # Links may name it as it is imported; mkdocstrings knows the place of its definition.
                    anchor = [] if home == path else [f'<a id="{path}"></a>', ""]
                    lines += [*anchor, f"::: {home}", ""]
            others = [f"[`{name}`][{home_of(module, name)}]" for name in public_names(entry)]
            others = [link for path, link in zip(paths, others, strict=True) if shown_names()[path] != path]
            if others:
                lines += [f"Also importable from here: {', '.join(others)}.", ""]
        found[f"{FOLDER}/{room}.md"] = "\n".join(lines)
        listed = ", ".join("`" + entry.partition(":")[0] + "`" for entry in modules)
        overview.append(f"| [{title}]({room}.md) | {listed} |")
    found[f"{FOLDER}/index.md"] = "\n".join([*overview, ""])
    return found


def on_files(files: Any, *, config: Any) -> Any:
    """Called by mkdocs with the files it found; adds the pages."""
    from mkdocs.structure.files import File

    for path, content in pages().items():
        files.append(File.generated(config, path, content=content))
    return files
