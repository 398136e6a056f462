"""Stages from outside this package: by import path, if the caller allows it, or declared by installed packages.

A recipe is data, and may come from anywhere, so its text alone never runs code. An import path is only followed into
modules that the caller names (`--allow-code`). Installed packages may declare their own names, as entry points of the
group `gristmill.stages`; they are found in the metadata of packages, and imported when used.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from importlib import metadata
from typing import Any

from gristmill.errors import UnknownNameError, did_you_mean
from gristmill.recipes.names import FILTER, MODIFIER, STAGE, Registered
from gristmill.stages.base import ProcessingStage

GROUP = "gristmill.stages"


def user_stage(name: str, allowed: Collection[str]) -> Registered | None:
    """The entry for `name`; None if it is neither an import path nor declared by a package.

    Args:
        name: `module:Class`, `module.Class`, or a name that an installed package declares.
        allowed: The modules that import paths may refer to, including their submodules.

    Raises:
        UnknownNameError: It refers to nothing that a recipe can use, or to a module that is not allowed.
    """
    declared = declared_stages().get(name, [])
    if declared:
        if len(declared) > 1:
            packages = " and ".join(package_of(one) for one in declared)
            raise UnknownNameError(f"{name!r} is declared by {packages}; uninstall all but one of them.", name=name)
        return _loaded(name, declared[0].module, declared[0].attr, f"the package {package_of(declared[0])}")
    module, _, attribute = name.rpartition(":" if ":" in name else ".")
    if not module or not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        return None
    if not any(module == one or module.startswith(f"{one}.") for one in allowed):
        raise UnknownNameError(
            f"{name!r} is an import path, and a recipe alone cannot run code. If you trust the module {module!r}, "
            f"allow it on the command line: --allow-code {module} (in Python: pipeline(allow_code=[{module!r}])).",
            name=name,
            module=module,
        )
    return _loaded(name, module, attribute, f"--allow-code {module}")


def declared_stages() -> dict[str, list[metadata.EntryPoint]]:
    """What installed packages declare, by name; nothing is imported."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=GROUP):
        known = found.setdefault(point.name, [])
        if all(point.value != other.value for other in known):
            known.append(point)
    return dict(sorted(found.items()))


def package_of(point: metadata.EntryPoint) -> str:
    """The package that declares an entry point, with its version."""
    dist = getattr(point, "dist", None)
    return "an unknown package" if dist is None else f"{dist.name} {dist.version}"


def _loaded(name: str, module: str, attribute: str, origin: str) -> Registered:
    """The entry for an object of user code, after checking that it can be a stage."""
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            raise _cannot_import(name, module, origin, error) from error
        raise UnknownNameError(
            f"{name!r} ({origin}): there is no module {error.name!r}. Modules are searched for in the installed "
            "packages and in the current folder.",
            name=name,
        ) from error
    except Exception as error:  # whatever the user's module does when it is imported
        raise _cannot_import(name, module, origin, error) from error
    names = [key for key, value in vars(found).items() if kind_of(value) is not None]
    for part in attribute.split("."):
        if not hasattr(found, part):
            has = f" It has {', '.join(names)}." if names else " It has none that a recipe could use."
            hint = did_you_mean(attribute, names)
            raise UnknownNameError(
                f"{name!r} ({origin}): the module {module!r} has no {attribute!r}.{hint}{has}", name=name
            )
        found = getattr(found, part)
    kind = kind_of(found)
    if kind is None:
        raise UnknownNameError(
            f"{name!r} ({origin}) is not a stage: a recipe accepts subclasses of ProcessingStage, DocumentFilter or "
            "DocumentModifier, and functions decorated with @processing_stage.",
            name=name,
        )
    return Registered(name, module, kind, attribute)


def _cannot_import(name: str, module: str, origin: str, error: Exception) -> UnknownNameError:
    return UnknownNameError(
        f"{name!r} ({origin}): importing {module!r} failed: {type(error).__name__}: {error}", name=name
    )


def kind_of(value: Any) -> str | None:
    """What an object of user code is in a recipe: a stage, a filter or a modifier; None for anything else."""
    from gristmill.stages.text.filters import DocumentFilter
    from gristmill.stages.text.modifiers import DocumentModifier

    if isinstance(value, ProcessingStage):
        return STAGE
    if isinstance(value, type):
        for base, kind in ((ProcessingStage, STAGE), (DocumentFilter, FILTER), (DocumentModifier, MODIFIER)):
            if issubclass(value, base) and value is not base:
                return kind
    return None
