"""Try what `make dist` built: install the wheel into an empty environment and use it, and build the sdist once more.

    python tools/try_dist.py dist [--tag v0.1.0]

The wheel has to bring its kernels compiled, and the sdist everything that builds a wheel. With `--tag`, the version of
both has to be that of the tag.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = ("-m", "pip", "--disable-pip-version-check")


def main() -> None:
    parser = argparse.ArgumentParser(description="Try the built wheel and sdist.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tag", default="", help="the tag of the release, such as v0.1.0")
    options = parser.parse_args()
    wheel, sdist = one_of(options.folder, "gristmill-*.whl"), one_of(options.folder, "gristmill-*.tar.gz")
    version = re.fullmatch(r"gristmill-(.+)\.tar\.gz", sdist.name)[1]  # type: ignore[index]
    if options.tag and options.tag != f"v{version}":
        raise SystemExit(f"The tag is {options.tag}, but the version of the package is {version}.")
    if not any(name.endswith(".kernel") for name in zipfile.ZipFile(wheel).namelist()):
        raise SystemExit(f"{wheel.name} brings no compiled kernels: build it with 'make wheel'.")
    with tempfile.TemporaryDirectory() as folder:
        try_wheel(wheel, version, Path(folder))
        try_sdist(sdist, version, Path(folder))
    print(f"{wheel.name} and {sdist.name} work.")


def one_of(folder: Path, pattern: str) -> Path:
    """The only file of this name; exits if there is none or more than one."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"Expected one {pattern} in {folder}, found {[path.name for path in found]}: run 'make dist'.")
    return found[0].resolve()


def try_wheel(wheel: Path, version: str, folder: Path) -> None:
    """Install the wheel without this checkout in sight, and run the commands of the README."""
    venv.create(folder / "env", with_pip=True)
    python, gristmill = folder / "env" / "bin" / "python", str(folder / "env" / "bin" / "gristmill")
    run(folder, str(python), *PIP, "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel))
    if version not in (told := run(folder, gristmill, "--version")):
        raise SystemExit(f"'gristmill --version' says {told!r}, but the wheel is {version}.")
    told = run(folder, gristmill, "demo", "demo")
    if "Compiling kernels" in told:
        raise SystemExit("The demo compiled kernels: those of the wheel do not fit the versions in constraints.txt.")
    where = "import gristmill, pathlib; print(pathlib.Path(gristmill.__file__).parent)"
    sample = Path(run(folder, str(python), "-c", where).strip(), "recipes", "sample", "sample.jsonl.gz")
    run(folder, gristmill, "run", "english", str(sample), "clean")
    run(folder, gristmill, "verify", "clean")
    if not list((folder / "clean").glob("*.jsonl*")):
        raise SystemExit("'gristmill run english' wrote nothing.")


def try_sdist(sdist: Path, version: str, folder: Path) -> None:
    """Build a wheel from the sdist alone."""
    run(folder, sys.executable, *PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", "rebuilt", str(sdist))
    one_of(folder / "rebuilt", f"gristmill-{version}-py3-none-any.whl")


def run(folder: Path, *command: str) -> str:
    """What a command prints; exits if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
