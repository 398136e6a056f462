"""Small inputs for shuffles and mixtures, and runs in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gristmill.backends.local import LocalExecutor
from gristmill.stages.sharding import MixWorkflow, ShuffleWorkflow


def records(name: str, count: int, **columns: Any) -> list[dict[str, Any]]:
    """Documents of different lengths; `columns` are functions of their number."""
    found = []
    for at in range(count):
        more = {column: make(at) for column, make in columns.items()}
        text = f"text {at} " * (1 + at * at % 17)
        found.append({"id": f"{name}-{at}", "text": text, "token_count": 2 * (1 + at * at % 17), **more})
    return found


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    """Rows as a JSONL file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def shuffle(source: Path, output: Path, *, workers: int = 0, fresh: bool = False, **options: Any) -> dict[str, Any]:
    """Run a shuffle; returns its facts."""
    options = {"input_blocksize": 4000, **options}
    workflow = ShuffleWorkflow(str(output), str(source), **options)
    return run(workflow, workers=workers, fresh=fresh)


def run(workflow: ShuffleWorkflow | MixWorkflow, *, workers: int = 0, fresh: bool = False) -> dict[str, Any]:
    """Run a workflow; returns its facts."""
    executor = LocalExecutor({"num_cpus": workers})
    facts: dict[str, Any] = workflow.run(executor, fresh=fresh, progress=False).metadata
    return facts


def lines_of(output: Path, pattern: str = "*.jsonl") -> list[str]:
    """All lines of the shards, in order."""
    return [line for path in sorted(output.glob(pattern)) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(output: Path) -> dict[str, bytes]:
    """The bytes of every shard."""
    return {path.name: path.read_bytes() for path in sorted(output.iterdir()) if path.is_file()}
