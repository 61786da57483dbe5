"""A user's own batch script, submitted so that its job is observed."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcncf.errors import UsageError
from hpcncf.files import make_folder
from hpcncf.probe.launch import COPY, INJECTED

# sbatch's options that take no value, or only one attached by `=`: man sbatch, 22.05 to 25.05.
# Every other option takes the next word. An abbreviation is an option's if it is unique.
_FLAGS: Final = """
contiguous exclusive get-user-env help hold ignore-pbs nice no-bell no-kill no-requeue overcommit
oversubscribe parsable propagate quiet reboot requeue resv-ports share spread-job test-only usage
use-min-nodes verbose version wait x11
"""
_VALUES: Final = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint
container container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline
delay-boot dependency distribution error exclude export export-file extra extra-node-info gid
gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input
job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos
reservation segment signal sockets-per-node switches thread-spec threads-per-core time time-min tmp
tres-bind tres-per-job tres-per-task uid wait-all-nodes wckey wrap
"""
FLAGS: Final = frozenset(_FLAGS.split())
VALUES: Final = frozenset(_VALUES.split())
SHORT_FLAGS: Final = frozenset("hHIkOQRsuvVWXZ")
MAX_SCRIPT: Final = 4 * 2**20
"""Slurm's default limit (SchedulerParameters=max_script_size)."""


@dataclass(frozen=True)
class Request:
    """The words of an `sbatch` command, told apart."""

    options: list[str]
    script: str | None
    """None: `--wrap`, or the script comes on standard input."""
    arguments: list[str]
    wrap: str | None


def parse_request(words: Sequence[str]) -> Request:
    """Split sbatch's arguments into its options, the script and the script's arguments."""
    at, wrap = 0, None
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if word == "-" or not word.startswith("-"):
            break
        name, equals, value = word[2:].partition("=")
        takes_next = False
        if word.startswith("--"):
            takes_next = not equals and not _is_flag(name)
            if _full_name(name) == "wrap":
                wrap = value if equals else words[at + 1] if at + 1 < len(words) else None
        else:
            # Letters may be joined: -Qn 4. A value may follow its letter: -n4.
            letters = word[1:]
            first = next((i for i, c in enumerate(letters) if c not in SHORT_FLAGS), None)
            takes_next = first is not None and first == len(letters) - 1
        at += 2 if takes_next else 1
    rest = list(words[at:])
    script = rest[0] if rest and wrap is None else None
    return Request(list(words[:at]), script, rest[1:] if script else rest, wrap)


def _full_name(name: str) -> str | None:
    if name in FLAGS | VALUES:
        return name
    found = [each for each in FLAGS | VALUES if each.startswith(name)]
    return found[0] if len(found) == 1 else None


def _is_flag(name: str) -> bool:
    return _full_name(name) in FLAGS


def read_script(path: str) -> bytes:
    """Read a batch script; raises UsageError if sbatch could not submit it either."""
    file = Path(path)
    try:
        if file.is_dir():
            raise UsageError(f"{path}: is a folder; expected a batch script")
        if file.stat().st_size > MAX_SCRIPT:
            size = file.stat().st_size / 2**20
            raise UsageError(
                f"{path}: {size:,.0f} MiB; expected a batch script of at most 4 MiB, as Slurm does"
            )
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def is_refused(script: bytes) -> bool:
    """Return whether sbatch would refuse the script, so that it can report the error itself."""
    return not script.startswith(b"#!") or b"\r\n" in script or b"\0" in script


def interpreter(script: bytes) -> list[str]:
    """Split the `#!` line into the program and, as one word, its argument."""
    line = script[2:].partition(b"\n")[0].decode(errors="surrogateescape").strip()
    program, _, option = line.partition(" ")
    return [program, option.strip()] if option.strip() else [program]


def header(script: bytes) -> bytes:
    """Return the script's lines that sbatch searches for directives.

    They are the comments and blank lines before the first command.
    """
    lines = []
    for line in script.split(b"\n")[1:]:
        if line.strip() and not line.lstrip().startswith(b"#"):
            break
        lines.append(line)
    return b"\n".join(lines)


