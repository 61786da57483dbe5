"""Rules for a job's environment: conda, modules, folders, exported variables, the Python used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.script import Start
from hpcncf.lint.batch_context import Context, find
from hpcncf.lint.rules import Complaint

CONDA_MODULE: Final = re.compile(r"conda|mamba|miniforge|python", re.IGNORECASE)
LOGIN_SHELL: Final = re.compile(r"#!\s*\S*sh\s+(?:-\w*[li]|--login)")
ACTIVATES: Final = re.compile(r"(?:^|/)bin/activate$")
PLAIN_SH: Final = re.compile(r"#!\s*/(?:usr/)?bin/(?:env\s+)?(?:sh|dash)\s*")
PYTHON_MODULE: Final = re.compile(
    r"(?:^|/)(?:i?python|anaconda|miniconda|cray-python)[\w.-]*(?:/|$)", re.I
)


def check_environment(context: Context) -> Iterator[Complaint]:
    yield from _conda(context)
    yield from _modules(context)
    yield from _setenv(context)
    yield from _exported(context)
    yield from _other_python(context)
    yield from _folders(context)
    yield from _home(context)


def _words(start: Start) -> list[str]:
    last = start.stages[-1]
    return [last.name, *(each.shown for each in last.arguments)]


def _conda(context: Context) -> Iterator[Complaint]:
    """Find `conda activate` in scripts that do not define conda's shell function."""
    if LOGIN_SHELL.match(context.script.shebang):
        return
    said_init = False
    for start in context.script.starts:
        words = _words(start)
        name = words[0]
        if name in ("source", ".", "eval") or (
            name in ("module", "ml") and any(map(CONDA_MODULE.search, words[1:]))
        ):
            return
        if name in ("conda", "mamba") and words[1:2] == ["init"]:
            said_init = True
        if name in ("conda", "mamba", "micromamba") and words[1:2] == ["activate"]:
            line = start.line
            source = 'source "$(conda info --base)/etc/profile.d/conda.sh"'
            if not said_init:
                source = 'source "$HOME/miniconda3/etc/profile.d/conda.sh"'
            edits = (Edit(line, (source,), inserts=True),)
            yield find("conda-not-initialised", line, edits)
            return


def _modules(context: Context) -> Iterator[Complaint]:
    """Find `module` commands in scripts that run in a shell other than bash."""
    if context.script.scheduler in ("pbs", "sge"):  # of qsub, -S counts, whatever `#!` says
        is_sh = re.fullmatch(r"\S*/(?:sh|dash)", context.request.value("S") or "")
    else:
        is_sh = PLAIN_SH.fullmatch(context.script.shebang)
    if not is_sh:
        return
    for start in context.script.starts:
        words = _words(start)
        if words[0] in ("source", "."):
            return
        if words[0] in ("module", "ml"):
            edits = (Edit(1, ("#!/bin/bash",)),) if context.is_slurm else ()
            yield find("module-in-sh", start.line, edits)
            return


def _setenv(context: Context) -> Iterator[Complaint]:
    """Find csh's `setenv` in scripts that bash or sh runs."""
    chosen = context.request.value("S") if context.script.scheduler in ("pbs", "sge") else None
    shell = re.search(
        r"(?:^|[/\s])(bash|sh|dash|zsh|ksh)(?:\s|$)", chosen or context.script.shebang
    )
    if shell is None or re.search(r"\bsetenv\s*\(\)|\bfunction\s+setenv\b", context.script.text):
        return
    # Without -S, qsub may take the user's shell, whatever `#!` says.
    is_note = chosen is None and context.script.scheduler in ("pbs", "sge")
    for command in context.script.commands:
        if len(command.words) < 2 or command.words[0].raw != "setenv" or command.is_conditional:
            continue
        text = context.line(command.line)
        mended = re.sub(
            r"^(\s*)setenv\s+(\w+)\s+(\"[^\"]*\"|'[^']*'|\S+)\s*$", r"\g<1>export \g<2>=\g<3>", text
        )
        edits = (Edit(command.line, (mended,)),) if mended != text else ()
        yield find(
            "setenv-in-bash", command.line, edits, is_note, shell=shell[1],
            name=command.words[1].text,
        )  # fmt: skip


