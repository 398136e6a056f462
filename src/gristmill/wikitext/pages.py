"""What kind of page a page is, by its title and its markup."""

from __future__ import annotations

import re
from typing import Literal

PageKind = Literal["article", "list", "disambiguation", "redirect"]

_REDIRECT = re.compile(
    r"\s*#\s*(?:redirect(?:ion)?|weiterleitung|redirección|redirecionamento|rinvia|doorverwijzing|patrz|przekieruj|"
    r"перенаправление|перенаправлення|转向|重定向|転送|넘겨주기|omdirigering|ohjaus|yönlendir|تحويل|"
    r"تغییر[_ ]?مسیر|הפניה|đổi|виж|пренасочване|átirányítás|presmeruj)\b\s*:?\s*\[\[",
    re.IGNORECASE,
)
# Templates that mark a page of names that mean several things; English ones and those of the largest wikis.
_DISAMBIGUATION = re.compile(
    r"\{\{\s*(?i:disambig(?:uation)?|disamb|dab|hndis|geodis|roaddis|schooldis|hospitaldis|mathdab|numberdis|shipindex|"
    r"letter[- –]?numbercombdisambig|airport disambig(?:uation)?|call ?sign disambiguation|"
    r"(?:human|place) name disambiguation|begriffsklärung|homonymie|desambiguación|desambig|desambiguação|disambigua|"
    r"dp|doorverwijspagina|ujednoznacznienie|неоднозначность|неоднозначність|багатозначність|消歧义|消歧義|"
    r"曖昧さ回避|aimai|동음이의|förgrening|täsmennyssivu|anlam ayrımı|توضيح|פירושונים|trang định hướng|"
    r"rozcestník|egyért|пояснение|αποσαφήνιση)\s*(?:\||\}\})",
)
_DISAMBIGUATION_TITLE = re.compile(
    r"\((?:disambiguation|begriffsklärung|homonymie|desambiguación|desambiguação|disambigua|doorverwijspagina|"
    r"ujednoznacznienie|значения|значення|消歧义|消歧義|曖昧さ回避|동음이의|täsmennyssivu|anlam ayrımı)\)$",
    re.IGNORECASE,
)
_LIST_TITLE = re.compile(
    r"(?:lists? of|index of|outline of|glossary of|timeline of|liste (?:der|von|des|aller)|listen von|"
    r"liste d(?:e|es|u)|lista (?:de|di|delle|dei|degli|över)|lijst van|список|перелік|seznam) |"
    r"liste d['’]|.+一覧$|.+列表$",
    re.IGNORECASE,
)


def page_kind(title: str, wikitext: str, *, redirect: bool = False) -> PageKind:
    """What kind of page this is.

    Args:
        title: Its name.
        wikitext: Its markup.
        redirect: A dump says that it is a redirect.

    Example:
        >>> page_kind("Mercury", "'''Mercury''' may refer to: … {{disambiguation}}")
        'disambiguation'
    """
    if redirect or _REDIRECT.match(wikitext):
        return "redirect"
    if _DISAMBIGUATION_TITLE.search(title) or _DISAMBIGUATION.search(wikitext):
        return "disambiguation"
    return "list" if _LIST_TITLE.match(title) else "article"
