"""Public names of a package that are imported on first use, so that importing the package stays cheap."""

from __future__ import annotations

TYPE_CHECKING = False  # the package itself imports this module, and importing `typing` would take longer than all of it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose public names live in its modules.

    Args:
        package: The package's `__name__`.
        homes: The public names by the module that defines them, relative to the package.

    Example:
        >>> __getattr__, __dir__ = lazy_names(__name__, {"writer": ["JsonlWriter", "ParquetWriter"]})
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        from importlib import import_module

        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return load, lambda: sorted(home_of)