def own_command() -> list[str]:
    """Return the command that starts hpcncf on a compute node in any environment."""
    program = Path(sys.executable).with_name("hpcncf")
    if program.is_file():
        return [str(program)]
    return [sys.executable, "-P", "-m", "hpcncf"]


WRAPPER: Final = """\
#!/bin/sh
{header}
# Made by `hpcncf sbatch`: starts the script that follows below, unchanged, and observes it.
script={script}
if [ ! -r "$script" ]; then  # this node does not see the folder from which the job was submitted
    script=$(mktemp -d)/{name} && tail -n +{{line}} "$0" > "$script"
fi
if {hpcncf} --version > /dev/null 2>&1; then
    {export_copy}
    exec {hpcncf} run {options} -- {interpreter} "$script" "$@"
fi
{probe_alone}exec {interpreter} "$script" "$@"
exit
"""
WITHOUT_PROBE: Final = """\
echo "hpcncf: cannot be started on $(uname -n): the job runs without it" >&2
"""
PROBE_ALONE: Final = """\
echo "hpcncf: cannot be started on $(uname -n); only processes of Python are observed:" >&2
echo "hpcncf: \\`hpcncf diagnose $SLURM_JOB_ID\\` where the job was submitted" >&2
"""

# The probe needs a folder for its files and two variables. A slash at the end says that PYTHONPATH
# was unset: see inject/sitecustomize.py. In a job of --export=NONE, srun passes on nothing. What
# `hpcncf run` observes already stays as it is.
ENVIRONMENT: Final = """\
hpcncf_job=${{SLURM_ARRAY_TASK_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
hpcncf_job=${{hpcncf_job:-${{SLURM_JOB_ID:-${{LSB_JOBID:-${{PBS_JOBID:-$$}}}}}}}}
if [ -z "${{HPCNCF_PROBE:-}}" ] && mkdir -p {probes}/"$hpcncf_job" 2> /dev/null; then
    export HPCNCF_PROBE={probes}/"$hpcncf_job"
    export PYTHONPATH={copy}"${{PYTHONPATH:+:$PYTHONPATH}}"
    [ "$PYTHONPATH" != {copy} ] || PYTHONPATH=$PYTHONPATH/
    case ${{SLURM_EXPORT_ENV:-ALL}} in
    *ALL*) ;;
    NONE | NIL) export SLURM_EXPORT_ENV=PYTHONPATH,HPCNCF_PROBE ;;
    *) export SLURM_EXPORT_ENV="$SLURM_EXPORT_ENV,PYTHONPATH,HPCNCF_PROBE" ;;
    esac
fi
"""
# Slurm runs a TaskProlog before each task, as its user, and reads what it prints.
TASK_PROLOG: Final = """\
if [ "${{HPCNCF_OBSERVE:-}}" = 1 ] && [ -z "${{HPCNCF_PROBE:-}}" ]; then
    hpcncf_job=${{SLURM_ARRAY_TASK_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
    hpcncf_job=$SLURM_SUBMIT_DIR/results/jobs/probes/${{hpcncf_job:-$SLURM_JOB_ID}}
    if mkdir -p "$hpcncf_job" 2> /dev/null; then
        echo "export HPCNCF_PROBE=$hpcncf_job"
        hpcncf_path={copy}${{PYTHONPATH:+:$PYTHONPATH}}
        [ "$hpcncf_path" != {copy} ] || hpcncf_path=$hpcncf_path/
        echo "export PYTHONPATH=$hpcncf_path"
    fi
fi
"""


def copy_probe(results: Path) -> Path:
    """Copy what looks into a job's Python beside its records; return the copy's folder.

    It needs the standard library alone. Equal copies are one, so that a job that runs keeps its.
    """
    digest = hashlib.sha256()
    sources = sorted(INJECTED.rglob("*.py"))
    for path in sources:
        digest.update(str(path.relative_to(INJECTED)).encode() + path.read_bytes())
    copy = results / "probe" / digest.hexdigest()[:8]
    if copy.is_dir():
        return copy
    make_folder(copy.parent)
    partial = Path(tempfile.mkdtemp(prefix=".", dir=copy.parent))
    for path in sources:
        made = partial / path.relative_to(INJECTED)
        make_folder(made.parent)
        shutil.copyfile(path, made)
    partial.chmod(stat.S_IMODE(copy.parent.stat().st_mode))
    try:
        partial.rename(copy)
    except OSError:  # another process was faster
        shutil.rmtree(partial, ignore_errors=True)
    return copy


