"""How close are the token shares of a mixture to those asked for, and how fast is mixing?

    python benchmarks/bench_mix.py [--mb 300] [--folder FOLDER] [--out FILE.json]

Three sources of JSONL with token counts, whose documents have very different lengths, are mixed 5 : 3 : 2 into a budget
for which one of them must be repeated, another one is taken in part and one has quality tiers and a cap per domain. The
tokens are counted again from the shards.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from gristmill.backends.local import LocalExecutor
from gristmill.stages.sharding import Cap, MixSource, Mixture, MixWorkflow, Tier

SOURCES = {"web": (0.7, 1.2), "code": (0.25, 0.6), "books": (0.05, 1.5)}
WEIGHTS = {"web": 5, "code": 3, "books": 2}


def make_source(path: Path, name: str, megabytes: float, spread: float, seed: int) -> int:
    """A JSONL file of about this size; returns its number of tokens."""
    draw = np.random.default_rng(seed)
    written = tokens = number = 0
    with path.open("w", encoding="utf-8") as file:
        while written < megabytes * 1e6:
            count = int(draw.lognormal(5.5, spread)) + 1
            row = {
                "id": f"{name}-{number}", "text": "token " * count, "token_count": count,
                "domain": f"d{int(draw.pareto(1.2))}", "quality": float(draw.random()),
            }  # fmt: skip
            written += file.write(json.dumps(row) + "\n")
            tokens, number = tokens + count, number + 1
    return tokens


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=300)
    parser.add_argument("--folder")
    parser.add_argument("--out")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-mix-", dir=given.folder))
    try:
        sizes = {
            name: make_source(folder / f"{name}.jsonl", name, given.mb * part, spread, at)
            for at, (name, (part, spread)) in enumerate(SOURCES.items())
        }
        tiers = (Tier(0.7, 2.0), Tier(0.3, 1.0), Tier(None, 0.2))
        sources = {name: MixSource(str(folder / f"{name}.jsonl"), weight=weight) for name, weight in WEIGHTS.items()}
        sources["web"] = MixSource(
            str(folder / "web.jsonl"), weight=WEIGHTS["web"], tier_field="quality", tiers=tiers,
            cap=Cap("domain", sizes["web"] // 10),
        )  # fmt: skip
        budget = int(sum(sizes.values()) * 0.6)
        workflow = MixWorkflow(
            str(folder / "out"), Mixture(sources, unit="tokens", budget=budget), token_count_field="token_count"
        )
        before, begun = os.times(), time.perf_counter()
        facts = workflow.run(LocalExecutor({"memory_budget": "1GB"}), progress=False).metadata
        wall, after = time.perf_counter() - begun, os.times()
        found = dict.fromkeys(SOURCES, 0)
        for path in (folder / "out").iterdir():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                found[row["id"].partition("-")[0]] += row["token_count"]
        total, whole = sum(found.values()), sum(WEIGHTS.values())
        shares = {
            name: {
                "asked": WEIGHTS[name] / whole, "got": found[name] / total,
                "off": abs(found[name] / total / (WEIGHTS[name] / whole) - 1),
                "epochs": next(one["epochs"] for one in facts["sources"] if one["name"] == name),
            }
            for name in SOURCES
        }  # fmt: skip
        result = {
            "input_mb": given.mb,
            "goal": "every share within 0.001 of what was asked for, relatively",
            "budget_tokens": budget,
            "tokens": total,
            "shares": shares,
            "worst": max(one["off"] for one in shares.values()),
            "budget_off": abs(total / budget - 1),
            "wall_s": round(wall, 2),
            "driver_cpu_s": round(after.user + after.system - before.user - before.system, 2),
        }
        print(json.dumps(result, indent=2))
        if given.out:
            Path(given.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
