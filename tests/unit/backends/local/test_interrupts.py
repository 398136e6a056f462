"""Ctrl-C in the driver."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from gristmill.backends.local.driver_support import Interrupts


def test_an_interrupt_is_noted_and_the_handler_is_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert not interrupts.asked
        signal.raise_signal(signal.SIGINT)
        assert interrupts.asked
    assert signal.getsignal(signal.SIGINT) is before


def test_it_raises_at_once_where_it_may_cut() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.may_cut(True):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.may_cut(True):
            pytest.fail("an interrupt that came before must be heard before anything is begun")
        with interrupts.may_cut(False):
            signal.raise_signal(signal.SIGINT)


def test_who_ignores_interrupts_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert not interrupts.asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_the_handler_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_worker_says_nothing_of_an_interrupt_in_a_callback_and_remembers_it() -> None:
    """LLVM calls back into Python when it loads kernels; what is raised there is printed and lost by default."""
    code = """if True:
        import ctypes, signal
        from gristmill.backends.local.worker import _Interrupts
        interrupts = _Interrupts()
        with interrupts:
            ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
        ctypes.CFUNCTYPE(None)(lambda: 1 / 0)()
        try:
            with interrupts:
                print("went on")
        except KeyboardInterrupt:
            print("stopped")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "stopped\n"
    assert "KeyboardInterrupt" not in done.stderr
    assert "ZeroDivisionError" in done.stderr
