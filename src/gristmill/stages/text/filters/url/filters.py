"""Filters over a column of URLs. A missing or broken URL is never an error: it matches no list and has no extension."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gristmill.kernels.text_column import Bytes, Integers, Mask, text_column
from gristmill.kernels.url_lists import Hashes, find_extensions, find_listed, make_table, word_keys
from gristmill.kernels.url_parts import FLAGS, HOST, HOST_END, IP_HOST, url_parts
from gristmill.kernels.url_terms import SOFT_TERMS, STRICT_TERMS, Terms, compile_terms, count_terms
from gristmill.stages.text.filters import statistics as s
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Scores, Statistic, TextStatistics
from gristmill.stages.text.filters.url import adult_terms
from gristmill.stages.text.filters.url.hosts import odd_rows, with_ascii_hosts
from gristmill.stages.text.filters.url.lists import as_names, list_files, read_table

NOT_TEXT = tuple(
    """
    7z aac apk avi avif bin bmp bz2 css csv deb dmg doc docx eot epub exe flac flv gif gz ico iso jar jpeg jpg js json
    m4a m4v mid mkv mov mp3 mp4 mpeg mpg msi odt ogg ogv otf pdf png ppt pptx psd rar rpm rss rtf svg swf tar tgz tif
    tiff torrent ttf wav webm webp wma wmv woff woff2 xls xlsx xml xz zip
    """.split()  # noqa: SIM905
)
"""Extensions of files that are not web pages."""
_PARTS = Statistic(s.URL, 0)


class UrlFilter(ColumnFilter):
    """Base class of filters that look at the parts of URLs.

    Attributes:
        ascii_hosts: Whether hosts in other alphabets are compared in their ASCII form.
    """

    score_kind = "count"
    ascii_hosts = True

    @abstractmethod
    def score_urls(self, data: Bytes, parts: Integers, alive: Mask) -> Integers:
        """The scores of URLs whose parts are known; called again for those with non-ASCII hosts."""

    def needs(self) -> Iterable[Statistic]:
        return (_PARTS,)

    def score_column(self, statistics: TextStatistics) -> Scores:
        column, parts, alive = statistics.column, statistics.group(_PARTS), np.asarray(statistics.alive)
        scores = self.score_urls(column.data, parts, alive)
        odd = odd_rows(parts)
        odd = odd[alive[odd]]
        if self.ascii_hosts and len(odd):
            fixed = with_ascii_hosts(column.data, column.offsets, parts, odd)
            everything = np.ones(len(odd), np.bool_)
            again = url_parts(fixed.data, fixed.offsets[:-1], fixed.offsets[1:], everything, False)
            scores[odd] = self.score_urls(fixed.data, again, everything)
        return scores.astype(np.float64)


class _ListFilter(UrlFilter):
    """A filter by lists of domains and URLs."""

    def __init__(
        self,
        lists: str | Sequence[str],
        entries: str | Sequence[str],
        *,
        lower: float | None = None,
        upper: float | None = None,
    ) -> None:
        super().__init__(lower=lower, upper=upper)
        self.lists = as_names(lists, "lists")
        self.entries = as_names(entries, "entries")

    def check_environment(self) -> None:
        """Reject a list that is missing."""
        list_files(self.lists)

    def warm_up(self) -> None:
        """Reject a list without entries, before workers start."""
        read_table(self.lists, self.entries)

    def score_urls(self, data: Bytes, parts: Integers, alive: Mask) -> Integers:
        return find_listed(data, parts, alive, read_table(self.lists, self.entries))


class UrlBlockListFilter(_ListFilter):
    """Drops documents whose URL is on a block list: its domain, a parent domain, the URL or a parent path.

    An entry `example.com` matches itself and all subdomains, `de` a whole top-level domain, and `example.com/forum` all
    URLs with this prefix, with and without `www.` Lists have one entry per line; comments (#), `*.` before a domain and
    the address of a hosts file (`0.0.0.0 example.com`) are ignored. Case is ignored. Use it with `text_field="url"`.

    Args:
        lists: Files, plain or compressed, or unpacked folders of the UT1 lists (`domains` and `urls` in them are read).
        entries: Domains and URLs, instead of or in addition to files.

    Example:
        >>> UrlBlockListFilter(entries=["example.com"]).score_document("http://www.Example.com/page")
        1
    """

    upper_reason = "blocked_domain"

    def __init__(self, lists: str | Sequence[str] = (), *, entries: str | Sequence[str] = ()) -> None:
        super().__init__(lists, entries, upper=0)

    def reason(self, score: float) -> str:
        return "blocked_domain" if score == 1 else "blocked_url"

    def reasons(self) -> tuple[str, ...]:
        return ("blocked_domain", "blocked_url")


class UrlAllowListFilter(_ListFilter):
    """Drops documents whose URL is not on an allow list; a missing or unusable URL never is.

    Args:
        lists: Files; see `UrlBlockListFilter`.
        entries: Domains and URLs, instead of or in addition to files.

    Example:
        >>> UrlAllowListFilter(entries=["org", "gov"]).score_document("http://example.com/")
        0
    """

    lower_reason = "not_on_allow_list"

    def __init__(self, lists: str | Sequence[str] = (), *, entries: str | Sequence[str] = ()) -> None:
        super().__init__(lists, entries, lower=1)


class AdultUrlFilter(UrlFilter):
    """Drops documents whose URL contains adult terms, with the kinds of terms of RefinedWeb.

    As published (Penedo et al. 2023, arXiv:2306.01116, appendix G.1; used by FineWeb, arXiv:2406.17557): one strict
    term is enough, as a whole word or as a letter sequence across separators; soft words count only if there are
    several. The score is the number of different soft words, plus `min_soft_words` for each strict term. The terms are
    our own selection, in English with a few of other languages; you can pass others.

    Args:
        min_soft_words: Minimum number of different soft words that mark a URL as adult.
        words: Whole words; a single one is enough.
        sequences: Letter sequences, anywhere in the URL; a single one is enough.
        soft_words: Whole words that are counted.

    Example:
        >>> AdultUrlFilter().score_document("https://essex.ac.uk/middlesex-cams")
        1
        >>> AdultUrlFilter().score_document("https://example.com/hot-webcam-sex")
        2
    """

    upper_reason = "adult_url"
    ascii_hosts = False
    _compiled: Terms | None = None

    def __init__(
        self,
        min_soft_words: int = 2,
        *,
        words: Sequence[str] | None = None,
        sequences: Sequence[str] | None = None,
        soft_words: Sequence[str] | None = None,
    ) -> None:
        super().__init__(upper=min_soft_words - 1)
        self.min_soft_words = min_soft_words
        self.words = adult_terms.WORDS if words is None else as_names(words, "words")
        self.sequences = adult_terms.SEQUENCES if sequences is None else as_names(sequences, "sequences")
        self.soft_words = adult_terms.SOFT_WORDS if soft_words is None else as_names(soft_words, "soft_words")

    def score_urls(self, data: Bytes, parts: Integers, alive: Mask) -> Integers:
        if self._compiled is None:
            self._compiled = compile_terms(words=self.words, soft_words=self.soft_words, sequences=self.sequences)
        counts = count_terms(data, parts, alive, self._compiled)
        return counts[:, STRICT_TERMS] * self.min_soft_words + counts[:, SOFT_TERMS]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_compiled"}


class UrlExtensionFilter(UrlFilter):
    """Drops documents whose URL points to a file that is not a web page, by the extension of its last path segment.

    Args:
        extensions: The extensions to drop, with or without a dot; by default those of images, sound, video, archives,
            programs, style sheets, fonts and office documents.

    Example:
        >>> UrlExtensionFilter().score_document("https://example.com/a.b/photo.JPG?size=2")
        1
    """

    upper_reason = "url_extension"
    _table: Hashes | None = None

    def __init__(self, extensions: Sequence[str] = NOT_TEXT) -> None:
        super().__init__(upper=0)
        self.extensions = tuple(one.lstrip(".").lower() for one in as_names(extensions, "extensions"))

    def score_urls(self, data: Bytes, parts: Integers, alive: Mask) -> Integers:
        if self._table is None:
            column = text_column(list(self.extensions))
            self._table = make_table(word_keys(column.data, column.offsets, 1))
        return find_extensions(data, parts, alive, self._table)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_table"}


class UrlHostFilter(UrlFilter):
    """Drops documents whose URL has an IP address as host, or no host. The score is 0, 1 (address) or 2 (none).

    Args:
        allow_ip_address: Keep IPv4 and IPv6 addresses; numbers such as `http://3232235777/` also count as addresses.
        allow_missing: Keep documents without a URL, or with one that has no usable host.

    Example:
        >>> UrlHostFilter().score_document("http://user@[2001:db8::1]:8080/")
        1
    """

    def __init__(self, *, allow_ip_address: bool = False, allow_missing: bool = True) -> None:
        super().__init__()
        self.allow_ip_address = allow_ip_address
        self.allow_missing = allow_missing

    def score_urls(self, data: Bytes, parts: Integers, alive: Mask) -> Integers:
        none = parts[:, HOST] == parts[:, HOST_END]
        found: Integers = np.where(none, 2, (parts[:, FLAGS] & IP_HOST != 0).astype(np.int64))
        return found

    def keep(self, scores: Scores) -> Mask:
        kept: Mask = (scores == 0) | (self.allow_ip_address & (scores == 1)) | (self.allow_missing & (scores == 2))
        return kept

    def reason(self, score: float) -> str:
        return "ip_address_host" if score == 1 else "no_host"

    def threshold(self, score: float) -> float | None:
        return None

    def reasons(self) -> tuple[str, ...]:
        allowed = (self.allow_ip_address, self.allow_missing)
        return tuple(name for name, kept in zip(("ip_address_host", "no_host"), allowed, strict=True) if not kept)


class UrlLengthFilter(ColumnFilter):
    """Drops documents with overlong URLs, such as crawler traps and data URLs.

    Example:
        >>> UrlLengthFilter(max_chars=10).score_document("http://example.com/")
        19
    """

    statistic = s.N_CHARS
    score_kind = "count"
    upper_reason = "url_too_long"
    upper_parameter = "max_chars"

    def __init__(self, max_chars: int = 2000) -> None:
        super().__init__(upper=max_chars)
