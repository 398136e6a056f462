"""Loads tokenizers and networks from local folders: no remote code, no pickles, no randomly initialised weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gristmill.errors import GristmillError, ModelLoadError, ModelNotFoundError, require_module
from gristmill.stages.text.models.sources import (
    CONFIG_FILES,
    TOKENIZER_FILES,
    listing,
    model_folder,
    names_code,
    read_config,
    weight_files,
)

# Without an explicit no, transformers asks on the terminal whether to run the code of a model repository.
_NO_CODE = {"local_files_only": True, "trust_remote_code": False}

# Models that read whole texts at once. Generative models get positions from their caller.
_READERS = ("AutoModel", "AutoModelForSequenceClassification")

# Parts of encoders that many published models leave out, because nothing here looks at them.
_UNUSED = ("pooler.", "position_ids")


@contextlib.contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Turn errors of the libraries about the files in `folder` into an error that names them.

    Args:
        folder: The model folder.
        what: What is being read, for the message.

    Raises:
        ModelLoadError: The files are damaged, incomplete, of an unknown type, or require their own code.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (GristmillError, MemoryError):
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        raise _not_usable(folder, what, error) from error
    except RuntimeError as error:
        # Out-of-memory errors also have this class, and are not caused by the files.
        if "size mismatch" not in str(error):
            raise
        raise _not_usable(folder, what, error) from error


def load_tokenizer(folder: Path, **options: Any) -> Any:
    """The tokenizer in a model folder.

    Raises:
        ModelLoadError: There is no usable one.
    """
    require_module("transformers", "A tokenizer")
    from transformers import AutoTokenizer

    check_tokenizer(folder)
    with reading(folder, "tokenizer"):
        return AutoTokenizer.from_pretrained(str(folder), **_NO_CODE, **options)


def check_tokenizer(folder: Path) -> None:
    """Reject a model folder without a tokenizer.

    Raises:
        ModelLoadError: It has none.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelLoadError(
            f"{folder} has no tokenizer ({', '.join(TOKENIZER_FILES[:3])} or similar). It holds: {listing(folder)}. "
            "Copy the model's tokenizer files there, for instance with transformers' "
            "tokenizer.save_pretrained(folder).",
            identifier=str(folder),
        )


def load_network(kind: str, folder: Path, **options: Any) -> Any:
    """The network in a model folder, ready for inference, with all of its weights.

    Encoders and sequence classifiers return the same results for padding on the left and on the right.

    Args:
        kind: The class of transformers, such as `AutoModel`.
        folder: The model folder.
        **options: More options for its `from_pretrained`.

    Raises:
        ModelNotFoundError: There are no safetensors.
        ModelLoadError: The files are unusable, or lack weights, which would be random.
    """
    import transformers

    from gristmill.stages.text.models.devices import quiet_loading
    from gristmill.stages.text.models.padding import from_first_token

    weight_files(folder)
    with reading(folder, "network"), quiet_loading():
        network, found = getattr(transformers, kind).from_pretrained(
            str(folder), use_safetensors=True, output_loading_info=True, **_NO_CODE, **options
        )
    absent = sorted(name for name in found["missing_keys"] if not any(part in name for part in _UNUSED))
    if absent:
        raise ModelLoadError(
            f"The weights in {folder} lack {len(absent)} of the network's, such as {', '.join(absent[:3])}, so its "
            f"results would be random. It was loaded as {kind}: use a model that was trained as one.",
            identifier=str(folder),
        )
    return from_first_token(network.eval()) if kind in _READERS else network.eval()


def position_limit(network: Any) -> int | None:
    """Maximum number of tokens of the network; None if positions are relative, so that there is no limit."""
    limits = []
    for name, module in network.named_modules():
        if name.rsplit(".", 1)[-1] == "position_embeddings" and hasattr(module, "num_embeddings"):
            # If padding has its own position, tokens are counted from the one after it.
            limits.append(module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1))
    return min(limits, default=None)


def load_settings(folder: Path) -> Any:
    """The configuration of a network as an object of transformers.

    Raises:
        ModelLoadError: It cannot be used.
    """
    from transformers import AutoConfig

    with reading(folder, "configuration"):
        return AutoConfig.from_pretrained(str(folder), **_NO_CODE)


def stored_settings(stored: Mapping[str, Any]) -> Any:
    """The configuration of a network as a transformers object, from the mapping returned by its `to_dict`."""
    from transformers import AutoConfig

    options = {key: value for key, value in stored.items() if key not in ("model_type", "dtype", "torch_dtype")}
    return AutoConfig.for_model(stored["model_type"], **options)


def base_of(config: Mapping[str, Any]) -> str | None:
    """The base model of a head whose configuration names it without its settings; None for other configurations."""
    base = config.get("base_model")
    return base if isinstance(base, str) and not {"model_type", "base_config"} & set(config) else None


def base_settings_folder(base: str, *, cache_dir: str | None = None) -> Path | None:
    """The local folder with the settings of a base model; None if they are not on this machine."""
    try:
        folder = model_folder(base, cache_dir=cache_dir, files=CONFIG_FILES)
    except ModelNotFoundError:
        return None
    return folder if (folder / "config.json").is_file() else None


def backbone_settings(folder: Path, *, cache_dir: str | None = None) -> Any:
    """The configuration of the network in a folder, or of the base model that a head in it belongs to.

    None if the base model is not on this machine.

    Raises:
        ModelLoadError: It cannot be used.
    """
    config = read_config(folder)
    if "model_type" not in config and isinstance(config.get("base_config"), dict):
        with reading(folder, "configuration"):
            return stored_settings(config["base_config"])
    base = base_of(config)
    if base is None:
        return load_settings(folder)
    found = base_settings_folder(base, cache_dir=cache_dir)
    return None if found is None else load_settings(found)


def load_tensors(folder: Path) -> dict[str, Any]:
    """All weights of a model folder by name.

    Raises:
        ModelNotFoundError: There are no safetensors.
        ModelLoadError: One of the files is damaged.
    """
    from safetensors.torch import load_file

    state: dict[str, Any] = {}
    for path in weight_files(folder):
        with reading(folder, f"file {path.name}"):
            state.update(load_file(path))
    return state


def _not_usable(folder: Path, what: str, error: BaseException) -> ModelLoadError:
    if names_code(folder):
        advice = (
            "Its configuration requires its own code (auto_map), which is never run: use an architecture that "
            "transformers supports."
        )
    else:
        advice = "Download the model again, or pass another folder."
    said = " ".join(str(error).split())
    return ModelLoadError(
        f"The {what} of the model in {folder} cannot be used ({type(error).__name__}: {said[:300]}). It holds: "
        f"{listing(folder)}. {advice}",
        identifier=str(folder),
    )
