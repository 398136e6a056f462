"""Writes the page of a profile: its tables and a flame graph, in one HTML file that loads nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gristmill.figures import duration
from gristmill.observe.profile.kinds import KINDS, Frame
from gristmill.observe.profile.profile import DRIVER, Profile, Stack
from gristmill.report.page import fill_page

_LEAST_SHARE = 1 / 4000
"""Nodes below this share of a graph would be less than a pixel wide and are merged into their caller."""


def make_profile_page(profile: Profile) -> bytes:
    """The page that shows a profile."""
    driver = [stack for stack in profile.stacks if stack.stage == DRIVER]
    others = [stack for stack in profile.stacks if stack.stage != DRIVER]
    frames: dict[Frame, int] = {}
    graphs = [
        {"title": title, "nodes": flame(stacks, frames)}
        for title, stacks in (("Stages", others), ("Driver", driver))
        if stacks
    ]
    data = {
        "pipeline": profile.pipeline,
        "kinds": list(KINDS.items()),
        "seconds": profile.seconds,
        "driver": DRIVER,
        **profile.figures(),
        "frames": list(frames),
        "graphs": graphs,
    }
    summary = f"{profile.pipeline}: {duration(profile.seconds)} in stages and between them."
    return fill_page("profile", f"Profile: {profile.pipeline}", summary, data)


def flame(stacks: Sequence[Stack], frames: dict[Frame, int]) -> list[list[float]]:
    """The nodes of a flame graph, each after its caller: the caller's number, its frame, its seconds and its kind.

    The kind is the one with most of its seconds. The first node is the total; below it are the stages.

    Args:
        stacks: The sampled stacks.
        frames: The numbers of frames; new ones are added.
    """
    seconds: dict[tuple[int, Frame], float] = defaultdict(float)
    kinds: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    numbers: dict[tuple[int, Frame], int] = {}
    for stack in stacks:
        at = -1
        for frame in (Frame("", "all"), Frame("", stack.stage), *stack.frames):
            node = (at, frame)
            at = numbers.setdefault(node, len(numbers))
            seconds[node] += stack.seconds
            kinds[at][stack.kind] += stack.seconds
    total = sum(stack.seconds for stack in stacks)
    order = list(KINDS)
    shown: dict[int, int] = {-1: -1}
    nodes: list[list[Any]] = []
    for node, number in numbers.items():  # callers come before what they call
        caller, frame = node
        if caller in shown and seconds[node] >= _LEAST_SHARE * total:
            shown[number] = len(nodes)
            most = max(kinds[number], key=kinds[number].__getitem__)
            nodes.append(
                [shown[caller], frames.setdefault(frame, len(frames)), round(seconds[node], 6), order.index(most)]
            )
    return nodes
