"""The URL filters as one stage."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.stages.text.filters.published.rules import FilterSet
from gristmill.stages.text.filters.published.stages import PublishedSet
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.url.filters import (
    NOT_TEXT,
    AdultUrlFilter,
    UrlAllowListFilter,
    UrlBlockListFilter,
    UrlExtensionFilter,
    UrlHostFilter,
    UrlLengthFilter,
)
from gristmill.stages.text.filters.url.lists import as_names, list_digest


class UrlRules(PublishedSet):
    """Drops documents by URL: type of host, length, extension, block lists, adult terms, allow list, in this order.

    Every rule has its own reason, and is documented with the filter that applies it: `UrlHostFilter`,
    `UrlLengthFilter`, `UrlExtensionFilter`, `UrlBlockListFilter`, `AdultUrlFilter`, `UrlAllowListFilter`.

    Args:
        url_field: Column that holds the URL.
        block_lists: Files with one domain or URL per line, or folders of the UT1 lists.
        block: Domains and URLs to drop, in addition to the lists; `com` drops a whole top-level domain.
        allow_lists: Files with the only domains and URLs to keep; none keeps all.
        allow: The only domains and URLs to keep, in addition to the lists.
        adult_terms: Whether to drop URLs with adult terms.
        min_soft_words: Minimum number of soft adult words that mark a URL as adult.
        extensions: Extensions of files that are not web pages; null keeps all.
        allow_ip_address: Keep URLs with an IP address as host.
        allow_missing: Keep documents without a usable URL.
        max_chars: Maximum number of characters of a URL; null for no limit.

    Example:
        >>> UrlRules(block=["example.com"]).filters.reason_for("https://forum.example.com/")
        'blocked_domain'
    """

    name = "UrlRules"
    notes_changes = True
    fork_safe = True
    text_parameter = "url_field"
    makes = FilterSet

    def __init__(
        self,
        url_field: str = "url",
        *,
        block_lists: str | Sequence[str] = (),
        block: str | Sequence[str] = (),
        allow_lists: str | Sequence[str] = (),
        allow: str | Sequence[str] = (),
        adult_terms: bool = True,
        min_soft_words: int = 2,
        extensions: Sequence[str] | None = NOT_TEXT,
        allow_ip_address: bool = False,
        allow_missing: bool = True,
        max_chars: int | None = 2000,
    ) -> None:
        rules: list[ColumnFilter] = [UrlHostFilter(allow_ip_address=allow_ip_address, allow_missing=allow_missing)]
        if max_chars is not None:
            rules.append(UrlLengthFilter(max_chars))
        if extensions:
            rules.append(UrlExtensionFilter(extensions))
        if block_lists or block:
            rules.append(UrlBlockListFilter(block_lists, entries=block))
        if adult_terms:
            rules.append(AdultUrlFilter(min_soft_words))
        if allow_lists or allow:
            rules.append(UrlAllowListFilter(allow_lists, entries=allow))
        super().__init__(url_field, rules=rules)
        self.url_field = url_field
        self.lists = (*as_names(block_lists, "block_lists"), *as_names(allow_lists, "allow_lists"))

    def content_digest(self) -> str | None:
        return list_digest(self.lists) if self.lists else None