def environment_lines(results: Path, task_prolog: bool = False) -> str:
    """Return lines of shell after which Python is observed, for a script of any scheduler.

    `task_prolog`: as Slurm reads them from the output of a TaskProlog, for users who ask for it.
    """
    copy = shlex.quote(str(copy_probe(results)))
    if task_prolog:
        return TASK_PROLOG.format(copy=copy)
    return ENVIRONMENT.format(copy=copy, probes=shlex.quote(str(results / "probes")))


def wrap_script(script: bytes, copy: Path, options: Sequence[str], results: Path) -> bytes:
    """Build a batch script with the same directives that runs `copy` by `hpcncf run`."""
    probed = "--no-probe" not in options
    alone = PROBE_ALONE + environment_lines(results) if probed else WITHOUT_PROBE
    variable = f"{COPY}={shlex.quote(str(copy_probe(results)))}"
    text = WRAPPER.format(
        export_copy=f"export {variable}" if probed else ":",
        probe_alone=alone,
        header=header(script).decode(errors="surrogateescape"),
        script=shlex.quote(str(copy)),
        name=shlex.quote(copy.name),
        hpcncf=shlex.join(own_command()),
        options=shlex.join(options),
        interpreter=shlex.join(interpreter(script)),
    )
    text = text.replace("{line}", str(text.count("\n") + 1))
    return text.encode(errors="surrogateescape") + script


@dataclass(frozen=True)
class Prepared:
    """The command line and standard input for sbatch, and the folder of the script's copy."""

    words: list[str]
    stdin: bytes | None
    folder: Path | None
    """The copies; None: nothing was written."""

    def discard(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def prepare(
    request: Request, results: Path, stdin: bytes | None, options: Sequence[str] = ()
) -> Prepared:
    """Copy the script into the results folder, and build the batch script that runs the copy.

    `stdin`: the script, if it is not in a file. `options`: of `hpcncf run`.
    """
    if request.wrap is not None:
        content, name = f"#!/bin/sh\n{request.wrap}\n".encode(), "wrap"
    elif request.script is not None:
        content, name = read_script(request.script), Path(request.script).name
    else:
        content, name = stdin or b"", "script"
    if is_refused(content):
        words = [*request.options, *([request.script] if request.script else [])]
        return Prepared([*words, *request.arguments], stdin, None)
    make_folder(results / "scripts")
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=results / "scripts"))
    copy = folder / "script" / name
    make_folder(copy.parent)
    copy.write_bytes(content)
    copy.chmod(0o700)
    run = ["--results", str(results), "--name", name, *options]
    wrapped = wrap_script(content, copy, run, results)
    if request.wrap is not None:
        start = folder / "start"
        start.write_bytes(wrapped)
        seen = f"[ ! -r {shlex.quote(str(start))} ] || exec /bin/sh {shlex.quote(str(start))}"
        words = [*_without_wrap(request.options), f"--wrap={seen}\n{request.wrap}"]
        return Prepared(words, stdin, folder)
    if request.script is None:
        return Prepared([*request.options, *request.arguments], wrapped, folder)
    # Slurm names a job after its script's file.
    (folder / name).write_bytes(wrapped)
    words = [*request.options, str(folder / name), *request.arguments]
    return Prepared(words, None, folder)


def _without_wrap(options: Sequence[str]) -> list[str]:
    found, skip = [], False
    for word in options:
        name, equals, _ = word[2:].partition("=")
        if skip:
            skip = False
        elif word.startswith("--") and _full_name(name) == "wrap":
            skip = not equals
        else:
            found.append(word)
    return found
