"""What to say about models that the hub does not give, and about weights in formats that are not loaded."""

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
"""Makes safetensors of PyTorch's format; `weights_only` keeps code in the file from being run."""


def no_identifier(identifier: str) -> ModelNotFoundError:
    """The error for what can neither be a folder nor the id of a model."""
    return ModelNotFoundError(
        f"{identifier!r} is neither a folder on this machine (looked for {Path(identifier).absolute()}) nor can it be "
        "the id of a model on the hub, which is 'organisation/name' or 'name', of letters, digits, '-', '_' and '.' "
        "without spaces. Give one of these, a local folder, or 'package:NAME'.",
        identifier=identifier,
        searched=[str(Path(identifier).absolute())],
    )


def is_refusal(error: BaseException) -> bool:
    """Whether the hub was reached and does not know the model, or does not show it to us.

    Without a token, it answers both with 401.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, RepositoryNotFoundError) or status in (401, 403, 404)


def not_on_hub(identifier: str, error: Exception, *, with_token: bool) -> ModelNotFoundError:
    """The error for a model that the hub does not show us."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError

    if isinstance(error, GatedRepoError):
        message = (
            f"The model {identifier!r} is gated. Ask for access at {constants.ENDPOINT}/{identifier}, and then give "
            "hf_token=, or run `hf auth login`."
        )
    else:
        token = "this token" if with_token else "no token"
        message = (
            f"The hub at {constants.ENDPOINT} has no model {identifier!r} that it shows with {token}, and there is no "
            f"folder {Path(identifier).absolute()}. Check the spelling of 'organisation/name'; a private model needs "
            "hf_token= or `hf auth login`."
        )
    return ModelNotFoundError(message, identifier=identifier, searched=[f"{constants.ENDPOINT}/{identifier}"])


def check_format(identifier: str, published: Sequence[str]) -> None:
    """Refuse a model that is not published as safetensors.

    Raises:
        ModelLoadError: It has weights in other formats.
    """
    others = [name for name in published if name.endswith(_OTHER_WEIGHTS)]
    if not others:
        return
    folder = identifier.rsplit("/", 1)[-1]
    way = "Take a model that has safetensors, or convert it with the library that wrote it."
    if any(name.startswith("pytorch_model") for name in others):
        way = (
            "Convert it once with\n"
            f"    hf download {identifier} --local-dir {folder}\n"
            f"    {conversion(Path(folder))}\n"
            f"and give the folder {folder!r} as the model."
        )
    raise ModelLoadError(
        f"The model {identifier!r} is published without *.safetensors: its weights are in {', '.join(others[:3])}"
        f"{' and more' if len(others) > 3 else ''}. Other formats are not loaded, because reading them can run code. "
        f"{way}",
        identifier=identifier,
        files=others,
    )


def conversion(folder: Path) -> str:
    """The command that makes safetensors of the PyTorch weights in `folder`."""
    return f'python -c "{_CONVERT}" {shlex.quote(str(folder))}'


def missing_files(
    identifier: str, cache_dir: str | None, files: Sequence[str], cause: BaseException | None = None
) -> ModelNotFoundError:
    """The error for files that are not here and that the hub did not give; `cause` says why."""
    from huggingface_hub import constants

    place = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()
    option = f" --cache-dir {cache_dir}" if cache_dir else ""
    wanted = "".join(f" --include '{pattern}'" for pattern in files)
    reason = None if cause is None else cause.__cause__ or cause
    why = "" if reason is None else f" The hub at {constants.ENDPOINT} did not give them: {type(reason).__name__}."
    return ModelNotFoundError(
        f"The files of model {identifier!r} ({', '.join(files)}) are not on this machine; they were looked for in "
        f"{place / ('models--' + identifier.replace('/', '--'))}, and there is no folder "
        f"{Path(identifier).absolute()}.{why} With a connection, fetch them once with\n"
        f"    hf download {identifier}{wanted}{option}\n"
        "or give the path of a local folder. A gated model also needs hf_token= or `hf auth login`.",
        identifier=identifier,
        files=list(files),
        searched=[str(place)],
    )
