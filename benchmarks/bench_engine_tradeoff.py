"""What do `blocksize` and `batch_bytes` cost in memory, and what do they bring in speed?

Filters 300 MB on two workers with every combination, and draws the page `docs/explanation/memory.md` its picture.

    python benchmarks/bench_engine_tradeoff.py [--megabytes 300]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_runs import PeakMemory, make_files
from foundation_inputs import ROOT, save

BLOCKS = ("4MB", "16MB", "64MB")
BATCHES = ("256KB", "1MB", "4MB", "16MB")
COLOURS = ("#1f6f8b", "#c8553d", "#5b8c5a")
PICTURE = ROOT / "docs" / "explanation" / "memory_tradeoff.svg"


def one_run(source: str, out: str, block: str, batch: str) -> tuple[float, int]:
    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    stages = [
        JsonlReader(source, blocksize=block, read_kwargs={"batch_bytes": batch}),
        ScoreFilter(WordCountFilter(5)),
        JsonlWriter(out),
    ]
    with PeakMemory() as memory:
        begun = time.monotonic()
        Pipeline("tradeoff", stages=stages).run(executor=LocalExecutor(config={"num_cpus": 2}))
        seconds = time.monotonic() - begun
    return seconds, memory.peak_bytes


def draw(points: list[dict[str, object]]) -> str:
    """Speed over memory, one line for each block size, as SVG."""
    most_memory = max(float(str(point["peak_mb"])) for point in points) * 1.1
    most_speed = max(float(str(point["mb_per_s"])) for point in points) * 1.1

    def place(point: dict[str, object]) -> tuple[float, float]:
        x = 70 + 500 * float(str(point["peak_mb"])) / most_memory
        y = 330 - 290 * float(str(point["mb_per_s"])) / most_speed
        return round(x, 1), round(y, 1)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 390" font-family="sans-serif" font-size="12">',
        '<rect width="720" height="390" fill="white"/>',
        '<path d="M70 30V330H580" fill="none" stroke="#444"/>',
        '<text x="325" y="372" text-anchor="middle">peak memory of all processes, MB</text>',
        '<text x="20" y="180" text-anchor="middle" transform="rotate(-90 20 180)">MB of input per second</text>',
    ]
    for step in range(5):
        memory, speed = most_memory * step / 4, most_speed * step / 4
        parts.append(f'<text x="{70 + 125 * step}" y="348" text-anchor="middle">{memory:.0f}</text>')
        parts.append(f'<text x="64" y="{334 - 72.5 * step}" text-anchor="end">{speed:.0f}</text>')
    for block, colour in zip(BLOCKS, COLOURS, strict=True):
        mine = [point for point in points if point["blocksize"] == block]
        way = " ".join(f"{x},{y}" for x, y in map(place, mine))
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for point in mine:
            x, y = place(point)
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
            parts.append(f'<text x="{x + 6}" y="{y - 6}" fill="{colour}">{point["batch_bytes"]}</text>')
        line = 50 + 20 * BLOCKS.index(block)
        parts.append(f'<text x="600" y="{line}" fill="{colour}">blocksize {block}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Run every combination in a process of its own and draw the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(*options.one)))
        return
    points: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = make_files(folder / "in", megabytes=options.megabytes, files=3)
        for block in BLOCKS:
            for batch in BATCHES:
                out = folder / f"out-{block}-{batch}"
                command = [sys.executable, __file__, "--one", str(folder / "in"), str(out), block, batch]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                seconds, peak = json.loads(done.stdout.splitlines()[-1])
                points.append(
                    {
                        "blocksize": block,
                        "batch_bytes": batch,
                        "mb_per_s": round(size / 1e6 / seconds, 1),
                        "peak_mb": round(peak / 1e6, 1),
                    }
                )
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(draw(points))
    save("engine_tradeoff", {"bytes": size, "points": points})


if __name__ == "__main__":
    main()
