"""Build what a release consists of, into dist/: `python release/build.py wheels pyz`.

`wheels`: a source archive; a wheel for each machine of MACHINES with engine native, compiled by
zig against glibc 2.17 so that it runs on the old nodes of a cluster, too; and one without it for
any machine. `pyz`: hpcncf and all it needs but torch in one file, for this version of Python.
`recipes`: those of release/recipes with version and checksum filled in. `check`: install the wheel
for this machine in an empty environment and use it there.

Needs the packages of `release/requirements.txt`; `make wheels` and `make pyz` install them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
RECIPES: Final = ROOT / "release/recipes"
GLIBC: Final = "2.17"
MACHINES: Final = ("x86_64", "aarch64")
LIMIT_MB: Final = 150
# Imported by none of our own code without torch; submitit's and matplotlib's tests are not needed.
LEFT_OUT: Final = ("**/tests", "**/__pycache__", "**/*.pyi", "**/*.c", "bin", "share")


def build_wheels(into: Path, machines: tuple[str, ...] = MACHINES) -> list[Path]:
    """The source archive, then the wheels, each built from the archive's content alone."""
    with tempfile.TemporaryDirectory() as name:
        archive = _build(["--sdist", str(ROOT)], into, {})
        built = [archive]
        for machine in machines:
            zig = f"{sys.executable} -m ziglang"
            target = f"-target {machine}-linux-gnu.{GLIBC}"
            tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
            compilers = {
                "CC": f"{zig} cc {target}",
                "CXX": f"{zig} c++ {target}",
                "LDSHARED": f"{zig} cc {target} -shared",
                "LDCXXSHARED": f"{zig} c++ {target} -shared",
                "CFLAGS": "",
                "HPCNCF_PLATFORM": tag,
            }
            wheel = _build(["--wheel", _unpacked(archive, Path(name, machine))], into, compilers)
            _check_tag(wheel, tag)
            built.append(wheel)
        without = {"HPCNCF_NATIVE": "0"}
        built.append(_build(["--wheel", _unpacked(archive, Path(name, "any"))], into, without))
    return built


def _unpacked(archive: Path, into: Path) -> str:
    with tarfile.open(archive) as files:
        files.extractall(into, filter="data")
    (folder,) = into.iterdir()
    return str(folder)


