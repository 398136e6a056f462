"""URLs in kernels against plain Python that says the same rules slowly."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.kernels.text_column import text_column
from gristmill.kernels.url_lists import find_listed
from gristmill.kernels.url_parts import FLAGS, HOST, HOST_END, IP_HOST, url_parts
from gristmill.kernels.url_terms import compile_terms, count_terms
from gristmill.stages.text.filters.url.hosts import ascii_host
from gristmill.stages.text.filters.url.lists import read_table
from gristmill.stages.text.modifiers.url import DROPPED_PARAMETERS, UrlNormalizer

ALPHABET = 'aZ0.:/\\?#@[]%;&=-_ \t\n~+!éß漢"<{|^`'
PIECES = st.sampled_from(
    """http:// HTTPS:// ftp:// // mailto: www. WWW. example Example.COM a.b.example.com 1.2.3.4 0x7f.1 [::1]
    [2001:DB8::1
    user:pw@ :80 :443 :8080 :x / // /a /a/ /A /./ /../ /.. %41 %2e%2E %7e %zz %C3%A4 ; ;jsessionid=1 ;x=2 ? & &&
    utm_source=a
    UTM_Term q=1 PHPSESSID=9 # #! #top . .. xn--mnchen-3ya.de münchen.de
    sex cam pornhub porn hub""".split()  # noqa: SIM905
)
URLS = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(ALPHABET, max_size=40), st.text(max_size=20))


def _authority(url: str) -> tuple[str, str, str, str] | None:
    """Scheme with slashes, authority, rest; None for a scheme without an authority."""
    match = re.match(r"(?P<scheme>(?:[A-Za-z0-9+.\-]+:)?[/\\]{2})(?P<rest>.*)", url, re.DOTALL)
    if match is None:
        named = re.match(r"[A-Za-z0-9+.\-]+:", url)
        if named and not re.match(r"[0-9]+(?:[/\\?#]|\Z)", url[named.end() :]):
            return None
    scheme, rest = (match["scheme"], match["rest"]) if match else ("", url)
    found = re.match(r"([^/\\?#]*)([^?#]*)(.*)", rest, re.DOTALL)
    assert found is not None
    return scheme, found[1], found[2], found[3]


def _host(url: str) -> tuple[str, bool]:
    """The host of a URL as it stands there, and whether it is an address."""
    split = _authority(url.strip("".join(map(chr, range(33)))))
    if split is None:
        return "", False
    host = split[1].rpartition("@")[2]
    if host.startswith("["):
        inside = re.match(r"\[([0-9A-Za-z:.%]+)\]", host)
        return (inside[1], True) if inside else ("", False)
    host = host.partition(":")[0].strip(".")
    if not re.fullmatch(r"[A-Za-z0-9\-_.~%\x80-\U0010ffff]*", host) or (not split[0] and "." not in host):
        return "", False
    last = host.rpartition(".")[2]
    return host, bool(re.fullmatch(r"[0-9]+|0[xX][0-9A-Fa-f]+", last))


def _encoded(text: str) -> str:
    out = []
    raw = text.encode()
    at = 0
    while at < len(raw):
        piece = raw[at : at + 3]
        if re.fullmatch(rb"%[0-9A-Fa-f]{2}", piece):
            char = chr(int(piece[1:], 16))
            out.append(char if re.fullmatch(r"[A-Za-z0-9\-._~]", char) else piece.decode().upper())
            at += 3
            continue
        char = chr(raw[at])
        at += 1
        if char in "\t\n\r":
            continue
        plain = 32 < ord(char) < 127 and char not in '"<>\\^`{|}%'
        out.append(char if plain else f"%{ord(char):02X}")
    return "".join(out)


def _is_dropped(piece: str) -> bool:
    name = piece.partition("=")[0].lower()
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in DROPPED_PARAMETERS)


def _path(path: str) -> str:
    segments: list[str] = []
    pieces = path.replace("\\", "/").removeprefix("/").split("/")
    for number, piece in enumerate(pieces):
        first, *others = _encoded(piece).split(";")
        segment = ";".join([first, *(one for one in others if not _is_dropped(one))])
        if segment == "..":
            segments = segments[:-1]
        elif segment != ".":
            segments.append(segment)
            continue
        if number == len(pieces) - 1:
            segments.append("")
    return "/" + "/".join(segments).rstrip("/")


def _normal(url: str) -> str:
    """The rules of `UrlNormalizer`, one after the other."""
    trimmed = url.strip("".join(map(chr, range(33))))
    host, _ = _host(url)
    split = _authority(trimmed)
    if split is None or not host:
        return url
    scheme = split[0].lower().replace("\\", "/")
    if scheme not in ("http://", "https://", "ftp://"):
        return url
    authority = split[1].rpartition("@")[2]
    if authority.startswith("["):
        host, port = f"[{host.lower()}]", authority.partition("]")[2].lstrip(".")
    else:
        port = authority.lstrip(".")[len(host) :].lstrip(".")
        if not host.isascii() or "%" in host:
            fixed = ascii_host(host.encode())
            if fixed is None:
                return url
            host = fixed.decode().strip(".")
        host = host.lower()
    if not re.fullmatch(r"(?::[0-9]*)?", port, re.ASCII) or (number := int(port[1:] or 0)) > 655359:
        return url
    if number in (0, {"http://": 80, "https://": 443, "ftp://": 21}[scheme]):
        port = ""
    query, _, fragment = split[3].partition("#")
    kept = [piece for piece in map(_encoded, query[1:].split("&")) if piece and not _is_dropped(piece)]
    normal = scheme + host + port + _path(split[2]) + ("?" + "&".join(kept) if kept else "")
    return normal + ("#" + _encoded(fragment) if fragment.startswith("!") else "")


@given(st.lists(URLS, max_size=5))
def test_hosts_are_those_of_plain_python(urls: list[str]) -> None:
    column = text_column(list(urls))
    parts = url_parts(column.data, column.offsets[:-1], column.offsets[1:], np.ones(len(urls), bool), False)
    found = [(column.data[row[HOST] : row[HOST_END]].tobytes().decode(), bool(row[FLAGS] & IP_HOST)) for row in parts]
    assert found == [_host(url) for url in urls]


@given(st.lists(URLS, max_size=5))
@example(["http://a.de/x/..;jsessionid=1/./"])
def test_urls_are_normalised_as_by_plain_python_and_only_once(urls: list[str]) -> None:
    normalizer = UrlNormalizer()
    given_urls = pa.array([*urls, None], pa.large_string())
    once = normalizer.modify_column(given_urls)
    assert once.to_pylist() == [*(_normal(url) for url in urls), None]
    assert normalizer.modify_column(once).to_pylist() == once.to_pylist()
    for loose in (UrlNormalizer(keep_www=False), UrlNormalizer(keep_scheme=False)):
        again = loose.modify_column(given_urls)
        assert loose.modify_column(again).to_pylist() == again.to_pylist()


DOMAINS = st.lists(st.sampled_from(["a", "b", "www", "com", "de", "x-y", "B"]), min_size=1, max_size=4).map(".".join)
STEPS = st.lists(st.sampled_from(["/p", "/q", "/P", "?x=1", "&y=2", "/", "\\q"]), max_size=3).map("".join)
PATHS = STEPS.filter(lambda path: not path.startswith("&"))


@given(
    st.lists(st.tuples(DOMAINS, PATHS).map("".join), min_size=1, max_size=6),
    st.lists(st.tuples(DOMAINS, PATHS), min_size=1, max_size=6),
)
def test_lists_find_what_a_walk_over_all_entries_finds(entries: list[str], urls: list[tuple[str, str]]) -> None:
    column = text_column([f"http://{host}{path}" for host, path in urls])
    alive = np.ones(len(urls), bool)
    parts = url_parts(column.data, column.offsets[:-1], column.offsets[1:], alive, False)
    found = find_listed(column.data, parts, alive, read_table((), tuple(entries)))
    expected = []
    for host, path in urls:
        kinds = {0}
        for entry in entries:
            domain, below = re.match(r"([^/\\?]*)(.*)", entry.lower().replace("\\", "/"), re.DOTALL).groups()  # type: ignore[union-attr]
            below = below.rstrip("/?&")
            name, rest = host.lower(), path.lower().replace("\\", "/")
            if not below and (name == domain or name.endswith("." + domain)):
                kinds.add(1)
            short = [one.removeprefix("www.") for one in (domain, name)]
            same = short[0] in (name, short[1])
            if below and same and rest.startswith(below) and rest[len(below) : len(below) + 1] in ("", "/", "?", "&"):
                kinds.add(2)
        expected.append(1 if 1 in kinds else max(kinds))
    assert found.tolist() == expected


@given(st.lists(URLS, max_size=4))
def test_terms_are_counted_as_by_plain_python(urls: list[str]) -> None:
    words, soft, sequences = ["porn", "a"], ["sex", "cam", "hub", "é"], ["pornhub", "rnhu", "80443"]
    column = text_column([f"http://h.de/{url}" for url in urls])
    alive = np.ones(len(urls), bool)
    parts = url_parts(column.data, column.offsets[:-1], column.offsets[1:], alive, False)
    counts = count_terms(column.data, parts, alive, compile_terms(words=words, soft_words=soft, sequences=sequences))
    for url, (strict, mild) in zip(urls, counts.tolist(), strict=True):
        text = "".join(char.lower() if char.isascii() else char for char in f"h.de/{url}")
        found = {word for word in re.split(r"[\x00-\x2f\x3a-\x60\x7b-\x7f]+", text) if word}
        joined = re.sub(r"[\x00-\x2f\x3a-\x60\x7b-\x7f]", "", text)
        # A sequence that ends at the same place as another counts once with it.
        ends = {match.end(1) for one in sequences for match in re.finditer(f"(?=({one}))", joined)}
        assert strict == len(ends) + len(found & set(words))
        assert mild == len(found & set(soft))


@pytest.mark.parametrize("count", [1, 5, 100_000])
def test_a_table_finds_all_of_a_long_list_and_nothing_else(count: int, tmp_path: Path) -> None:
    entries = tuple(f"site-{number}.example" for number in range(count))
    (tmp_path / "domains").write_text("\n".join(entries))
    table = read_table((str(tmp_path),), ())
    assert len(table) * 3 // 4 >= count
    column = text_column([f"https://{'sub.' * (number % 3)}{entry}/x" for number, entry in enumerate(entries)])
    others = text_column([f"https://{entry}.org/x" for entry in entries] + ["https://example", "https://x.example"])
    for urls, listed in ((column, 1), (others, 0)):
        alive = np.ones(len(urls), bool)
        parts = url_parts(urls.data, urls.offsets[:-1], urls.offsets[1:], alive, False)
        assert set(find_listed(urls.data, parts, alive, table).tolist()) == {listed}
