"""Templates: nearly all are boxes, notes and navigation and are omitted; these few contain part of the sentence.

Only the call is known, never the template's own source. A small table of names therefore determines what a reader sees,
most of them English Wikipedia's, which other wikis have adopted. `docs/how-to/read-wikipedia.md` names the groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

Positional = Sequence[str]
Named = Mapping[str, str]
Render = Callable[[Positional, Named], str]

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_KEY = re.compile(r"[^\s<>\[\]{}=|][^<>\[\]{}=|\n]{0,40}")
_RANGES: Mapping[str, str] = {
    "-": "–", "–": "–", "to": " to ", "and": " and ", "or": " or ", "to(-)": "–", "x": " × ", "by": " by ", "×": " × ",
    "*": " × ", "+": " + ", "+/-": " ± ", "±": " ± ", ",": ", ",
    "through": " through ",
}  # fmt: skip


def _first(args: Positional, named: Named) -> str:
    return args[0] if args else ""


def _last(args: Positional, named: Named) -> str:
    return args[-1] if args else ""


def _second(args: Positional, named: Named) -> str:
    return args[1] if len(args) > 1 else ""


def _joined(args: Positional, named: Named) -> str:
    return "".join(args)


def _spaced(args: Positional, named: Named) -> str:
    return " ".join(filter(None, args))


def _listed(args: Positional, named: Named) -> str:
    return ", ".join(filter(None, args))


def _lines(args: Positional, named: Named) -> str:
    return "".join(f"\n* {arg}" for arg in args if arg)


def _block(args: Positional, named: Named) -> str:
    """A list that is the whole content, or a text in a column."""
    return "\n" + (named.get("content") or _first(args, named)) + "\n"


def _quote(args: Positional, named: Named) -> str:
    """A quotation as a separate paragraph, with its author."""
    text = named.get("text") or named.get("quote") or _first(args, named)
    by = named.get("author") or named.get("sign") or named.get("by") or _second(args, named)
    of = named.get("source") or named.get("title") or (args[2] if len(args) > 2 else "")
    told = ", ".join(filter(None, (by, of)))
    return f"\n\n{text}{f' — {told}' if told else ''}\n\n" if text else ""


def _convert(args: Positional, named: Named) -> str:
    """The measure that was written, without the one that is computed from it."""
    values: list[str] = []
    for at, arg in enumerate(args):
        if arg in _RANGES and at + 1 < len(args) and values:
            values.append(_RANGES[arg])
        elif _is_number(arg):
            values.append(arg)
        else:
            return f"{''.join(values)} {arg}".strip()
    return "".join(values)


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or (text[:1] in "+-−." and text[1:2].isdigit())


def _fraction(args: Positional, named: Named) -> str:
    if len(args) > 2:
        return f"{args[0]} {args[1]}/{args[2]}"
    return "/".join(args if len(args) > 1 else ["1", *args])


def _value(args: Positional, named: Named) -> str:
    number = _first(args, named) + (f"±{args[1]}" if len(args) > 1 else "")
    if "e" in named:
        number += f"×10^{named['e']}"
    unit = named.get("u") or named.get("ul") or ""
    return f"{number} {unit}".strip()


def _as_of(args: Positional, named: Named) -> str:
    if "alt" in named:
        return named["alt"]
    parts = list(args[:3])
    if len(parts) > 1 and parts[1].isdigit() and 1 <= int(parts[1]) <= 12:
        parts[1] = _MONTHS[int(parts[1]) - 1]
    word = "as of" if named.get("lc") else "As of"
    return f"{word} {' '.join(reversed(parts))}" if parts else ""


def _date(args: Positional, named: Named) -> str:
    parts = [part for part in args[:3] if part.isdigit()]
    if len(parts) > 1 and 1 <= int(parts[1]) <= 12:
        parts[1] = _MONTHS[int(parts[1]) - 1]
    return " ".join(reversed(parts))


def _years(args: Positional, named: Named) -> str:
    return "–".join(args[:2])


def _nihongo(args: Positional, named: Named) -> str:
    inner = ", ".join(filter(None, args[1:3]))
    return f"{_first(args, named)} ({inner})" if inner and args[0] else inner or _first(args, named)


def _chinese(args: Positional, named: Named) -> str:
    known = ("c", "t", "s", "p", "w", "j", "tp")
    return "; ".join([*args[:1], *(named[key] for key in known if named.get(key))])


def _pronounced(args: Positional, named: Named) -> str:
    sounds = "".join(arg for arg in args if arg not in ("en", "us", "uk", "lang", "pron", "local", "also", "UK", "US"))
    return f"/{sounds}/" if sounds else ""


def _link_elsewhere(args: Positional, named: Named) -> str:
    return named.get("lt") or named.get("display") or _first(args, named)


def _prefixed(prefix: str) -> Render:
    return lambda args, named: f"{prefix}{_first(args, named)}"


def _constant(text: str) -> Render:
    return lambda args, named: text


def _ship(args: Positional, named: Named) -> str:
    return " ".join(filter(None, args[:2]))


def _table() -> dict[str, Render]:
    known: list[tuple[str, Render]] = [
        # text in another language, another type face, or with a note
        (
            (
                "lang|transl|transliteration|wikt-lang|rtl-lang|nativename|native name|lang-sr-cyrl|font color|"
                "font colour"
            ),
            _last,
        ),
        (
            (
                "nowrap|nobr|j|nowiki|small|smaller|big|larger|large|sic|abbr|tooltip|em|strong|smallcaps|sc|"
                "smallcaps2|var|mvar|math|bigmath|mono|code|tt|kbd|samp|key|sub|sup|nobold|noitalic|nobold|i|b|"
                "center|linktext|vanchor|visible anchor|not a typo|as written|proper name|ipa|ipalink|script|"
                "unicode|polytonic|hebrew|script/hebrew|lang-la|strikethrough|strike|underline|u|nee|flag|"
                "flagcountry|flagu|cr|chem2|ce|isbn|first word|resize|bibleref2|midsize|overline|keypress|hanja|"
                "not typo|typo|ordinal|bold|italic|italics|crossreference|definition|defn|gloss|term|langnf|"
                "translation|literally|respell|music|okay|uninline|cyrl|script/arabic|script/greek|greek|arabic|"
                "sanskrit|iast|grc|nq|talkquote|stack|nofont|align|vr|raised|railgauge|track gauge"
            ),
            _first,
        ),
        ("color|colour|fontcolor|background color|fs|font-size|wikt|hover title|font", _second),
        # quotations and lists
        (
            (
                "quote|blockquote|quotation|cquote|rquote|bquote|centered pull quote|pull quote|quote box|"
                "quotebox|poemquote|poem quote|block quote"
            ),
            _quote,
        ),
        (
            (
                "plainlist|flatlist|startflatlist|columns-list|col-list|div col|colbegin|block indent|bi|in5|"
                "multicol"
            ),
            _block,
        ),
        (
            (
                "unbulleted list|vunblist|ubl|ubt|plain list|bulleted list|bulletedlist|ordered list|ol|ul|hlist|"
                "flat list"
            ),
            _lines,
        ),
        ("comma separated entries|cslist|enum|and list", _listed),
        # measures, money, numbers and dates
        ("convert|cvt|convert/spell", _convert),
        ("frac|fraction|sfrac|sfraction|fract", _fraction),
        ("val|value", _value),
        ("e", _prefixed("×10^")),
        ("us$|usd|au$|a$|ca$|c$|nz$", _prefixed("$")),
        ("gbp|£|pound sterling", _prefixed("£")),
        ("euro|€|eur", _prefixed("€")),
        ("inr|₹|indian rupee", _prefixed("₹")),
        ("jpy|¥|cny", _prefixed("¥")),
        ("formatnum|number|gaps|nts|number table sorting", _first),
        ("as of|asof", _as_of),
        ("circa|ca|c.|ca.", lambda args, named: f"c. {'–'.join(args[:2])}".strip()),
        ("floruit|fl.|fl", lambda args, named: f"fl. {'–'.join(args[:2])}".strip()),
        ("reign|r.", lambda args, named: f"r. {'–'.join(args[:2])}".strip()),
        (
            (
                "start date|end date|date|film date|birth date|death date|dob|start-date|birth-date|"
                "start date and age|dts"
            ),
            _date,
        ),
        ("age in years|birth year|year range", _years),
        # languages and names
        ("ipac-en|ipac|ipa-en", _pronounced),
        ("nihongo|nihongo2|nihongo foot", _nihongo),
        ("zh|zh-full|lang-zh", _chinese),
        ("ill|interlanguage link|illm|link-interwiki|iw2|interlanguage link multi", _link_elsewhere),
        ("chem|su|simplenuclide|nuclide", _joined),
        ("ship|ship/2|sclass|sclass-|sclass2-", _ship),
        ("bibleverse|bible verse|bibleref|bv|sourcetext", _spaced),
        # characters
        ("ndash|en dash|–", _constant("–")),
        ("mdash|mdashb|em dash|—", _constant("—")),
        ("snd|spnd|sndash|spndash|spaced ndash|spaced en dash|dash", _constant(" – ")),
        ("snds|spaced mdash|spaced em dash", _constant(" — ")),
        ("nbsp|space|spaces|thinsp|thin space|hair space|hairsp|nnbsp|pad|sp|0|00", _constant(" ")),
        ("·|dot|middot|•|bull|bullet|sdot", _constant(" · ")),
        ("!|pipe", _constant("|")),
        ("!!", _constant("||")),
        ("=", _constant("=")),
        ("'|apostrophe", _constant("'")),
        ("'s", _constant("'s")),
        ("' \"", _constant("'\"")),
        ("okina|hamza", _constant("ʻ")),
        ("pi", _constant("π")),
        ("number sign|hash-tag", _constant("#")),
        ("(", _constant("{")),
        (")", _constant("}")),
        ("((", _constant("{{")),
        ("))", _constant("}}")),
        ("angbr|angle bracket", lambda args, named: f"⟨{_first(args, named)}⟩"),
        ("vol.", _prefixed("Vol. ")),
        ("bracket", lambda args, named: f"[{_first(args, named)}]"),
        ("'\"|\" '", _constant("'\"")),
    ]  # fmt: skip
    ships = ("HMS", "USS", "SS", "RMS", "SMS", "MV", "HMCS", "HMAS", "USNS", "USCGC", "HMNZS", "USAT", "HMHS")
    known += [(ship.lower(), _prefixed(f"{ship} ")) for ship in ships]
    return {name: render for names, render in known for name in (names.split("|") if len(names) > 1 else [names])}


_RENDERED: Final = _table()
_RENDERED["|"] = _constant("|")
_FUNCTIONS = frozenset(("formatnum", "lc", "uc", "lcfirst", "ucfirst", "nowrap", "urlencode"))
_TITLES = frozenset(("pagename", "fullpagename", "basepagename", "subjectpagename"))


def template_text(inside: str, title: str) -> str:
    """What a reader sees of the template with `inside` between its braces; nothing for most."""
    bar = inside.find("|")
    name = (inside if bar < 0 else inside[:bar]).strip().lower()
    render = _RENDERED.get(name)
    if render is None:
        if "_" in name:
            name = name.replace("_", " ")
            render = _RENDERED.get(name)
        if render is None:
            return _unusual(name, inside, bar, title)
    if bar < 0:
        return render((), {})
    return render(*_arguments(inside[bar + 1 :]))


def _unusual(name: str, inside: str, bar: int, title: str) -> str:
    if name.startswith(("lang-", "ipa-", "ipac-")) and bar >= 0:
        args, named = _arguments(inside[bar + 1 :])
        return _pronounced(args, named) if name.startswith("ipac") else _first(args, named)
    if name in _TITLES:
        return title
    function, colon, _ = name.partition(":")
    if colon and function in _FUNCTIONS:
        return inside.partition(":")[2].partition("|")[0].strip()
    return ""


def _arguments(text: str) -> tuple[list[str], dict[str, str]]:
    """The arguments by their place and by their name; `1=` is the first one."""
    args: list[str] = []
    named: dict[str, str] = {}
    for part in text.split("|"):
        key, equals, value = part.partition("=")
        if equals:
            key = key.strip()
            if key.isdecimal() and len(key) < 3:
                at = int(key)
                if 0 < at < 100:
                    args += [""] * (at - len(args))
                    args[at - 1] = value.strip()
                    continue
            elif _KEY.fullmatch(key):
                named[key.lower()] = value.strip()
                continue
        args.append(part.strip())
    return args, named
