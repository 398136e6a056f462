"""Runs with a profiler and stores the profile in the record, as a page and as a file for other tools."""

from __future__ import annotations

import copy
import json

from gristmill.backends.base import BaseExecutor
from gristmill.errors import UsageError
from gristmill.ledger.record.layout import RunFolder
from gristmill.observe.events import EventStream, Notice
from gristmill.observe.profile.profile import Profile
from gristmill.observe.profile.session import ProfileSession
from gristmill.report.profile_page import make_profile_page


def begin_profile(name: str, executor: BaseExecutor) -> tuple[ProfileSession, BaseExecutor]:
    """Start sampling. Returns the session and the executor to use for the run.

    Args:
        name: The pipeline or the workflow.
        executor: Where it runs; not modified.

    Raises:
        UsageError: The executor does not support profiling.
    """
    if not executor.can_profile:
        raise UsageError(
            f"--profile (profile=True) works on the local executor only; {executor.name!r} runs on Ray, whose "
            "dashboard shows a flame graph of every worker (Actors, then CPU Flame Graph; needs py-spy). For a "
            "profile by stage, run a sample on this machine: --executor local --sample 1%.",
            executor=executor.name,
        )
    session = ProfileSession(name)
    chosen = copy.copy(executor)
    chosen.profile = session
    return session, chosen


def end_profile(session: ProfileSession, folder: RunFolder | None, events: EventStream) -> Profile:
    """Write the profile to the record, even if the run failed; problems while writing are only reported."""
    profile = session.finish()
    if folder is not None:
        try:
            folder.write(folder.record_path("profile"), json.dumps(profile.speedscope()).encode())
            folder.write(folder.record_path("profile_page"), make_profile_page(profile))
        except Exception as error:  # a problem with the profile must not change the result of the run
            events.emit(Notice(f"The profile of the run was not written: {error}", level="warning"))
    return profile
