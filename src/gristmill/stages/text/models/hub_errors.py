"""Error messages for models that the hub does not provide, and for weights in unsupported formats."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from gristmill.errors import ModelLoadError, ModelNotFoundError

_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".pkl", ".ot")
_CONVERT = (
    "import glob, sys, torch; from safetensors.torch import save_file; "
    "files = sorted(glob.glob(sys.argv[1] + '/pytorch_model*.bin')); "
    "loaded = (torch.load(file, map_location='cpu', weights_only=True) for file in files); "
    "tensors = {name: one.contiguous().clone() for part in loaded for name, one in part.items()}; "
    "save_file(tensors, sys.argv[1] + '/model.safetensors', metadata={'format': 'pt'})"
)
"""Converts PyTorch weights to safetensors; `weights_only` prevents code in the file from running."""


def no_identifier(identifier: str) -> ModelNotFoundError:
    """The error for an identifier that is neither a folder nor a valid model id."""
    return ModelNotFoundError(
        f"{identifier!r} is neither a folder on this machine (looked for {Path(identifier).absolute()}) nor a valid "
        "model id on the hub, which is 'organisation/name' or 'name', of letters, digits, '-', '_' and '.' without "
        "spaces. Pass a model id, a local folder, or 'package:NAME'.",
        identifier=identifier,
        searched=[str(Path(identifier).absolute())],
    )


def is_refusal(error: BaseException) -> bool:
    """Whether the hub was reached and does not know the model, or denies access to it.

    Without a token, it answers both with 401.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, RepositoryNotFoundError) or status in (401, 403, 404)


def not_on_hub(identifier: str, error: Exception, *, with_token: bool) -> ModelNotFoundError:
    """The error for a model that the hub does not show."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError

    if isinstance(error, GatedRepoError):
        message = (
            f"The model {identifier!r} is gated. Request access at {constants.ENDPOINT}/{identifier}, then pass "
            "hf_token= or run `hf auth login`."
        )
    else:
        token = "this token" if with_token else "no token"
        message = (
            f"The hub at {constants.ENDPOINT} has no model {identifier!r} visible with {token}, and there is no "
            f"folder {Path(identifier).absolute()}. Check the spelling of 'organisation/name'; a private model needs "
            "hf_token= or `hf auth login`."
        )
    return ModelNotFoundError(message, identifier=identifier, searched=[f"{constants.ENDPOINT}/{identifier}"])


def check_format(identifier: str, published: Sequence[str]) -> None:
    """Reject a model that is not published as safetensors.

    Raises:
        ModelLoadError: Its weights are only in other formats.
    """
    others = [name for name in published if name.endswith(_OTHER_WEIGHTS)]
    if not others:
        return
    folder = identifier.rsplit("/", 1)[-1]
    way = "Use a model that has safetensors, or convert it with the library that wrote it."
    if any(name.startswith("pytorch_model") for name in others):
        way = (
            f"Convert it once with\n    hf download {identifier} --local-dir {folder}\n    "
            f"{conversion(Path(folder))}\nand pass the folder {folder!r} as the model."
        )
    raise ModelLoadError(
        f"The model {identifier!r} is published without *.safetensors: its weights are in {', '.join(others[:3])}"
        f"{' and more' if len(others) > 3 else ''}. Other formats are not loaded, because reading them can run code. "
        f"{way}",
        identifier=identifier,
        files=others,
    )


def conversion(folder: Path) -> str:
    """The command that converts the PyTorch weights in `folder` to safetensors."""
    return f'python -c "{_CONVERT}" {shlex.quote(str(folder))}'


def missing_files(
    identifier: str, cache_dir: str | None, files: Sequence[str], cause: BaseException | None = None
) -> ModelNotFoundError:
    """The error for files that are missing locally and that the hub did not provide; `cause` says why."""
    from huggingface_hub import constants

    place = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()
    option = f" --cache-dir {cache_dir}" if cache_dir else ""
    wanted = "".join(f" --include '{pattern}'" for pattern in files)
    reason = None if cause is None else cause.__cause__ or cause
    why = "" if reason is None else f" The hub at {constants.ENDPOINT} did not provide them: {type(reason).__name__}."
    return ModelNotFoundError(
        f"The files of model {identifier!r} ({', '.join(files)}) are not on this machine; they were looked for in "
        f"{place / ('models--' + identifier.replace('/', '--'))}, and there is no folder "
        f"{Path(identifier).absolute()}.{why} When online, download them once with\n    hf download "
        f"{identifier}{wanted}{option}\nor pass the path of a local folder. A gated model also needs hf_token= or `hf "
        "auth login`.",
        identifier=identifier,
        files=list(files),
        searched=[str(place)],
    )