def _exported(context: Context) -> Iterator[Complaint]:
    """Find `--export=NONE`, or a list of variables, which srun's tasks inherit."""
    if not context.is_slurm:
        return
    value = context.request.value("export")
    if value is None or value.upper().startswith(("ALL", "NIL")):
        return
    if context.script.uses("SLURM_EXPORT_ENV"):
        return
    for start in context.script.starts:
        srun = start.stage("srun")
        if srun is None or srun.has("export"):
            continue
        last = start.stages[-1]
        typed = last.place.word.text if last.place else ""
        if last.kind == "program" and ("/" in typed or typed.startswith("$")):
            continue  # a program with a path of its own may need nothing of the environment
        edits = (Edit(start.line, ("export SLURM_EXPORT_ENV=ALL",), inserts=True),)
        yield find("export-none", start.line, edits, value=value)
        return


def _other_python(context: Context) -> Iterator[Complaint]:
    """Find calls of a Python that is not the one of the activated environment."""
    environment = ""
    for start in context.script.starts:
        words = _words(start)
        if words[0] in ("source", ".") and words[1:] and ACTIVATES.search(words[1]):
            environment = words[1].removesuffix("bin/activate").rstrip("/")
        elif words[0] in ("conda", "mamba") and words[1:2] == ["activate"]:
            environment = words[2] if len(words) > 2 else "base"
        elif words[0] in ("deactivate",):
            environment = ""
        elif words[0] in ("module", "ml") and environment:
            loaded = [each for each in words[1:] if PYTHON_MODULE.search(each)]
            if loaded and words[1:2] != ["unload"] and _python_follows(context, start.line):
                yield find("other-python", start.line, what=f"module {loaded[0]}",
                           environment=environment)  # fmt: skip
        python = start.python
        if python is None or python.place is None or not environment or start.stage("wrapper"):
            continue
        typed = python.place.shown
        if typed.startswith("/") and environment not in typed and "$" not in typed:
            text = context.line(start.line)
            mended = text.replace(typed, "python", 1)
            edits = (Edit(start.line, (mended,)),) if mended != text else ()
            yield find("other-python", start.line, edits, what=typed,
                       environment=environment)  # fmt: skip


def _python_follows(context: Context, line: int) -> bool:
    return any(start.line > line for start, _ in context.pythons)


def _folders(context: Context) -> Iterator[Complaint]:
    """Find folders that do not exist, or that are created after Slurm has needed them."""
    made: set[str] = set()
    for start in context.script.starts:
        words = _words(start)
        if words[0] == "mkdir":
            made |= {each.rstrip("/") for each in words[1:] if not each.startswith("-")}
        if words[0] == "cd" and len(words) == 2 and not start.command.is_conditional:
            folder = words[1].rstrip("/")
            if folder.startswith("/") and "$" not in folder and folder not in made:
                path = Path(folder)
                if _is_absent(path):
                    yield find("missing-folder", start.line, folder=folder, parent=path.parent)
    if context.is_slurm:
        for name in ("output", "error"):
            option = context.request.options.get(name)
            if option is not None and context.makes_log_folder(option):
                folder = (option.value or "").rpartition("/")[0]
                yield find("log-folder-too-late", option.line, folder=folder)
                return


def _is_absent(path: Path) -> bool:
    """Return whether a folder is certainly missing: its parent exists here, without it."""
    try:
        return len(path.parts) > 2 and path.parent.is_dir() and not path.exists()
    except (OSError, ValueError):
        return False


def _home(context: Context) -> Iterator[Complaint]:
    """Find relative program paths in PBS and Grid Engine jobs, which start in the home folder."""
    scheduler, request = context.script.scheduler, context.request
    if scheduler not in ("pbs", "sge"):
        return
    moves = {"cwd", "wd"} if scheduler == "sge" else {"d", "w"}
    if moves & set(request.options) or "wd" in request.resources:  # NCI's `-l wd`
        return
    if any(_words(start)[0] in ("cd", "pushd") for start in context.script.starts):
        return
    for start, stage in context.pythons:
        if stage.is_module or stage.script.startswith(("/", "$", "~", "path/")):
            continue
        line = context.script.first_command or start.line
        if scheduler == "pbs":
            edits = (Edit(line, ('cd "$PBS_O_WORKDIR"',), inserts=True),)
        else:
            edits = (Edit(line, ("#$ -cwd",), inserts=True),)
        mend = edits[0].new[0]
        yield find("starts-at-home", start.line, edits, script=stage.script, mend=mend)
        return
