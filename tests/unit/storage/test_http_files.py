from __future__ import annotations

import email.utils
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gristmill.errors import DownloadError, DownloadMissingError, StoreError, UsageError
from gristmill.storage.http_files import Bandwidth, HttpFiles
from tests.http_server import Fault, WebServer, web_server

CONTENT = bytes(range(256)) * 8000  # 2 MB
NAME = "/a/file.warc.gz"


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files[NAME] = CONTENT
        yield server


def quick(**settings: object) -> HttpFiles:
    return HttpFiles(**{"attempts": 4, "timeout_s": 5.0, "backoff_s": 0.01, **settings})  # type: ignore[arg-type]


def ranges(web: WebServer) -> list[str | None]:
    return [headers.get("Range") for headers in web.gets(NAME)]


def test_download(web: WebServer, tmp_path: Path) -> None:
    path = tmp_path / "file.part"
    assert quick().download(web.url + NAME, str(path)) == len(CONTENT)
    assert path.read_bytes() == CONTENT
    assert sorted(tmp_path.iterdir()) == [path]
    assert web.gets(NAME)[0]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    "fault",
    [Fault(reset_after=700_000), Fault(end_after=700_000), Fault(announce=5)],
    ids=["reset", "short", "wrong length"],
)
def test_interrupted_download_continues(web: WebServer, tmp_path: Path, fault: Fault) -> None:
    web.faults[NAME] = [fault]
    path = tmp_path / "file.part"
    quick().download(web.url + NAME, str(path))
    assert path.read_bytes() == CONTENT
    first, second = ranges(web)
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").rstrip("-")) > 0
    assert sorted(tmp_path.iterdir()) == [path]


def test_stalled_download_continues(web: WebServer, tmp_path: Path) -> None:
    web.faults[NAME] = [Fault(stall_after=300_000)]
    begun = time.monotonic()
    quick(timeout_s=0.5).download(web.url + NAME, str(tmp_path / "file.part"))
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert time.monotonic() - begun < 10
    assert ranges(web) == [None, "bytes=300000-"]


def test_trickle_is_a_stall(web: WebServer, tmp_path: Path) -> None:
    web.faults[NAME] = [Fault(bytes_per_second=200)]
    quick(timeout_s=0.3).download(web.url + NAME, str(tmp_path / "file.part"))
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert len(ranges(web)) == 2


def test_changed_file_is_not_glued_together(web: WebServer, tmp_path: Path) -> None:
    other = CONTENT[::-1]

    def change() -> None:
        web.files[NAME] = other

    web.faults[NAME] = [Fault(reset_after=700_000), Fault(before=change)]
    quick().download(web.url + NAME, str(tmp_path / "file.part"))
    assert (tmp_path / "file.part").read_bytes() == other


@pytest.mark.parametrize("headers", [{"ETag": None}, {"ETag": 'W/"weak"'}], ids=["none", "weak"])
def test_without_proof_a_download_begins_anew(web: WebServer, tmp_path: Path, headers: dict[str, str | None]) -> None:
    web.faults[NAME] = [Fault(reset_after=700_000, headers=headers)]
    quick().download(web.url + NAME, str(tmp_path / "file.part"))
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert ranges(web) == [None, None]


def test_server_without_ranges(web: WebServer, tmp_path: Path) -> None:
    web.ranges = False
    web.faults[NAME] = [Fault(reset_after=700_000)]
    quick().download(web.url + NAME, str(tmp_path / "file.part"))
    assert (tmp_path / "file.part").read_bytes() == CONTENT


def test_another_process_continues(web: WebServer, tmp_path: Path) -> None:
    web.faults[NAME] = [Fault(reset_after=1_200_000)]
    path = tmp_path / "file.part"
    with pytest.raises(DownloadError) as caught:
        quick(attempts=1).download(web.url + NAME, str(path))
    assert NAME in str(caught.value)
    assert "are kept" in str(caught.value)
    have = path.stat().st_size
    assert have > 0
    quick().download(web.url + NAME, str(path))
    assert path.read_bytes() == CONTENT
    assert ranges(web) == [None, f"bytes={have}-"]


def test_part_of_another_file_is_not_used(web: WebServer, tmp_path: Path) -> None:
    path = tmp_path / "file.part"
    path.write_bytes(b"something else")
    quick().download(web.url + NAME, str(path))
    assert path.read_bytes() == CONTENT
    path.write_bytes(CONTENT + b"more")
    tag = '"a tag"'
    state = {"url": web.url + NAME, "validator": tag, "total": len(CONTENT) + 9}
    (tmp_path / "file.part.json").write_text(json.dumps(state))
    quick().download(web.url + NAME, str(path))
    assert path.read_bytes() == CONTENT


