"""Receipts on their way to the driver: some at once, none lost, none after the end."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from gristmill.backends.ray.parcels import Receipt
from gristmill.backends.xenna import mailbox as module
from gristmill.backends.xenna.mailbox import Mailbox, Sender, Stopped
from gristmill.errors import WorkerError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class _Handle:
    """A mailbox as a worker sees it; answers are asked for later, as on Ray."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.put = SimpleNamespace(remote=mailbox.put)


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    found = Mailbox()
    monkeypatch.setattr(module.ray, "get", lambda answer: answer)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: found.take())  # the driver, when the mailbox is full
    return found


def test_all_arrive(mailbox: Mailbox) -> None:
    sender = Sender(_Handle(mailbox), ahead=2)
    for _ in range(5):
        sender.post(Receipt())
    sender.settle()
    assert len(mailbox.take()) == 5


def test_a_full_mailbox_is_tried_again(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 0)
    taken: list[Any] = []
    monkeypatch.setattr(module.time, "sleep", lambda seconds: taken.extend(mailbox.take()))
    sender = Sender(_Handle(mailbox), ahead=2)
    receipts = [Receipt() for _ in range(6)]
    for receipt in receipts:
        sender.post(receipt)
    sender.settle()
    taken.extend(mailbox.take())
    assert {id(receipt) for receipt in taken} == {id(receipt) for receipt in receipts}
    assert len(taken) == 6


def test_a_worker_goes_on_while_receipts_are_under_way(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def get(answer: str) -> str:
        assert answered.wait(60)
        return answer

    monkeypatch.setattr(module.ray, "get", get)
    sender = Sender(_Handle(mailbox), ahead=3)
    for _ in range(3):
        sender.post(Receipt())
    answered.set()  # reached only because none of them was waited for
    sender.settle()
    assert len(mailbox.take()) == 3


def test_an_error_has_arrived_when_posting_returns(mailbox: Mailbox) -> None:
    sender = Sender(_Handle(mailbox), ahead=4)
    sender.post(Receipt())
    sender.post(Receipt(error=WorkerError("gone")))
    assert len(mailbox.take()) == 2


def test_a_mailbox_that_is_gone_is_told_to_the_worker(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(answer: str) -> str:
        raise module.ray.exceptions.RayActorError

    monkeypatch.setattr(module.ray, "get", get)
    sender = Sender(_Handle(mailbox), ahead=0)
    with pytest.raises(module.ray.exceptions.RayActorError):
        sender.post(Receipt())


def test_a_closed_mailbox_stops_the_worker_but_not_its_end(mailbox: Mailbox) -> None:
    mailbox.close()
    sender = Sender(_Handle(mailbox), ahead=0)
    with pytest.raises(Stopped):
        sender.post(Receipt())
    sender.settle()
    assert mailbox.take() == []