def _build(words: list[str], into: Path, variables: dict[str, str]) -> Path:
    before = set(into.glob("*"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into), *words]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HPCNCF_")} | variables
    # Not from the checkout: its folder `build` would be taken for the package of that name.
    done = subprocess.run(
        command, env=environment, cwd=into, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    created = sorted(set(into.glob("*")) - before, key=lambda path: path.stat().st_mtime)
    if not created:  # a file of the same name was replaced
        created = [max(into.glob("*"), key=lambda path: path.stat().st_mtime)]
    print(f"{created[-1].name}: {created[-1].stat().st_size / 1e6:.1f} MB", flush=True)
    return created[-1]


def _check_tag(wheel: Path, tag: str) -> None:
    """Exit unless auditwheel finds the wheel's libraries to run where its name says."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if f'"{tag}"' not in shown:
        sys.exit(f"{wheel.name}: its libraries need more than {tag}:\n{shown}")


def build_pyz(into: Path, wheel: Path) -> Path:
    """hpcncf and its dependencies but torch in one file that unpacks itself once per machine."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [each for each in settings["dependencies"] if not each.startswith("torch")]
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    target = into / f"hpcncf-{_version()}-{tag}.pyz"
    with tempfile.TemporaryDirectory() as name:
        site = Path(name, "site-packages")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        words = ["--no-compile", "--only-binary=:all:", "--target", str(site)]
        subprocess.run([*pip, *words, *needed], check=True)
        subprocess.run(
            [*pip, "--no-compile", "--no-deps", "--target", str(site), str(wheel)], check=True
        )
        for pattern in LEFT_OUT:
            for path in site.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        packed = Path(name, "site-packages.zip")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
            for path in sorted(site.rglob("*")):
                archive.write(path, path.relative_to(site))
        digest = hashlib.sha256(packed.read_bytes()).hexdigest()[:12]
        about = f"{_version()}-{tag}-{digest}"
        with target.open("wb") as file:
            file.write(b"#!/usr/bin/env python3\n")
            with zipfile.ZipFile(file, "w") as archive:
                archive.write(ROOT / "release/pyz_main.py", "__main__.py")
                archive.writestr("about", about)
                archive.write(packed, "site-packages.zip")  # stored: it is compressed already
    target.chmod(0o755)
    size = target.stat().st_size / 1e6
    print(f"{target.name}: {size:.0f} MB", flush=True)
    if size > LIMIT_MB:
        sys.exit(f"{target.name}: {size:.0f} MB, more than {LIMIT_MB}")
    return target


def write_recipes(into: Path) -> None:
    """Fill the version and the source archive's checksum into the recipes of other packagers."""
    (archive,) = into.glob("hpcncf-*.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    for recipe in sorted(path for path in RECIPES.glob("*/**/*") if path.is_file()):
        text = recipe.read_text().replace("@VERSION@", _version()).replace("@SHA256@", digest)
        target = into / "recipes" / recipe.relative_to(RECIPES)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        print(target.relative_to(into), flush=True)


def _version() -> str:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return str(settings["project"]["version"])


def check_wheel(wheel: Path) -> None:
    """Install the wheel, torch included, in an empty environment outside the checkout; exit unless
    the commands of the README's first screens work there."""
    with tempfile.TemporaryDirectory() as name:
        env, work = Path(name, "env"), Path(name, "work")
        work.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
        pip = [str(env / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        constraint = ["--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *constraint, str(wheel)], check=True, cwd=work)
        (work / "train.py").write_text("print(sum(i * i for i in range(10**7)))\n")
        (work / "job.yaml").write_text(CHECK_JOB)
        for words in CHECKS:
            command = [str(env / "bin" / words[0]), *words[1:]]
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
            print(f"{done.returncode}  {' '.join(words)}", flush=True)
            if done.returncode != 0:
                sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
        for shared in ("man/man1/hpcncf-run.1", "bash-completion/completions/hpcncf"):
            if not (env / "share" / shared).is_file():
                sys.exit(f"{wheel.name}: share/{shared}: not installed")


CHECK_JOB: Final = """\
name: check
data: {dataset: synthetic, path: data}
training: {epochs: 1, engine: native}
resources: {mem_gb: 1, timeout_min: 5}
"""
LOAD_NATIVE: Final = "from hpcncf.native.builds import load_library; load_library()"
PREPARE: Final = "hpcncf data prepare synthetic --users 300 --items 200 --rows 5000"
CHECKS: Final = (
    ("hpcncf", "--version"),
    ("python", "-c", LOAD_NATIVE),
    ("hpcncf", "doctor"),
    ("hpcncf", "run", "--", "python", "train.py"),
    (*PREPARE.split(), "-o", "data"),
    ("hpcncf", "plan", "job.yaml"),
    ("hpcncf", "submit", "job.yaml", "--cluster", "local", "--wait"),
    ("hpcncf", "status"),
    ("hpcncf", "collect", "results/check"),
    ("hpcncf", "report", "results/check"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=("wheels", "pyz", "recipes", "check"))
    parser.add_argument("--into", type=Path, default=DIST, metavar="FOLDER")
    parser.add_argument(
        "--machine",
        action="append",
        choices=(*MACHINES, "none"),
        help="of the wheels; default: all",
    )
    args = parser.parse_args()
    into = args.into.absolute()
    into.mkdir(parents=True, exist_ok=True)
    if "wheels" in args.what:
        chosen = args.machine or MACHINES
        build_wheels(into, tuple(machine for machine in chosen if machine != "none"))
    if "pyz" in args.what:
        wheels = sorted(into.glob("hpcncf-*-py3-none-any.whl"))
        if not wheels:
            sys.exit(f"{into}: no wheel for any machine; build `wheels` first")
        build_pyz(into, wheels[-1])
    if "recipes" in args.what:
        write_recipes(into)
    if "check" in args.what:
        (wheel,) = into.glob(f"hpcncf-*-manylinux_*_{platform.machine()}.whl")
        check_wheel(wheel)


if __name__ == "__main__":
    main()
