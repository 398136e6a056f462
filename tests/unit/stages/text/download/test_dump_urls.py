from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import InputError, InputNotFoundError, UsageError
from gristmill.stages.text.download.wikipedia.download import WikipediaDownloader
from gristmill.stages.text.download.wikipedia.url_generation import WikipediaUrlGenerator
from tests.http_server import WebServer, web_server

PAGES = ["1.xml-p1p41242.bz2", "10.xml-p4045403p5399366.bz2", "2.xml-p41243p151573.bz2"]


def status(date: str, state: str = "done") -> bytes:
    names = [f"enwiki-{date}-pages-articles-multistream{name}" for name in PAGES]
    names += [name.replace("multistream", "multistream-index").replace(".xml-", ".txt-") for name in names]
    files = {name: {"size": 5, "url": f"/enwiki/{date}/{name}", "md5": "0"} for name in names}
    jobs = {"articlesmultistreamdump": {"status": state, "files": files}, "articlesdump": {"status": "done"}}
    return json.dumps({"jobs": jobs, "version": "0.8"}).encode()


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        dates = ["20240701", "20240720", "20240801"]
        links = "".join(f'<a href="{date}/">{date}/</a>\n' for date in dates)
        server.files["/enwiki/"] = f'<html><a href="../">..</a>{links}<a href="latest/">latest/</a>'.encode()
        server.files["/enwiki/20240801/dumpstatus.json"] = status("20240801", "in-progress")
        server.files["/enwiki/20240720/dumpstatus.json"] = status("20240720")
        yield server


def test_wikipedia_takes_the_latest_complete_dump(web: WebServer) -> None:
    urls = WikipediaUrlGenerator(wikidumps_index_prefix=f"{web.url}/").generate_urls()
    place = f"{web.url}/enwiki/20240720/enwiki-20240720-pages-articles-multistream"
    assert urls == [place + name for name in (PAGES[0], PAGES[2], PAGES[1])]


def test_wikipedia_dumps_that_cannot_be_had(web: WebServer) -> None:
    def urls(**options: Any) -> list[str]:
        return WikipediaUrlGenerator(wikidumps_index_prefix=web.url, **options).generate_urls()

    with pytest.raises(InputNotFoundError, match=r"20240801 .*not complete \(in-progress\)"):
        urls(dump_date="20240801")
    with pytest.raises(InputNotFoundError, match=r"no dump of 20200101.*20240801, 20240720"):
        urls(dump_date="20200101")
    with pytest.raises(InputNotFoundError, match="check the language, 'qq'"):
        urls(language="qq")
    with pytest.raises(UsageError, match="such as '20240801'"):
        urls(dump_date="2024-08-01")
    with pytest.raises(UsageError, match="code of a Wikipedia"):
        urls(language="../x")
    web.files["/enwiki/20240720/dumpstatus.json"] = b"{}"
    with pytest.raises(InputError, match="does not hold the status"):
        urls(dump_date="20240720")


def test_wikipedia_downloads_two_at_a_time(web: WebServer, tmp_path: Path) -> None:
    downloader = WikipediaDownloader(str(tmp_path))
    assert downloader.num_workers_per_node() == 2
    web.files["/enwiki/1/a.xml.bz2"] = b"pages"
    assert downloader.download(f"{web.url}/enwiki/1/a.xml.bz2") == str(tmp_path / "a.xml.bz2")
    with downloader._slot(), downloader._slot():
        import threading

        waiting = threading.Thread(target=downloader.download, args=(f"{web.url}/enwiki/1/a.xml.bz2",), daemon=True)
        asked = len(web.requests)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert len(web.requests) == asked
    waiting.join(10)
    assert not waiting.is_alive()
