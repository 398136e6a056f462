"""Build the container image and try it: not root, the demo runs, nothing is compiled.

python tools/try_image.py docker|podman|buildah NAME [OPTION OF THE BUILD ...]
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    builder, image, *options = sys.argv[1:]
    build = "bud" if builder == "buildah" else "build"
    subprocess.run([builder, build, *options, "-t", image, str(ROOT)], check=True)
    if builder == "buildah":
        container = output(builder, "from", image).strip()
        try:
            attempt(lambda *command: output(builder, "run", container, "--", *command))
        finally:
            output(builder, "rm", container)
    else:
        attempt(lambda *command: output(builder, "run", "--rm", "--entrypoint", command[0], image, *command[1:]))
    print(f"{image} works.")


def attempt(run: Callable[..., str]) -> None:
    """Run commands in a container; exits if one does not do what it should."""
    if (user := run("id", "-u").strip()) == "0":
        raise SystemExit("The image runs as root; it should run as a user of its own.")
    told = run("gristmill", "demo", "demo")
    print(told)
    if "documents in" not in told or "Compiling kernels" in told:
        raise SystemExit("The demo should curate the sample with kernels that were compiled before.")
    print(f"user {user}; {run('gristmill', '--version').strip()}")


def output(*command: str) -> str:
    """What a command prints; exits if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
