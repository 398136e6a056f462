"""Parameters that stages have in NeMo Curator and not in Gristmill: mapped, or named as having no effect.

A constructor is adapted when a script first asks for its class by the old name, and only in that process.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.errors import NotSupportedError, did_you_mean

Keywords = dict[str, Any]
Adapter = Callable[[Any, Keywords], Keywords]
"""Removes keywords from a call; returns those to set on the new object as attributes."""

_UNCHANGED: Mapping[str, tuple[Any, ...]] = {
    "encoding": (None, "utf-8", "utf8"),
    "force_ascii": (False,),
    "index": (None, False),
    "lines": (True,),
    "orient": ("records",),
    "typ": ("frame",),
}
"""Options of pandas with the values that match Gristmill's behaviour; other values are not supported."""
_NO_EFFECT = frozenset(
    {
        *("block_size", "chunksize", "convert_dates", "date_format", "date_unit", "dtype", "dtype_backend", "engine"),
        *("engine_kwargs", "memory_map", "pre_buffer", "precise_float", "row_group_size", "use_nullable_dtypes"),
        "use_threads",
    }
)
"""Options of pandas and PyArrow that affect how a frame is built, not its content."""
_READER_KEYS = frozenset({"batch_bytes", "errors", "max_record_bytes", "storage_options"})
_WRITER_KEYS = frozenset({"compression", "storage_options"})


def _named(_: Any, keywords: Keywords) -> Keywords:
    return _take(keywords, "name")


def _reader(stage: Any, keywords: Keywords) -> Keywords:
    """Readers: options of pandas are mapped or named; readers that assign ids read whole files."""
    whole: Keywords = {}
    if keywords.get("_generate_ids") or keywords.get("_assign_ids"):
        for option in ("blocksize", "files_per_partition"):
            if keywords.pop(option, None) not in (None, 1):
                warn_without_effect(type(stage).__name__, option, stacklevel=4)
        whole = {"blocksize": None, "files_per_partition": 1}
    if keywords.get("read_kwargs") is not None:
        known = set(_READER_KEYS)
        given = dict(keywords["read_kwargs"])
        columns = given.pop("columns", None)
        if columns is not None and keywords.get("fields") is None:
            keywords["fields"] = columns
        if given.get("compression") == "infer":
            del given["compression"]
        keywords["read_kwargs"] = _mapped(type(stage).__name__, "read_kwargs", given, known)
    return {**_take(keywords, "name"), **whole}


def _reader_stage(stage: Any, keywords: Keywords) -> Keywords:
    """The second part of a reader: `read_kwargs` contains what are parameters here."""
    given = keywords.pop("read_kwargs", None) or {}
    mapped = _mapped(type(stage).__name__, "read_kwargs", given, set(_READER_KEYS))
    for option in ("_generate_ids", "_assign_ids"):
        if keywords.pop(option, False):
            raise NotSupportedError(
                f"{type(stage).__name__}({option}=True): pass it to JsonlReader or ParquetReader, which add the stage "
                "that assigns ids."
            )
    keywords.pop("allow_empty", None)  # a file without records is no error here
    keywords.update(mapped)
    return _take(keywords, "name")


def _writer(stage: Any, keywords: Keywords) -> Keywords:
    """Writers: options of pandas are mapped or named, and the file extension can be chosen."""
    given, own = dict(keywords.pop("write_kwargs", None) or {}), Keywords()
    if hasattr(stage, "writes_data"):  # for `write_data` of the script
        own = {"write_kwargs": given, "fields": keywords.get("fields")}
        keywords["write_kwargs"] = {key: given[key] for key in _WRITER_KEYS & given.keys()}
    elif given:
        keywords["write_kwargs"] = _mapped(type(stage).__name__, "write_kwargs", given, set(_WRITER_KEYS))
    keywords.pop("append_mode_implemented", None)
    ending = keywords.pop("file_extension", None)
    found = _take(keywords, "name")
    if ending is not None:
        found["file_extension"] = _ending(type(stage).__name__, str(ending).lstrip("."), type(stage).endings)
    return {**found, **own}


def _scorer(stage: Any, keywords: Keywords) -> Keywords:
    keywords.pop("verbose", None)
    return _named(stage, keywords)


def _accepting(**known: tuple[Any, ...]) -> Adapter:
    """Accepts options with these values only."""

    def adapter(stage: Any, keywords: Keywords) -> Keywords:
        for option, values in known.items():
            _only(type(stage).__name__, option, keywords.pop(option, values[0]), values)
        return {}

    return adapter


