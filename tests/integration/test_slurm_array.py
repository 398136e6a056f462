"""The documented scripts for Slurm arrays, submitted to a stand-in for `sbatch`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

DOCUMENTED = Path(__file__).parents[2] / "docs" / "how-to" / "run-existing-scripts.md"
SHARDS = 2
# Reads the options as Slurm does: those of the command line win over those in the script. Runs tasks one by one, and
# not the one that $LOST names, as if its node had died.
SBATCH = r"""#!/bin/bash
script="${@: -1}"
for option in $(sed -n 's/^#SBATCH //p' "$script") "${@:1:$#-1}"; do
  case "$option" in
    --array=*) array="${option#--array=}" ;;
    --export=ALL,*) export "${option#--export=ALL,}" ;;
    *) echo "sbatch: unrecognized option '$option'" >&2; exit 1 ;;
  esac
done
indices=()
for part in ${array//,/ }; do indices+=($(seq "${part%-*}" "${part#*-}")); done
export SLURM_JOB_ID=17 SLURM_ARRAY_JOB_ID=17 SLURM_ARRAY_TASK_COUNT=${#indices[@]}
for index in "${indices[@]}"; do
  [ "$index" = "$LOST" ] || SLURM_ARRAY_TASK_ID=$index bash "$script" || exit 1
done
"""
SCRIPT = """
from nemo_curator.pipeline import Pipeline
from nemo_curator.stages.text.io.reader import JsonlReader
from nemo_curator.stages.text.io.writer import JsonlWriter

pipeline = Pipeline("shards", stages=[JsonlReader("in"), JsonlWriter("out")])
pipeline.run(checkpoint_path="checkpoint")
"""


def _blocks() -> list[str]:
    """The code of the page that is about arrays, for fewer shards."""
    found = re.findall(r"^```(?:bash|py)\n(.*?)^```", DOCUMENTED.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    about = [block for block in found if "--array" in block or "find_slurm_array_retries" in block]
    return [block.replace("0-63", f"0-{SHARDS - 1}").replace("SHARDS=64", f"SHARDS={SHARDS}") for block in about]


def test_an_array_is_submitted_and_its_lost_task_again(tmp_path: Path) -> None:
    array, missing, submit_again = _blocks()
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"sbatch": SBATCH, "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n'}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    for name, text in {"array.sh": array, "missing.py": missing, "script.py": SCRIPT}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "in").mkdir()
    for number in range(8):
        (tmp_path / "in" / f"{number}.jsonl").write_text(json.dumps({"id": number, "text": "x"}) + "\n")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "NEMO_CURATOR_"))}
    environment = {**outside, "PATH": f"{commands}:{os.environ['PATH']}"}

    def submit(command: str, **more: str) -> None:
        subprocess.run(["bash", "-ec", command], cwd=tmp_path, env={**environment, **more}, check=True, timeout=300)

    def written() -> list[int]:
        return [json.loads(path.read_text())["id"] for path in sorted(tmp_path.glob("out/shard-0000?/*.jsonl"))]

    submit("sbatch array.sh", LOST="1")
    assert [path.name for path in (tmp_path / "out").glob("shard-*[0-9]")] == ["shard-00000"]
    first = written()
    assert 0 < len(first) < 8
    submit(submit_again)
    assert sorted(written()) == list(range(8))
    assert written()[: len(first)] == first
