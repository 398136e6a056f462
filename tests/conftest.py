"""What every test can use: real texts, and one setting of hypothesis for all."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.other_engine import THEIR_WARNINGS, in_place_of_the_local_one, other_executor

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"
CORPUS = ROOT / "tests" / "data" / "corpus"

# The same examples everywhere, and no limit on time: a first call compiles, and a machine may be slow or busy.
# `pytest --hypothesis-profile=explore` draws new examples in every run.
ANY_PACE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("repeatable", derandomize=True, **ANY_PACE)
settings.register_profile("explore", **ANY_PACE)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that starts a job in the background has it ignore Ctrl-C, and with it all that the tests start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for line in THEIR_WARNINGS if other_executor() else ():
        config.addinivalue_line("filterwarnings", line)


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over what imports have left: a collection of it all takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _other_engine() -> Iterator[None]:
    """With GRISTMILL_TEST_EXECUTOR set, pipelines run there."""
    with in_place_of_the_local_one():
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real texts and web archives: the folder beside the repository, or the smaller corpus inside it."""
    return SHARED_DATA if SHARED_DATA.is_dir() else CORPUS


@pytest.fixture(scope="session")
def larger_data() -> Path:
    """The folder beside the repository, for files whose licences keep them out of the corpus."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the larger test data in ../shared/data: pages and archives that may not be published again")
    return SHARED_DATA


@pytest.fixture(scope="session")
def sample_path() -> Path:
    """The shipped sample, ``sample.jsonl.gz``."""
    return ROOT / "src" / "gristmill" / "recipes" / "sample" / "sample.jsonl.gz"