def _removal(workflow: Any, keywords: Keywords) -> Keywords:
    """Removal of listed documents: the same options have other names."""
    owner = type(workflow).__name__
    for option in ("duplicate_id_read_kwargs", "id_generator_storage_options"):
        given = keywords.pop(option, None) or {}
        given = given.get("storage_options") if option.endswith("read_kwargs") else given
        storage = (keywords.get("output_kwargs") or keywords.get("write_kwargs") or {}).get("storage_options")
        _only(owner, option, given or None, (storage or None, None))
    _only(owner, "input_task_limit", keywords.pop("input_task_limit", None), (None,))
    fields = keywords.pop("input_fields", None)
    if fields is not None and keywords.get("output_fields") is None:
        keywords["output_fields"] = list(fields)
    for theirs, ours in (("input_files_per_partition", "files_per_partition"), ("input_kwargs", "read_kwargs")):
        if theirs in keywords:
            keywords[ours] = keywords.pop(theirs)
    if "output_kwargs" in keywords:
        keywords["write_kwargs"] = keywords.pop("output_kwargs")
    for option, known in (("read_kwargs", _READER_KEYS), ("write_kwargs", _WRITER_KEYS)):
        if keywords.get(option) is not None:
            keywords[option] = _mapped(owner, option, keywords[option], set(known))
    kind = keywords.get("output_filetype") or "parquet"
    ending = str(keywords.pop("output_file_extension", None) or kind).lstrip(".")
    _only(owner, "output_file_extension", ending, (kind,))
    return {}


ADAPTERS: Mapping[str, Adapter] = {
    **dict.fromkeys(("AddId", "DocumentJoiner", "DocumentSplitter", "FilePartitioningStage"), _named),
    **dict.fromkeys(("Filter", "Modify", "Score", "ScoreFilter"), _scorer),
    **dict.fromkeys(("JsonlReader", "ParquetReader"), _reader),
    **dict.fromkeys(("JsonlReaderStage", "ParquetReaderStage"), _reader_stage),
    **dict.fromkeys(("JsonlWriter", "ParquetWriter"), _writer),
    **dict.fromkeys(("KMeansReadFitWriteStage", "KMeansStage"), _accepting(embedding_output_dtype=("float32",))),
    **dict.fromkeys(("PairwiseCosineSimilarityStage", "PairwiseStage"), _accepting(compute_dtype=("float32", "auto"))),
    "ExactDeduplicationWorkflow": _accepting(normalize_text=(False,)),
    "TextDuplicatesRemovalWorkflow": _removal,
    "TranslationStage": _accepting(
        backend_type=("llm",),
        segmentation_mode=("coarse",),
        min_segment_chars=(0,),
        output_mode=("replaced",),
        **dict.fromkeys(("reconstruct_messages", "skip_translated", "enable_faith_eval", "dry_run"), (False,)),
    ),
}
"""The classes whose constructors accept more parameters under the old name."""
_originals: dict[type, Any] = {}


def adapt(cls: type) -> None:
    """Make the constructor of a class accept its NeMo Curator parameters; does nothing for most classes."""
    adapter = ADAPTERS.get(cls.__name__)
    if adapter is None or cls in _originals:
        return
    original = _originals[cls] = cls.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def constructor(self: Any, *arguments: Any, **keywords: Any) -> None:
        found = adapter(self, keywords)
        original(self, *arguments, **keywords)
        for name, value in found.items():
            setattr(self, name, value)

    cls.__init__ = constructor  # type: ignore[misc]


def restore() -> None:
    """Restore every class's own constructor."""
    for cls, original in _originals.items():
        cls.__init__ = original  # type: ignore[misc]
    _originals.clear()


def warn_without_effect(owner: str, option: str, *, stacklevel: int) -> None:
    """Say that an option that would split or group files is ignored."""
    warnings.warn(
        f"{owner}({option}=…) has no effect: each file is one partition, because the ids of documents follow from "
        "whole files.",
        stacklevel=stacklevel,
    )


def _take(keywords: Keywords, name: str) -> Keywords:
    value = keywords.pop(name, None)
    return {} if value is None else {name: value}


def _mapped(owner: str, parameter: str, given: Mapping[str, Any], known: set[str]) -> Keywords:
    """The options that the constructor knows; the others are said to have no effect, or refused."""
    kept = {key: value for key, value in given.items() if key in known}
    without = []
    for key, value in given.items():
        if key in known or value in _UNCHANGED.get(key, ()):
            continue
        if key not in _NO_EFFECT:
            hint = did_you_mean(key, {*known, *_UNCHANGED, *_NO_EFFECT})
            raise NotSupportedError(
                f"{owner}({parameter}={{{key!r}: {value!r}}}) is not supported; supported are "
                f"{', '.join(map(repr, sorted(known)))}.{hint}",
                key=key,
            )
        without.append(key)
    if without:
        warnings.warn(
            f"{owner}({parameter}=…): {', '.join(map(repr, without))} has no effect: Gristmill reads and writes "
            "without pandas.",
            stacklevel=4,
        )
    return kept


def _only(owner: str, option: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise NotSupportedError(
            f"{owner}({option}={value!r}) is not supported; pass {' or '.join(map(repr, dict.fromkeys(known)))}.",
            key=option,
        )


def _ending(owner: str, ending: str, known: tuple[str, ...]) -> str:
    if ending not in known:
        raise NotSupportedError(
            f"{owner}(file_extension={ending!r}): the extension determines the format; pass "
            f"{' or '.join(map(repr, known))}.",
            value=ending,
        )
    return ending
