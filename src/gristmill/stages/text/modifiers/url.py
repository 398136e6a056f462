"""The modifier that normalises URLs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.kernels.text_column import Bytes, Integers, Mask, TextColumn, text_column
from gristmill.kernels.text_edit import build_column
from gristmill.kernels.url_normal import normal_urls
from gristmill.kernels.url_parts import url_parts
from gristmill.stages.text.filters.url.hosts import odd_rows, with_ascii_hosts
from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier

DROPPED_PARAMETERS = tuple(
    """
    utm_* mtm_* pk_* piwik_* hsa_* fbclid gclid gclsrc dclid gbraid wbraid msclkid yclid twclid ttclid igshid igsh
    li_fat_id mc_cid mc_eid mkt_tok _ga _gl _hsenc _hsmi oly_anon_id oly_enc_id vero_id wickedid
    jsessionid phpsessid aspsessionid* asp.net_sessionid cfid cftoken sessionid session_id
    """.split()  # noqa: SIM905
)
"""Parameters that only track readers or sessions; not those that may also select a page (`id`, `ref`, `sid`)."""


class UrlNormalizer(ColumnModifier):
    """Normalises URLs, so that different spellings of the same page become equal; for deduplication by URL.

    - Surrounding whitespace and the fragment are removed; a fragment that begins with `#!` identifies a page and is
      kept.
    - Scheme and host become lower case; user name, password, the default port and a dot after the host are removed. An
      international host becomes ASCII (IDNA 2003).
    - Percent-encoded letters, digits and `-._~` are decoded, other hexadecimal digits become upper case; characters
      that must be encoded are, as UTF-8.
    - `.` and `..` in the path are resolved, backslashes become slashes, trailing slashes are removed; an empty path is
      `/`.
    - Tracking and session parameters (`utm_*`, `gclid`, `;jsessionid=…`), empty ones and an empty query are removed;
      the order of the others is kept.

    Anything that is not an http, https or ftp URL with a usable host is not changed.

    Args:
        drop_parameters: Names of parameters to drop, ignoring case; `name*` matches all with this prefix.
        keep_scheme: Keep `http://` and `https://`; if False, both are the same page.
        keep_www: Keep `www.` before a host.

    Example:
        >>> UrlNormalizer().modify_document("HTTP://Example.com:80/a/../%7Eb/?utm_source=x&q=1#top")
        'http://example.com/~b?q=1'
    """

    def __init__(
        self,
        drop_parameters: Sequence[str] = DROPPED_PARAMETERS,
        *,
        keep_scheme: bool = True,
        keep_www: bool = True,
    ) -> None:
        for name in [drop_parameters] if isinstance(drop_parameters, str) else drop_parameters:
            if not isinstance(name, str) or not name.rstrip("*") or isinstance(drop_parameters, str):
                raise UsageError(
                    f"UrlNormalizer(drop_parameters={drop_parameters!r}): must be a list of names, such as ['utm_*'].",
                    parameter="drop_parameters",
                )
        self.drop_parameters = tuple(name.lower() for name in drop_parameters)
        self.keep_scheme = keep_scheme
        self.keep_www = keep_www

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column with URLs in normal form."""
        urls = text_column(column)
        parts = _parts(urls)
        data, offsets, left = self._normal(urls, parts)
        pieces, places = [data], np.where(left, -1, np.arange(len(urls)))
        odd = odd_rows(parts)
        if len(odd):
            fixed = with_ascii_hosts(urls.data, urls.offsets, parts, odd)
            more, more_offsets, still = self._normal(fixed, _parts(fixed))
            places[odd[~still]] = len(urls) + np.flatnonzero(~still)
            left[odd[~still]] = False
            pieces.append(more)
            offsets = np.concatenate([offsets, offsets[-1] + more_offsets[1:]])
        found = build_column(np.concatenate(pieces), offsets, np.ones(len(offsets) - 1, np.bool_))
        if not left.any() and urls.valid.all():
            return found.take(pa.array(places)) if len(odd) else found
        rows = np.flatnonzero(left)
        places[rows] = len(found) + rows
        return pa.concat_arrays([found, build_column(*urls)]).take(pa.array(places))

    def _normal(self, urls: TextColumn, parts: Integers) -> tuple[Bytes, Integers, Mask]:
        names = text_column(list(self.drop_parameters))
        return normal_urls(
            urls.data, urls.offsets[:-1], parts, names.data, names.offsets, self.keep_scheme, self.keep_www
        )


def _parts(urls: TextColumn) -> Integers:
    return url_parts(urls.data, urls.offsets[:-1], urls.offsets[1:], np.ones(len(urls), np.bool_), False)