def test_busy_server(web: WebServer, tmp_path: Path) -> None:
    web.faults[NAME] = [Fault(status=503), Fault(status=429, headers={"Retry-After": "1"})]
    begun = time.monotonic()
    quick().download(web.url + NAME, str(tmp_path / "file.part"))
    assert 1 <= time.monotonic() - begun < 20
    assert len(ranges(web)) == 3


def test_server_that_names_a_time(web: WebServer, tmp_path: Path) -> None:
    later = email.utils.format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    web.faults[NAME] = [Fault(status=503, headers={"Retry-After": later})]
    begun = time.monotonic()
    quick().download(web.url + NAME, str(tmp_path / "file.part"))
    assert 0.9 <= time.monotonic() - begun < 20  # the header has whole seconds


def test_server_that_stays_busy(web: WebServer, tmp_path: Path) -> None:
    web.always[NAME] = Fault(status=503)
    with pytest.raises(DownloadError, match=r"after 4 attempts: HTTP 503.*Run the same command again"):
        quick().download(web.url + NAME, str(tmp_path / "file.part"))
    assert len(ranges(web)) == 4


def test_body_that_never_has_its_length(web: WebServer, tmp_path: Path) -> None:
    web.always[NAME] = Fault(end_after=1000)
    with pytest.raises(DownloadError, match=r"of 2048000 bytes"):
        quick().download(web.url + NAME, str(tmp_path / "file.part"))


@pytest.mark.parametrize(
    ("status", "kind"), [(404, DownloadMissingError), (410, DownloadMissingError), (403, DownloadError)]
)
def test_refusals_are_not_repeated(web: WebServer, tmp_path: Path, status: int, kind: type[DownloadError]) -> None:
    web.always[NAME] = Fault(status=status)
    with pytest.raises(DownloadError, match=f"HTTP {status}") as caught:
        quick().download(web.url + NAME, str(tmp_path / "file.part"))
    assert type(caught.value) is kind
    assert len(ranges(web)) == 1


def test_redirect(web: WebServer, tmp_path: Path) -> None:
    web.always["/old"] = Fault(status=302, headers={"Location": NAME})
    quick().download(f"{web.url}/old", str(tmp_path / "file.part"))
    assert (tmp_path / "file.part").read_bytes() == CONTENT


def test_redirect_to_a_local_file_is_not_followed(web: WebServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    web.always["/old"] = Fault(status=302, headers={"Location": secret.as_uri()})
    with pytest.raises(DownloadError):
        quick().download(f"{web.url}/old", str(tmp_path / "file.part"))
    with pytest.raises(UsageError, match="not an http"):
        quick().download(secret.as_uri(), str(tmp_path / "file.part"))
    assert not (tmp_path / "file.part").exists()


def test_unreachable_server(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be reached, after 2 attempts"):
        quick(attempts=2).download("http://127.0.0.1:9/x", str(tmp_path / "x"))


def test_ranges_and_small_files(web: WebServer) -> None:
    assert quick().read_range(web.url + NAME, 1000, 77) == CONTENT[1000:1077]
    web.faults[NAME] = [Fault(end_after=20)]
    assert quick().read_range(web.url + NAME, 1000, 77) == CONTENT[1000:1077]
    web.faults[NAME] = [Fault(end_after=20)]
    assert quick().read(web.url + NAME) == CONTENT
    with pytest.raises(DownloadError, match="more than expected"):
        quick().read(web.url + NAME, max_bytes=1000)
    web.ranges = False
    with pytest.raises(DownloadError, match="does not serve parts"):
        quick().read_range(web.url + NAME, 1000, 77)


def test_matches(web: WebServer, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    assert quick().matches(web.url + NAME, str(path))
    path.write_bytes(CONTENT[:-1])
    assert not quick().matches(web.url + NAME, str(path))
    assert quick().matches("http://127.0.0.1:9/x", str(path))  # nobody there who could say otherwise


def test_bandwidth_is_shared(web: WebServer, tmp_path: Path) -> None:
    rate = 4_000_000
    shared = str(tmp_path / "bandwidth")

    def fetch(number: int) -> None:
        files = quick(max_bytes_per_second=rate)
        files.download(web.url + NAME, str(tmp_path / f"{number}.part"), bandwidth_file=shared)

    begun = time.monotonic()
    threads = [threading.Thread(target=fetch, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.monotonic() - begun
    assert spent >= 0.9 * 2 * len(CONTENT) / rate
    with pytest.raises(UsageError):
        Bandwidth(0)
