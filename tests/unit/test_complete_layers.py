"""The import contract that leaves no module out."""

from __future__ import annotations

import grimp

from tools.complete_layers import without_layer


def graph_of(*imports: tuple[str, str]) -> grimp.ImportGraph:
    graph = grimp.ImportGraph()
    for module in ("app", "app.low", "app.low.deep", "app.part", "app.part.one"):
        graph.add_module(module)
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    return graph


def test_a_listed_package_covers_what_it_holds() -> None:
    assert list(without_layer(graph_of(), "app", {"app.low", "app.part.one"})) == []


def test_an_unlisted_module_is_found() -> None:
    assert list(without_layer(graph_of(), "app", {"app.low.deep", "app.part"})) == []
    assert sorted(without_layer(graph_of(), "app", {"app.part"})) == ["app.low", "app.low.deep"]


def test_a_package_of_which_parts_are_listed_must_not_import_by_itself() -> None:
    graph = graph_of(("app.part", "app.low"), ("app.low", "app.low.deep"))
    assert list(without_layer(graph, "app", {"app.low", "app.part.one"})) == ["app.part"]


def test_a_module_that_imports_nothing_is_below_everything() -> None:
    graph = graph_of(("app.part", "app.low"))
    assert list(without_layer(graph, "app", {"app.low", "app.part.one"})) == []
