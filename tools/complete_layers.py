"""A contract for import-linter: layers that leave no module out (`type = complete_layers` in .importlinter).

A module belongs to a layer when it or a package that holds it is listed. A package of which only parts are listed, such
as `gristmill.stages`, must import nothing of the root package itself, because no layer would limit what it imports;
a module that imports nothing in turn, such as `gristmill.lazy`, is below everything and may be imported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from grimp import ImportGraph
from importlinter import ContractCheck, output
from importlinter.contracts.layers import LayersContract


class CompleteLayersContract(LayersContract):
    """Imports go only downwards, and every module of the root packages has a layer."""

    type_name = "complete_layers"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Called once by `lint-imports`."""
        checked = super().check(graph, verbose)
        listed = {tail.name for layer in self.layers for tail in layer.module_tails}
        roots = self.session_options["root_packages"]
        homeless = sorted(module for root in roots for module in without_layer(graph, root, listed))
        return ContractCheck(
            kept=checked.kept and not homeless,
            warnings=checked.warnings,
            ignored_import_count=checked.ignored_import_count,
            metadata={**checked.metadata, "without_layer": homeless},
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Called by `lint-imports` when `check` found something."""
        super().render_broken_contract(check)
        for module in check.metadata["without_layer"]:
            output.print_error(f"- {module} has no layer: list it, or the package that holds it, in .importlinter.")


def without_layer(graph: ImportGraph, root: str, listed: Collection[str]) -> Iterator[str]:
    """The modules of `root` that no layer limits."""
    for module in {root} | graph.find_descendants(root):
        names = module.split(".")
        if any(".".join(names[:length]) in listed for length in range(1, len(names) + 1)):
            continue
        above = any(name.startswith(f"{module}.") for name in listed)
        if not above or any(_imported(graph, one, root) for one in _imported(graph, module, root)):
            yield module


def _imported(graph: ImportGraph, module: str, root: str) -> list[str]:
    """What a module imports of the root package."""
    return [one for one in graph.find_modules_directly_imported_by(module) if one.split(".")[0] == root]
