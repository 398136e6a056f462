"""Converts formulas of a page to LaTeX between dollars: MathML, MathJax and KaTeX output, and images with source."""

from __future__ import annotations

import re
from typing import Any

_SELECTOR = "math, script[type^='math/tex'], .katex-html, .MathJax_Preview, .MathJax, .mwe-math-fallback-image-inline, "
_SELECTOR += ".mwe-math-fallback-image-display, img.tex, img.latex"
_MAX_DEPTH = 60
_STYLE = re.compile(r"^\{\\displaystyle\s*(.*)\}$", re.DOTALL)
_WORDS = {"mfrac": "\\frac{%s}{%s}", "msup": "%s^{%s}", "msub": "%s_{%s}", "msubsup": "%s_{%s}^{%s}"}
_WORDS |= {"munder": "%s_{%s}", "mover": "%s^{%s}", "munderover": "%s_{%s}^{%s}"}


def with_readable_formulas(page: str) -> str:
    r"""The page with its formulas as text.

    Example:
        >>> page = "<p><math><mfrac><mi>a</mi><mn>2</mn></mfrac></math></p>"
        >>> "$\\frac{a}{2}$" in with_readable_formulas(page)
        True
    """
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(page)
    if tree.body is None:
        return page
    for node in list(tree.body.query_selector_all(_SELECTOR)):
        parent = node.parent
        if parent is None:
            continue
        source, display = _source(node)
        if source:
            mark = "$$" if display else "$"
            parent.replace_child(tree.create_text_node(f" {mark}{source}{mark} "), node)
        else:
            parent.remove_child(node)
    made: str = tree.document.html
    return made


def _source(node: Any) -> tuple[str, bool]:
    """The LaTeX source of an element (empty if it only repeats another one), and whether it is a block."""
    if node.tag == "script":
        return node.text.strip(), "mode=display" in (node.getattr("type") or "")
    if node.tag == "img":
        return _without_style(node.getattr("alt") or "") if not _repeats(node) else "", False
    if node.tag != "math":
        return "", False
    display = node.getattr("display") == "block"
    for annotation in node.query_selector_all("annotation"):
        if "tex" in (annotation.getattr("encoding") or "").lower():
            return _without_style(annotation.text), display
    return _without_style(node.getattr("alttext") or "") or _linear(node).strip(), display


def _repeats(image: Any) -> bool:
    """Whether the image is Wikipedia's fallback for a formula that is also present as MathML."""
    return "mwe-math" in (image.getattr("class") or "")


def _without_style(source: str) -> str:
    source = " ".join(source.split())
    found = _STYLE.match(source)
    return (found[1] if found else source).strip().strip("$").strip()


def _linear(node: Any, depth: int = 0) -> str:
    """MathML as one line of LaTeX."""
    children = [child for child in node.child_nodes if child.tag not in ("annotation", "annotation-xml", "#comment")]
    if depth > _MAX_DEPTH or not any(child.tag != "#text" for child in children):
        return " ".join(str(node.text or "").split())
    parts = [_linear(child, depth + 1) for child in children if child.tag != "#text" or (child.text or "").strip()]
    if node.tag == "msqrt":
        return f"\\sqrt{{{' '.join(parts)}}}"
    if node.tag == "mroot" and len(parts) == 2:
        return f"\\sqrt[{parts[1]}]{{{parts[0]}}}"
    if node.tag in _WORDS and len(parts) == _WORDS[node.tag].count("%s"):
        return _WORDS[node.tag] % tuple(parts)
    if node.tag == "mtr":
        return " & ".join(parts)
    if node.tag == "mtable":
        return " \\\\ ".join(parts)
    return " ".join(part for part in parts if part)
