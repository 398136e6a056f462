"""LaTeX becomes text: structure kept, macros expanded, apparatus out."""

from __future__ import annotations

import pytest

from gristmill.stages.text.download.arxiv.latex import LatexError, latex_to_text
from gristmill.stages.text.download.arxiv.latex.main_file import main_file
from gristmill.stages.text.download.arxiv.latex.source import decoded

PAPER = r"""
\documentclass[12pt]{article} % the class
\usepackage[latin1]{inputenc}
\newcommand{\R}{\mathbb{R}}
\newcommand{\norm}[2][2]{\left\| #2 \right\|_{#1}}
\def\half#1/#2.{\frac{#1}{#2}}
\DeclareMathOperator{\rank}{rank}
\newcommand{\be}{\begin{equation}}
\newcommand{\ee}{\end{equation}}
\newtheorem{thm}{Theorem}
\newif\iflong \longfalse
\title{On \emph{Norms}\thanks{Funded.}}
\author{A. Person}
\begin{document}
\maketitle
\begin{abstract}We study norms.\end{abstract}
\section{Introduction}\label{sec:intro}
Let $x \in \R$; see~\cite{a, b} and Section~\ref{sec:intro}. % a comment
It is 5\% --- ``really''.\footnote{A note on $\R$.}

% \section{Gone}
Erd\H{o}s, Poincar\'e, {\L}ukasiewicz and na\"{\i}ve.
\be \norm{x} + \norm[1]{y} = \half 1/2. \label{eq:one} \ee
\iflong Only in the long version. \else Short. \fi
\begin{thm}[Main] $\rank A = 1$. \end{thm}
\begin{itemize} \item One \item[Two] Three \end{itemize}
\begin{figure}\includegraphics{a.png}\caption{A figure.}\end{figure}
\begin{table}\caption{Figures.}\begin{tabular}{lr} a & 1 \\ \hline b & 2 \\ \end{tabular}\end{table}
\begin{align*} a &= b \\ c &= \text{if $d$} \end{align*}
\begin{verbatim}
x % y \R
\end{verbatim}
\begin{thebibliography}{9}\bibitem{a} Somebody, Something.\end{thebibliography}
\end{document}
Not this.
"""
TEXT = r"""# On Norms

## Abstract

We study norms.

## Introduction

Let $x \in \mathbb{R}$; see [a, b] and Section [sec:intro]. It is 5% — “really”.

Footnote: A note on $\mathbb{R}$.

Erdős, Poincaré, Łukasiewicz and naïve.

$$
\left\| x \right\|_{2} + \left\| y \right\|_{1} = \frac{1}{2}
$$

Short.

Theorem (Main). $\operatorname{rank} A = 1$.

- One

- Two Three

Figures.

a | 1
b | 2

\begin{align*}
a &= b \\ c &= \text{if $d$}
\end{align*}

```
x % y \R
```"""


def text_of(body: str, **files: str) -> str:
    """The text of a paper of one file, and others that it may include."""
    return latex_to_text({"main.tex": body, **files}, "main.tex").text


def test_a_paper_becomes_readable_text() -> None:
    """Every part of a paper is where a reader expects it, or gone."""
    found = latex_to_text({"main.tex": PAPER}, "main.tex")
    assert found.text == TEXT
    assert found.title == "On Norms"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (r"\def\a{\alpha}$\a b$", r"$\alpha b$"),
        (r"\newcommand*\go[1]{<#1>}\go x \go{yz}", "<x> <yz>"),
        (r"\let\eps\varepsilon $\eps$", r"$\varepsilon$"),
        (r"\newcommand{\bold}{\textbf}\bold{thick} thin", "thick thin"),
        (r"\newenvironment{boxed}[1]{Box #1:}{End.}\begin{boxed}{7}in\end{boxed} out", "Box 7:inEnd. out"),
        (r"\NewDocumentCommand{\pair}{m O{z}}{(#1,#2)}\pair{x}[y] \pair{x}", "(x,y) (x,z)"),
        (r"\section*{Star}\paragraph{Run in} on", "## Star\n\n##### Run in\n\non"),
        (r"\(a\) and \[b\] and $$c$$", "$a$ and\n\n$$\nb\n$$\n\nand\n\n$$\nc\n$$"),
        (r"\verb|a%b\c| and \url{http://a.b/c_d}", r"a%b\c and http://a.b/c_d"),
        (r"\href{http://a.b}{here} \textcolor{red}{red}", "here red"),
        (r"\begin{enumerate}\item a\begin{itemize}\item b\end{itemize}\item c\end{enumerate}", "1. a\n\n  - b\n\n2. c"),
        (r"\multicolumn{2}{c}{wide} \hspace{1em}x\vskip 3pt plus 1pt y", "wide x y"),
        (r"\section{A \textbf{bold} $x^2$}", "## A bold $x^2$"),
        ("One%\n\\ two\n% three\nfour%\n\nfive", "One two four\n\nfive"),
        (r"\iffalse hidden \iftrue too \fi \else shown \fi after", "shown after"),
        (r"\ensuremath{x} costs \$5", "$x$ costs $5"),
        ("A $5 note\n\nand more", "A $5 note$\n\nand more"),
        (r"\renewcommand{\section}[1]{\Huge #1}\section{Kept}", "## Kept"),
        (r"\nocite{*}\catcode`\@=11 \tolerance=100 x\parindent=0pt \vrule height 1pt width 2pt y", "x y"),
        (r"\setlength\parindent{0pt}a \printbibliography\textbf{b}", "a b"),
        (r"$a \text{is \verb|x|}$ \section{On \verb|y|}", "$a \\text{is x}$\n\n## On y"),
        (r"plain \TeX{} text\bye not this", "plain TeX text"),
    ],
)  # fmt: skip
def test_a_construct_of_latex(body: str, text: str) -> None:
    """Macros, formulas, lists and the rest of what papers are made of."""
    assert text_of(body) == text


