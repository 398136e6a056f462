"""Known LaTeX commands and environments, by how they are converted."""

from __future__ import annotations

import re
from collections.abc import Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEADINGS: Mapping[str, int] = {
    "part": 2, "chapter": 2, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5, "subparagraph": 6,
}  # fmt: skip
CITATION = re.compile(r"(?:[a-zA-Z]{0,10}cite[a-zA-Z]{0,10}|Cite[a-z]{0,10})\*?")
"""Includes those of natbib and biblatex: `\\parencite`, `\\citeauthor`, `\\textcite` …"""
REFERENCES = _words("ref eqref pageref cref Cref autoref nameref vref Vref fref Fref sref subref labelcref crefrange")
MATH_ENVIRONMENTS = _words(
    "equation align gather multline flalign alignat eqnarray displaymath math dmath dgroup IEEEeqnarray "
    "subeqnarray xalignat xxalignat mathletters"
)
PLAIN_MATH = _words("equation displaymath dmath")
"""Environments equivalent to `$$`."""
TEXT_IN_MATH = _words("text mbox hbox textrm textit textbf textsf texttt textnormal intertext shortintertext")
DROPPED_ENVIRONMENTS = _words(
    "figure wrapfigure SCfigure sidewaysfigure floatingfigure teaserfigure tikzpicture tikzcd pgfpicture picture "
    "pspicture psfrags overpic asy forest feynman fmffile thebibliography references comment CCSXML filecontents "
    "IEEEbiography IEEEbiographynophoto biography keyword rawhtml htmlonly bibdiv biblist"
)
LISTS: Mapping[str, str] = {
    "itemize": "-", "enumerate": "1", "description": "-", "compactitem": "-", "compactenum": "1", "inparaenum": "1",
    "trivlist": "", "list": "-", "easylist": "-", "inparaitem": "-", "asparaenum": "1", "asparaitem": "-",
}  # fmt: skip
TABLES: Mapping[str, int] = {
    "tabular": 1, "tabular*": 2, "tabularx": 2, "tabulary": 2, "longtable": 1, "supertabular": 1, "deluxetable": 1,
    "deluxetable*": 1, "tblr": 1, "tabbing": 0, "xltabular": 2, "array": 1,
}  # fmt: skip
"""Tables, by the number of layout arguments."""
THEOREMS: Mapping[str, str] = {
    name: name.capitalize()
    for name in _words(
        "theorem lemma proposition corollary definition remark remarks example conjecture claim proof assumption "
        "notation question problem exercise fact hypothesis"
    )
} | {"thm": "Theorem", "lem": "Lemma", "prop": "Proposition", "cor": "Corollary", "defn": "Definition", "pf": "Proof"}
ENVIRONMENT_ARGUMENTS: Mapping[str, int] = {
    "minipage": 1, "adjustbox": 1, "multicols": 1, "wraptable": 2, "spacing": 1, "tcolorbox": 0, "adjustwidth": 2,
    "otherlanguage": 1, "CJK": 2, "CJK*": 2, "list": 2, "longtblr": 1, "subequations": 0, "textblock": 1,
    "mdframed": 0, "table": 0, "table*": 0, "algorithmic": 0, "addmargin": 1, "resizebox": 0, "turn": 1, "rotate": 1,
}  # fmt: skip

