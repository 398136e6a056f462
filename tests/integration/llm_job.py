"""A small annotation job, as a program that can be killed: `python -m tests.integration.llm_job IN OUT URL`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.text.annotate import LLMStage
from gristmill.stages.text.io import JsonlReader, JsonlWriter


def pipeline(source: Path, output: Path, url: str, **options: Any) -> Pipeline:
    """Reads, asks, writes."""
    stage = LLMStage(
        options.pop("prompt", "Say something about this.\n\n{{ text }}"),
        model="tiny",
        base_url=url,
        **{"base_delay": 0.01, **options},
    )
    return Pipeline(name="annotate", stages=[JsonlReader(str(source)), stage, JsonlWriter(str(output))])


if __name__ == "__main__":
    arguments = sys.argv[1:]
    job = pipeline(Path(arguments[0]), Path(arguments[1]), arguments[2], max_concurrent_requests=4)
    job.run(LocalExecutor(config={"num_cpus": 2}), progress=False)
