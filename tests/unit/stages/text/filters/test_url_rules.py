"""Filters by URL: what they keep, what they drop and why, and that no URL makes them fail."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.backends.local import LocalExecutor
from gristmill.errors import InputError, InputNotFoundError, MissingColumnError, ResumeError, UsageError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplication
from gristmill.stages.text.filters import (
    AdultUrlFilter,
    UrlAllowListFilter,
    UrlBlockListFilter,
    UrlExtensionFilter,
    UrlHostFilter,
    UrlLengthFilter,
    UrlRules,
    check_filter,
)
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.stages.text.modifiers import Modify, UrlNormalizer

HERE = {"num_cpus": 0}
INNOCENT = [
    "https://www.essex.ac.uk/sussex/middlesex",
    "https://essex.gov.uk/videos/camera-exchange",
    "https://scunthorpe.example/penistone/cockburn",
    "https://expertsexchange.example/groups-exchange/rule-34",
    "https://blog.example/is-he-male-or-female",
    "https://health.example/sexual-health/penis",
    "https://youtube.example/featured-tube",
    "https://news.example/analysis/assassination-of-dickens",
    "https://library.example/young-adult",
    "https://pride.example/gay-lesbian-history",
]
ADULT = [
    "https://www.xvideos.com/",
    "https://x.hamster.example/",
    "https://example.com/free/porn/tube",
    "https://example.com/hot-sex-webcam.html",
    "https://порно.example/",
    "https://example.com/?q=PornHub",
]


def test_adult_terms_and_innocent_urls() -> None:
    rules = UrlRules()
    assert [rules.filters.reason_for(url) for url in INNOCENT] == [None] * len(INNOCENT)
    assert [rules.filters.reason_for(url) for url in ADULT] == ["adult_url"] * len(ADULT)
    strict = UrlRules(min_soft_words=1)
    assert strict.filters.reason_for("https://library.example/young-adult") == "adult_url"
    own = AdultUrlFilter(words=["grist"], sequences=["mill-stone"], soft_words=[])
    assert [own.score_document(f"http://a.example/{path}") for path in ("grist", "grists", "amills.tones", "xxx")] == [
        2, 0, 2, 0,
    ]  # fmt: skip


def test_every_rule_has_its_reason() -> None:
    rules = UrlRules(block=["bad.example", "bücher.example", "half.example/forum"], allow=["example"], max_chars=60)
    expected = {
        "http://sub.BAD.example./x": "blocked_domain",
        "http://notbad.example/": None,
        "http://xn--bcher-kva.example/": "blocked_domain",
        "http://B%C3%9Ccher.example/": "blocked_domain",
        "http://www.half.example/forum/1": "blocked_url",
        "http://half.example/forums": None,
        "http://user:pass@bad.example:8080/": "blocked_domain",
        "http://good.example@1.2.3.4/": "ip_address_host",
        "http://[::1]/": "ip_address_host",
        "http://good.example/a.PDF?x=y.html": "url_extension",
        "http://good.example/a.pdf/": None,
        "http://good.example/" + "x" * 60: "url_too_long",
        "http://other.org/": "not_on_allow_list",
        "": "not_on_allow_list",
        None: "not_on_allow_list",
    }
    assert {url: rules.filters.reason_for(url) for url in expected} == expected
    assert UrlRules(allow_missing=False).filters.reason_for("not a url") == "no_host"
    assert UrlRules().filters.reason_for(None) is None
    assert UrlRules(allow_ip_address=True).filters.reason_for("http://1.2.3.4/") is None
    assert UrlRules(extensions=[".html"]).filters.reason_for("http://a.example/x.HTML") == "url_extension"


@given(st.lists(st.one_of(st.none(), st.text(max_size=30), st.text("ht:/[]@%.?#é\\", max_size=20)), max_size=6))
def test_no_url_is_an_error(urls: list[str | None]) -> None:
    rules = UrlRules(block=["com"], allow=["org"], allow_missing=False)
    result = rules.filters.evaluate(pa.array(urls, pa.large_string()))
    assert len(result.kept) == len(urls)
    assert [rules.filters.cascade.reason(result, row) for row in range(len(urls))] == [
        rules.filters.reason_for(url) for url in urls
    ]


@pytest.mark.parametrize(
    "one",
    [
        UrlBlockListFilter(entries=["a.b"]),
        UrlAllowListFilter(entries="example.org"),
        AdultUrlFilter(),
        UrlExtensionFilter(),
        UrlHostFilter(),
        UrlLengthFilter(),
    ],
    ids=lambda one: one.name,
)
def test_filters_behave(one: Any) -> None:
    check_filter(one, [*INNOCENT, *ADULT, "http://a.b/c.pdf", "http://BÜ.de", "http://1.2.3.4"])


def test_lists_as_others_lay_them_out(tmp_path: Path) -> None:
    ut1 = tmp_path / "adult"
    ut1.mkdir()
    (ut1 / "domains").write_text("one.example\n*.two.example\r\n# three.example\n\n0.0.0.0 four.example # why\n")
    (ut1 / "urls").write_text("WWW.five.example/Path/\n")
    (ut1 / "usage").write_text("black")
    packed = tmp_path / "more.gz"
    packed.write_bytes(gzip.compress("sieben.example\nbücher.example\n".encode()))
    rules = UrlRules(block_lists=[str(ut1), str(packed)])
    hosts = ["one", "two", "three", "four", "five", "sieben", "bücher", "black"]
    found = [rules.filters.reason_for(f"http://x.{host}.example/path/") for host in hosts]
    hit = "blocked_domain"
    assert found == [hit, hit, None, hit, None, hit, hit, None]
    assert rules.filters.reason_for("http://five.example/path/x") == "blocked_url"


def test_lists_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="no list of domains at"):
        UrlRules(block_lists=[str(tmp_path / "none")]).check_environment()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "usage").write_text("x")
    with pytest.raises(InputNotFoundError, match="no file called 'domains' or 'urls'"):
        UrlRules(block_lists=str(tmp_path / "folder")).check_environment()
    (tmp_path / "noise").write_bytes(gzip.compress(b"a.example\n"))
    with pytest.raises(InputError, match=r"contains no domain or URL.*suffix such as \.gz"):
        UrlRules(block_lists=str(tmp_path / "noise")).warm_up()
    with pytest.raises(UsageError, match="neither a domain nor a URL"):
        UrlBlockListFilter(entries=["no host"]).warm_up()
    with pytest.raises(UsageError, match="must be non-empty strings"):
        UrlBlockListFilter(entries=[""])


def _write(path: Path, urls: list[Any]) -> None:
    rows = [{"id": str(row), "text": f"text {row}", "url": url} for row, url in enumerate(urls)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_drops_by_url_and_notices_a_changed_list(tmp_path: Path) -> None:
    _write(tmp_path / "in.jsonl", ["http://a.example/", "http://b.example/", None, "http://c.example/x.zip"])
    (tmp_path / "list").write_text("a.example\n")

    def run() -> Any:
        stages = [
            JsonlReader(str(tmp_path / "in.jsonl")),
            UrlRules(block_lists=str(tmp_path / "list")),
            JsonlWriter(str(tmp_path / "out")),
        ]
        return Pipeline("urls", stages=stages).run(LocalExecutor(config=HERE), progress=False).report

    assert run().rows_written == 2
    ledger = Ledger(str(tmp_path / "out"))
    reasons = {name: [decision.reason for decision in ledger.why(name).documents[0].decisions] for name in "03"}
    assert reasons == {"0": ["blocked_domain"], "3": ["url_extension"]}
    verify(str(tmp_path / "out")).raise_for_problems()
    (tmp_path / "list").write_text("b.example\n")
    with pytest.raises(ResumeError):
        run()


def test_a_missing_column_is_named_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    stages = [JsonlReader(str(tmp_path / "in.jsonl")), UrlRules(), JsonlWriter(str(tmp_path / "out"))]
    with pytest.raises(MissingColumnError, match=r"'url'.*with url_field, or"):
        Pipeline("urls", stages=stages).run(LocalExecutor(config=HERE), progress=False)


def test_documents_of_the_same_page_are_deduplicated_by_url(tmp_path: Path) -> None:
    same = ["http://A.example/x/?utm_source=1", "https://www.a.example/x", "http://a.example:80/%78#top"]
    _write(tmp_path / "in.jsonl", [*same, "http://a.example/y", None, None, "", "broken"])
    stages = [
        JsonlReader(str(tmp_path / "in.jsonl")),
        Modify(UrlNormalizer(keep_scheme=False, keep_www=False), "url", "url_normalized"),
        ExactDeduplication("url_normalized").with_(name="url_deduplication"),
        ExactDeduplication(),
        JsonlWriter(str(tmp_path / "out")),
    ]
    report = Pipeline("urls", stages=stages).run(LocalExecutor(config=HERE), progress=False).report
    assert report.rows_written == 6
    lines = [json.loads(line) for line in (tmp_path / "out" / "in.jsonl").read_text().splitlines()]
    assert [row["url_normalized"] for row in lines] == ["a.example/x", "a.example/y", None, None, "", "broken"]
    why = Ledger(str(tmp_path / "out")).why("2")
    assert (why.status, why.documents[0].decisions[0].stage) == ("duplicate", "url_deduplication")
    verify(str(tmp_path / "out")).raise_for_problems()


def test_normalising_leaves_other_texts_alone() -> None:
    for text in ("See http://a.example/#x", "a.example/x#y", "mailto:a@b.example", "", " javascript:void(0)#"):
        assert UrlNormalizer().modify_document(text) == text
    with pytest.raises(UsageError, match="must be a list of names"):
        UrlNormalizer("utm_*")
    assert UrlNormalizer(["page"]).modify_document("http://a.example/?page=1&utm_x=2") == "http://a.example/?utm_x=2"