def test_files_are_included_only_from_the_source() -> None:
    """By name with or without its ending, once inside itself, and never from a path outside."""
    files = {
        "main.tex": r"\begin{document}\input{parts/one}\include{two.tex}\input{../../etc/passwd}\input{/etc/passwd}"
        r"\input{main}\end{document}",
        "parts/one.tex": r"One \input{parts/one} ",
        "two.tex": "Two",
    }
    assert latex_to_text(files, "main.tex").text == "One Two"


def test_macros_of_a_style_in_the_source_are_known() -> None:
    """Those of the authors; what a journal's style is made of inside is left alone."""
    style = r"\newcommand{\us}{we} \def\them{\inner@them} \RequirePackage{other}"
    body = r"\documentclass{article}\usepackage{ours}\begin{document}\us{} and \them\end{document}"
    assert latex_to_text({"main.tex": body, "ours.sty": style}, "main.tex").text == "we and"


@pytest.mark.parametrize(
    ("files", "main"),
    [
        ({"a.tex": r"\section{A}", "b.tex": r"\documentclass{article}\begin{document}\input{a}"}, "b.tex"),
        ({"supp.tex": r"\documentclass{a}\begin{document}" + "x" * 99, "ms.tex": r"\documentclass{a}\begin{document}"},
         "ms.tex"),
        ({"a.tex": r"\documentclass{a}\begin{document}", "b.tex": r"\documentclass{b}\begin{document}" + "x" * 9,
          "00README.XXX": "a.tex toplevelfile\n"}, "a.tex"),
        ({"x/a.tex": r"\documentclass{a}\begin{document}", "x/b.tex": r"\documentclass{b}\begin{document} long",
          "x/00README.json": '{"sources": [{"filename": "a.tex", "usage": "toplevel"}]}'}, "x/a.tex"),
        ({"fig.tex": r"\documentclass{standalone}\begin{document}" + "x" * 99, "z.tex": r"\documentstyle{z}"}, "z.tex"),
        ({"a.tex": "% \\documentclass{a}\nplain \\TeX, the longest of all here", "b.tex": r"\TeX"}, "a.tex"),
        ({"notes.tex": "nothing here"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_main_file_is_found(files: dict[str, str], main: str | None) -> None:
    """By what the archive says, by its content and by its name, in this order."""
    assert main_file(files) == main


def test_bytes_are_decoded_as_they_declare() -> None:
    """UTF-8 where it is, the declared encoding otherwise."""
    assert decoded("na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve".encode()) == "naïve"
    assert decoded(b"\\usepackage[cp1251]{inputenc} \xcf\xf0") == "\\usepackage[cp1251]{inputenc} Пр"
    assert decoded(b"caf\xe9\r\n\x00") == "café\n"


def test_macros_that_grow_without_end_are_refused() -> None:
    """A few lines that would become gigabytes."""
    lines = [r"\def\a{laugh}"] + [f"\\def\\{chr(98 + n)}{{{(chr(92) + chr(97 + n)) * 10}}}" for n in range(12)]
    with pytest.raises(LatexError, match="expand to more text") as caught:
        text_of("\n".join(lines) + r"\m")
    assert caught.value.cause == "latex_expansion"


@pytest.mark.parametrize("body", [r"\def\a{\a}\a end", r"\def\a{x\a}\a end", r"\def\a{\b}\def\b{\a}\a end"])
def test_a_macro_that_stands_for_itself_ends(body: str) -> None:
    """What follows it is still there."""
    assert text_of(body).endswith("end")
