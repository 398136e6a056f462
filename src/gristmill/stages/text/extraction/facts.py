"""Extracts what a page says about itself: title, author, date, licence, and links."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any
from urllib.parse import urljoin

FACTS = ("title", "date", "author", "language", "links", "license")
"""The available facts; `language` is the language of the text."""

_CC = re.compile(
    r"creativecommons\.org/(?:licen[sc]es/(?P<kind>by(?:-nc)?(?:-nd|-sa)?|nc-sa|nd-nc|nd|sa|nc)|publicdomain/(?P<public>zero|mark))"
    r"(?:/(?P<version>\d\.\d))?(?:/(?P<place>[a-z]{2,5})(?=[/\"'\s?#]|$))?",
    re.IGNORECASE,
)
_DAY = re.compile(r"((?:19|20)\d\d)[-/.]?(0[1-9]|1[0-2])[-/.]?(0[1-9]|[12]\d|3[01])(?!\d)")
_IN_URL = re.compile(r"/((?:19|20)\d\d)[/-](0?[1-9]|1[0-2])[/-](0?[1-9]|[12]\d|3[01])(?=[/-]|$)")
_TITLES = ("og:title", "twitter:title", "dc.title", "citation_title")
_DATES = (
    "article:published_time", "og:published_time", "datepublished", "date", "dc.date", "dc.date.issued",
    "dcterms.created", "pubdate", "publishdate", "publish-date", "sailthru.date", "parsely-pub-date",
    "citation_publication_date",
)  # fmt: skip
_AUTHORS = ("author", "article:author", "dc.creator", "parsely-author", "sailthru.author", "byl", "citation_author")
_MAX_LINKS = 5000
_MAX_LD = 200_000
_SITE = re.compile(r"\s+(?:[|·•»–—]|-{1,2})\s+[^|·•»–—]{1,60}$")


def facts_of(tree: Any, url: str | None, wanted: frozenset[str]) -> dict[str, Any]:
    """The requested facts of a parsed page; None for what it does not state.

    Args:
        tree: The page, parsed by Resiliparse.
        url: Its address, for relative links and dates in addresses.
        wanted: Some of `FACTS`.
    """
    document = tree.document
    meta = _meta_of(document)
    linked = _linked_data(document) if wanted & {"date", "author", "license", "title"} else {}
    found: dict[str, Any] = {}
    if "title" in wanted:
        found["title"] = _title(tree, meta, linked)
    if "author" in wanted:
        named = linked.get("author") or next((meta[key] for key in _AUTHORS if meta.get(key)), None)
        named = named or _text_of(
            document, "[rel=author], [itemprop=author] [itemprop=name], .author .fn, .byline-name"
        )
        found["author"] = named if named and "://" not in named and len(named) <= 200 else None
    if "date" in wanted:
        found["date"] = _date(document, meta, linked, url)
    if "links" in wanted:
        found["links"] = _links(document, url)
    if "license" in wanted:
        found["license"] = _licence(document, linked)
    return found


def creative_commons(text: str) -> str | None:
    """The licence of a Creative Commons address, as `cc-by-sa-4.0`; None for any other text.

    Example:
        >>> creative_commons("https://creativecommons.org/licenses/by-nc/3.0/de/")
        'cc-by-nc-3.0-de'
        >>> creative_commons("http://creativecommons.org/publicdomain/zero/1.0/")
        'cc0-1.0'
    """
    found = _CC.search(text)
    if found is None:
        return None
    public = (found["public"] or "").lower()
    name = {"zero": "cc0", "mark": "cc-pdm"}.get(public) or f"cc-{found['kind'].lower()}"
    place = (found["place"] or "").lower()
    parts = [name, found["version"], place if place not in ("", "deed") else None]
    return "-".join(part for part in parts if part)


def _meta_of(document: Any) -> dict[str, str]:
    meta: dict[str, str] = {}
    for node in document.query_selector_all("meta[content]"):
        key = node.getattr("property") or node.getattr("name") or node.getattr("itemprop")
        value = " ".join((node.getattr("content") or "").split())
        if key and value:
            meta.setdefault(key.strip().lower(), value)
    return meta


def _linked_data(document: Any) -> dict[str, str]:
    """Headline, author, date and licence from the page's JSON-LD, if there is any and it can be parsed."""
    found: dict[str, str] = {}
    for node in document.query_selector_all("script[type='application/ld+json']"):
        source = node.text or ""
        if len(source) > _MAX_LD:
            continue
        try:
            data = json.loads(source)
        except (ValueError, RecursionError):
            continue
        entries = data if isinstance(data, list) else [data]
        for entry in entries[:50]:
            graph = entry.get("@graph") if isinstance(entry, dict) else None
            for item in graph[:50] if isinstance(graph, list) else [entry]:
                if isinstance(item, dict):
                    _add_item(found, item)
    return found


def _add_item(found: dict[str, str], item: dict[str, Any]) -> None:
    for key, name in (("headline", "title"), ("datePublished", "date"), ("author", "author"), ("license", "license")):
        value = item.get(key)
        if isinstance(value, list):
            value = ", ".join(filter(None, map(_name_of, value[:10])))
        told = _name_of(value)
        if told:
            found.setdefault(name, told)


def _name_of(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name") or value.get("url") or value.get("@id")
    return " ".join(value.split()) if isinstance(value, str) else ""


def _title(tree: Any, meta: dict[str, str], linked: dict[str, str]) -> str | None:
    given = next((meta[key] for key in _TITLES if meta.get(key)), None) or linked.get("title")
    title = given or " ".join((tree.title or "").split())
    heading = _text_of(tree.document, "h1")
    if heading and (not title or (len(heading) > 10 and heading in title)):
        return heading
    return _SITE.sub("", title) or title or None


def _date(document: Any, meta: dict[str, str], linked: dict[str, str], url: str | None) -> str | None:
    told = [linked.get("date"), *(meta.get(key) for key in _DATES)]
    dated = document.query_selector_all("[itemprop=datePublished], time[pubdate], time[datetime]")
    told += [node.getattr("datetime") or node.getattr("content") for node in islice(dated, 3)]
    for value in told:
        found = _DAY.search(value or "")
        if found:
            return "-".join(found.groups())
    found = _IN_URL.search(url or "")
    return f"{found[1]}-{int(found[2]):02}-{int(found[3]):02}" if found else None


def _links(document: Any, url: str | None) -> list[str]:
    base = document.query_selector("base[href]")
    root = urljoin(url or "", base.getattr("href") or "") if base is not None else url or ""
    found: dict[str, None] = {}
    for node in document.query_selector_all("a[href]"):
        try:
            link = urljoin(root, (node.getattr("href") or "").strip()).partition("#")[0]
        except ValueError:  # an address with a broken host
            continue
        if link.startswith(("http://", "https://")):
            found[link] = None
            if len(found) >= _MAX_LINKS:
                break
    return list(found)


def _licence(document: Any, linked: dict[str, str]) -> str | None:
    """The declared licence of the page, otherwise the only Creative Commons licence that it links to."""
    declared = [node.getattr("href") or "" for node in document.query_selector_all("[rel~=license][href]")]
    for address in [*declared, linked.get("license", "")]:
        licence = creative_commons(address)
        if licence:
            return licence
    others = document.query_selector_all("a[href*='creativecommons.org/']")
    named = {licence for licence in (creative_commons(node.getattr("href") or "") for node in others) if licence}
    return named.pop() if len(named) == 1 else None


def _text_of(document: Any, selector: str) -> str | None:
    node = document.query_selector(selector)
    return " ".join((node.text or "").split()) or None if node is not None else None
