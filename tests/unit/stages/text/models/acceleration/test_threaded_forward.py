from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from gristmill.stages.text.models.acceleration.threaded_forward import PART_TOKENS, forward_threads, with_threads


@pytest.fixture(autouse=True)
def several_threads() -> Iterator[None]:
    """Torch with more than one thread, whatever the machine and the other tests have."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Sums(nn.Module):
    """Notes who runs it, on how many rows, and in which modes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, int]] = []
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.seen.append((threading.current_thread().name, len(batch["ids"]), torch.get_num_threads()))
        self.modes.add((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return batch["ids"].sum(1)


class Failing(nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if (ids == 7).any():
            raise torch.OutOfMemoryError("too much")
        return ids


def test_rows_come_back_in_order_from_threads_of_their_own() -> None:
    network = with_threads(Sums(), 2)
    ids = torch.arange(35).view(7, 5)
    assert network({"ids": ids}).equal(ids.sum(1))
    assert sorted(rows for _, rows, _ in network.seen) == [3, 4]
    assert all(name.startswith("part") and threads == 1 for name, _, threads in network.seen)
    assert torch.get_num_threads() == 3


def test_large_batches_have_several_parts_for_each_thread() -> None:
    network = with_threads(Sums(), 2)
    ids = torch.ones(16, PART_TOKENS // 2, dtype=torch.int64)
    assert network({"ids": ids}).equal(ids.sum(1))
    assert [rows for _, rows, _ in network.seen] == [2] * 8


def test_one_row_and_one_thread_are_not_divided() -> None:
    network = with_threads(Sums(), 2)
    assert network({"ids": torch.ones(1, 3)}).tolist() == [3]
    plain = with_threads(Sums(), 1)
    assert plain({"ids": torch.ones(4, 3)}).tolist() == [3] * 4
    assert {name for name, _, _ in (*network.seen, *plain.seen)} == {"MainThread"}
    assert (forward_threads(network), forward_threads(plain), forward_threads(object())) == (2, 1, 1)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_modes_of_the_caller_hold_in_the_parts(autocast: bool) -> None:
    network = with_threads(Sums(), 2)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        network({"ids": torch.ones(4, 3)})
    assert network.modes == {(False, autocast)}


def test_an_error_of_a_part_is_the_callers() -> None:
    network = with_threads(Failing(), 2)
    assert network(ids=torch.zeros(4, 1)).shape == (4, 1)
    with pytest.raises(torch.OutOfMemoryError, match="too much"):
        network(ids=torch.tensor([[0], [1], [2], [7]]))
    assert network(ids=torch.zeros(4, 1)).shape == (4, 1)


def test_an_error_comes_when_no_part_is_at_work_any_more() -> None:
    failed = threading.Event()
    ended: list[int] = []

    class Slow(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            if ids[0, 0] == 0:
                failed.set()
                raise MemoryError
            failed.wait(60)
            threading.Event().wait(0.05)
            ended.append(int(ids[0, 0]))
            return ids

    with pytest.raises(MemoryError):
        with_threads(Slow(), 2)(ids=torch.tensor([[0], [1]]))
    assert ended == [1]


def test_all_threads_are_there_from_the_first_batch_on() -> None:
    network = with_threads(Sums(), 3)
    network({"ids": torch.ones(2, 3)})
    mine = [thread for thread in threading.enumerate() if thread in network.forward._pool._threads]
    assert len(mine) == 3
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [3], "threads that come later are not ours to limit"


def test_outputs_of_several_tensors_are_joined_and_caches_left_out() -> None:
    class Many(nn.Module):
        def forward(self, ids: torch.Tensor) -> Any:
            return BaseModelOutputWithPast(
                last_hidden_state=ids, past_key_values=object(), hidden_states=(ids, [ids + 1, ids + 2])
            )

    ids = torch.arange(6).view(3, 2)
    out = with_threads(Many(), 2)(ids=ids)
    assert isinstance(out, BaseModelOutputWithPast)
    assert out.last_hidden_state.equal(ids)
    assert out.past_key_values is None
    assert out.hidden_states[0].equal(ids)
    assert [tensor.tolist() for tensor in out.hidden_states[1]] == [(ids + 1).tolist(), (ids + 2).tolist()]