DROPPED: Mapping[str, int] = {
    **dict.fromkeys(_words(
        "label vspace hspace includegraphics graphicspath setcounter addtocounter stepcounter pagestyle "
        "thispagestyle usepackage RequirePackage documentclass documentstyle bibliography bibliographystyle "
        "nocite author affiliation address email thanks date institute affil orcid altaffiliation homepage "
        "altaffilmark altaffiltext authorrunning titlerunning correspondingauthor hypersetup pagenumbering "
        "phantom hphantom vphantom index glossary selectlanguage captionsetup geometry "
        "PACS pacs preprint keywordname received accepted revised published ead cortext fntext tnotetext "
        "fnref corref tnoteref inst linespread hyphenation typeout usetikzlibrary tikzset pgfplotsset lstset "
        "newcounter newlength newsavebox usebox newcolumntype arraystretch cline cmidrule includepdf color "
        "pagecolor theoremstyle allowdisplaybreaks addbibresource marginpar todo "
        "subjclass thispage fontfamily fontseries fontshape ccsdesc acmConference acmBooktitle acmISBN acmDOI "
        "acmPrice acmYear acmJournal setcopyright copyrightyear citestyle received orcidID journal volume issue "
        "cellcolor rowcolor columncolor DeclareGraphicsExtensions epsfig psfig epsfbox epsffile "
        "bibitem excludecomment includecomment cvs textblockorigin "
        "authornote authornotemark shortauthors setlist SetKwInOut NeedsTeXFormat ProvidesPackage ProvidesClass "
        "pagerange collaboration jname doi issn tablenum tablewidth tabletypesize tablecolumns bmhead jot "
        "thanksref urlstyle enlargethispage pdfinfo pdfbookmark"),
        1,
    ),
    **dict.fromkeys(_words(
        "setlength addtolength settowidth markboth numberwithin definecolor rule fontsize titleformat "
        "DeclareUnicodeCharacter newfont newfloat floatname "
        "counterwithin newunicodechar "
        "setmathfont AtBeginEnvironment AtEndEnvironment"),
        2,
    ),
    **dict.fromkeys(_words("addcontentsline crefname Crefname titlespacing DeclareFieldFormat newtcolorbox"), 3),
    **dict.fromkeys(_words("affaddr affnumber numberofauthors"), 1),
}  # fmt: skip
"""Commands that are dropped, with the number of their arguments."""
LAST_ARGUMENT: Mapping[str, int] = {
    "href": 2, "textcolor": 2, "colorbox": 2, "fcolorbox": 3, "raisebox": 2, "parbox": 2, "multicolumn": 3,
    "multirow": 3, "resizebox": 3, "scalebox": 2, "rotatebox": 2, "hypertarget": 2, "hyperlink": 2,
    "foreignlanguage": 2,     "shortstack": 1, "adjustbox": 2,
}  # fmt: skip
"""Commands whose last argument is the only one that is text."""
STRUCTURE = (
    _words(
        "begin end item footnote footnotetext caption title abstract url path input include subfile import subimport "
        "par maketitle newline documentclass usepackage label ensuremath verb keywords appendix endinput bye "
        "newcommand renewcommand providecommand def let newenvironment newtheorem documentstyle"
    )
    | HEADINGS.keys()
    | REFERENCES
    | {"bibliography", "thanks", "author", "href", "cite", "includegraphics"}
)
"""Commands that keep their meaning, even if a paper redefines their appearance."""

ACCENTS: Mapping[str, str] = {
    "`": "\u0300", "'": "\u0301", "^": "\u0302", "~": "\u0303", '"': "\u0308", "=": "\u0304", ".": "\u0307",
    "u": "\u0306", "v": "\u030c", "H": "\u030b", "c": "\u0327", "k": "\u0328", "r": "\u030a", "d": "\u0323",
    "b": "\u0331",
}  # fmt: skip
SYMBOLS: Mapping[str, str] = {
    "ldots": "…", "dots": "…", "textellipsis": "…", "LaTeX": "LaTeX", "TeX": "TeX", "LaTeXe": "LaTeX2e",
    "BibTeX": "BibTeX", "AmS": "AMS", "ss": "ß", "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "o": "ø", "O": "Ø",
    "l": "ł", "L": "Ł", "aa": "å", "AA": "Å", "i": "ı", "j": "ȷ", "dh": "ð", "DH": "Ð", "th": "þ", "TH": "Þ",
    "S": "§", "P": "¶", "copyright": "©", "textcopyright": "©", "pounds": "£", "textsterling": "£", "euro": "€",
    "texteuro": "€", "textregistered": "®", "texttrademark": "™", "textdegree": "°", "degree": "°", "dag": "†",
    "ddag": "‡", "textdagger": "†", "textbullet": "•", "textendash": "–", "textemdash": "—", "textquoteleft": "‘",
    "textquoteright": "’", "textquotedblleft": "“", "textquotedblright": "”", "textquotesingle": "'",
    "quotedblbase": "„", "guillemotleft": "«", "guillemotright": "»",
    "og": "« ", "fg": " »", "textbackslash": "\\", "textasciitilde": "~",
    "textasciicircum": "^", "textunderscore": "_", "textless": "<", "textgreater": ">", "textbar": "|",
    "textbraceleft": "{", "textbraceright": "}", "textdollar": "$", "lbrack": "[", "rbrack": "]", "lq": "‘", "rq": "’",
    "slash": "/", "quad": " ", "qquad": " ", "enspace": " ", "thinspace": " ", "space": " ", "nobreakspace": " ",
    "textonehalf": "½", "textmu": "µ", "micro": "µ", "textperthousand": "‰", "textpm": "±",
    "texttimes": "×", "textrightarrow": "→", "textexclamdown": "¡", "textquestiondown": "¿",
    "checkmark": "✓", "today": "",
    "&": "&", "%": "%", "$": "$", "#": "#", "_": "_", "{": "{", "}": "}", " ": " ", "\n": " ", "\t": " ", ",": " ",
    ";": " ", ":": " ", "!": "", "/": "", "-": "", "@": "", "|": "‖", ">": " ", "<": "", "+": "",
}  # fmt: skip


def accented(mark: str, argument: str) -> str:
    """The letter of `argument` with the accent of the command `mark`."""
    base = argument.strip().strip("{}").strip()
    base = {"\\i": "i", "\\j": "j"}.get(base, base)
    if base.startswith("\\"):
        base = SYMBOLS.get(base[1:].strip("{} "), "")
    return base[:1] + ACCENTS[mark] + base[1:] if base else ""
