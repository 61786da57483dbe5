"""Each sentence of `Security` in docs/your-cluster.md, held to."""

from __future__ import annotations

import ast
import json
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import make_results
import pytest
import yaml
from conftest import FakeSlurm
from pydantic import ValidationError

from hpcncf.cli import main
from hpcncf.errors import HpcncfError, UsageError
from hpcncf.job import load
from hpcncf.job.load import YamlLoader
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec
from hpcncf.launch.submit import submit
from hpcncf.local import machine
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import record_plan
from hpcncf.records.schema import RankRecord, read_record, write_record
from hpcncf.records.submissions import begin, read_submissions, user
from hpcncf.slurm.batch_script import guard_line, make_private_folder
from hpcncf.slurm.site import load_site

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "hpcncf").rglob("*.py"), *(ROOT / "analysis").rglob("*.py")])
EVIL = "<script>alert('x')</script>\"'&<img src=x onerror=y>"
SECRET = "hush-" + secrets.token_hex(8)  # drawn: a snapshot of changes here must not hold it

# What executes what it reads.
LOADERS = {
    "pickle": {"load", "loads", "Unpickler"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "cloudpickle": {"load", "loads"},
    "joblib": {"load"},
    "yaml": {"unsafe_load", "full_load", "unsafe_load_all", "full_load_all", "load_all"},
    "os": {"system", "popen"},
    "pd": {"read_pickle"},
}
MODULES = {"dill", "cloudpickle", "joblib", "shelve", "marshal"}


def problems(source: str) -> Iterator[str]:
    """What in a module's text executes data, or leaves it to a shell."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name.split(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
            yield from (f"import {name}" for name in names & MODULES)
        elif isinstance(node, ast.Call):
            yield from _call(node)


def _call(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    given = {one.arg: ast.unparse(one.value) for one in node.keywords}
    module, _, name = called.rpartition(".")
    if called in ("eval", "exec", "compile") or name in LOADERS.get(module, ()):
        yield called
    if called == "torch.load" and given.get("weights_only") != "True":
        yield "torch.load without weights_only"
    if called == "np.load" and given.get("allow_pickle") != "False":
        yield "np.load without allow_pickle"
    if called == "yaml.load" and [ast.unparse(each) for each in node.args[1:]] != ["YamlLoader"]:
        yield "yaml.load without our YamlLoader"
    if module == "subprocess" and given.get("shell", "False") != "False":
        yield f"{called} with a shell"


# `hpcncf.submit` pickles functions, for their user alone: tests/process/test_function.py.
PICKLED = {
    "hpcncf/worker/call.py": ["import cloudpickle", "pickle.loads", "pickle.loads"],
    "hpcncf/worker/unpicklable.py": ["import cloudpickle"],
}
# The probe runs its own files, without names that a program could import, and gives a function of
# torch the code of its own wrapper: no text that a run has written.
OWN_CODE = {
    "hpcncf/probe/inject/sitecustomize.py": ["exec"],
    "hpcncf/probe/inject/_hpcncf_probe/__init__.py": ["exec"],
    "hpcncf/probe/inject/_hpcncf_probe/seams.py": ["compile"],
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_our_code_executes_nothing_that_it_reads(path: Path) -> None:
    allowed = (PICKLED | OWN_CODE).get(str(path.relative_to(ROOT)), [])
    assert list(problems(path.read_text())) == allowed


@pytest.mark.parametrize(
    "line",
    [
        "eval(x)",
        "pickle.load(f)",
        "import dill",
        "from joblib import load",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f)",
        "yaml.load(f, yaml.Loader)",
        "yaml.full_load(f)",
        "subprocess.run(x, shell=True)",
        "os.system(x)",
    ],
)
def test_what_would_is_found(line: str) -> None:
    assert len(list(problems(line))) == 1


def test_yaml_is_read_by_a_safe_loader(tmp_path: Path) -> None:
    assert issubclass(YamlLoader, yaml.SafeLoader)
    evil = f"!!python/object/apply:os.system ['touch {tmp_path}/done']\n"
    for name, read in (
        ("job.yaml", load.load_job),
        ("site.yaml", lambda p: load_site(str(p))),
    ):
        path = tmp_path / name
        path.write_text(f"name: {evil}")
        with pytest.raises(UsageError, match="not readable as YAML"):
            read(path)
    assert not (tmp_path / "done").exists()


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """submitit's folder below results."""
    folder = tmp_path / "results/slurm-me"
    folder.parent.mkdir(mode=0o755)
    make_private_folder(folder)
    return folder


def test_submitits_folder_is_its_users_alone(own_folder: Path, tmp_path: Path) -> None:
    """People who share results may share a group, and /tmp is for everybody."""
    assert own_folder.stat().st_mode & 0o777 == 0o700
    for mode in (0o2775, 0o1777):
        own_folder.parent.chmod(mode)
        make_private_folder(own_folder)
    own_folder.parent.chmod(0o777)
    with pytest.raises(HpcncfError, match="everybody may rename what is in it"):
        make_private_folder(own_folder)
    own_folder.parent.chmod(0o755)
    for mode in (0o770, 0o702, 0o750, 0o777):
        own_folder.chmod(mode)
        with pytest.raises(HpcncfError, match=rf"others may use it \(mode {mode:04o}"):
            make_private_folder(own_folder)
    own_folder.rename(tmp_path / "moved")
    own_folder.symlink_to(tmp_path / "moved")
    with pytest.raises(HpcncfError, match=r"a link or a file.*nothing is submitted"):
        make_private_folder(own_folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_of_another_user_is_refused(own_folder: Path) -> None:
    os.chown(own_folder, 12345, 12345)
    with pytest.raises(HpcncfError, match=r"belongs to another user \(id 12345\)"):
        make_private_folder(own_folder)


def test_a_local_queue_unpickles_nothing_from_such_a_folder_either(tmp_path: Path) -> None:
    paths = ResultPaths(tmp_path / "results")
    paths.submitit(user()).mkdir(parents=True, mode=0o770)
    paths.submitit(user()).chmod(0o770)
    file = begin(paths, "local", ["0123456789ab"], False)
    with pytest.raises(HpcncfError, match="others may use it"):
        machine.start(paths, file)


@pytest.mark.parametrize("name", ["slurm-me", "it's $(touch pwned)", "two words"])
def test_a_job_starts_only_with_its_users_own_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name

    def exit_code() -> int:
        script = f"{guard_line(folder)}\nexit 42"
        return subprocess.run(["bash", "-c", script], check=False, capture_output=True).returncode

    folder.mkdir()
    assert exit_code() == 42
    folder.rename(tmp_path / "moved")
    assert exit_code() == 1
    folder.symlink_to(tmp_path / "moved")
    assert exit_code() == 1
    assert not list(tmp_path.glob("**/pwned"))


Planned = tuple[ResultPaths, JobSpec, Plan]


@pytest.fixture
def planned(job_file: Callable[[str], Path]) -> Planned:
    path = job_file("")
    job, paths = load.load_job(path), ResultPaths(path.parent / "results")
    return paths, job, record_plan(paths, job, load.build_plan(job, path))


def test_nothing_is_sent_from_a_folder_that_others_may_use(
    planned: Planned, fake_slurm: FakeSlurm
) -> None:
    paths, job, plan = planned
    paths.submitit(user()).mkdir(mode=0o777)
    paths.submitit(user()).chmod(0o777)
    with pytest.raises(HpcncfError, match="others may use it"):
        submit(paths, job, plan, "slurm")
    assert fake_slurm.submitted == []
    (submission,) = read_submissions(paths).submissions
    assert "others may use it" in str(submission.error)


def test_files_are_named_by_hashes_whatever_the_values_are(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: a\nworkload: {command: [echo, '{x}']}\nparameters: {x: a}\n"
        "grid: {parameters.x: ['../../../etc/passwd', 'a b', '$(id)', '/']}\n"
    )
    plan = load.build_plan(load.load_job(path), path)
    assert len({run.id for run in plan.runs}) == 4
    assert all(re.fullmatch("[0-9a-f]{12}", run.id) for run in plan.runs)


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a\nb", "$(id)"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"name: {json.dumps(name)}\ndata: {{path: x}}\n")
    with pytest.raises(UsageError, match="name"):
        load.load_job(path)
    plain = make_results.plan_of(make_results.demo(tmp_path)).runs[0].model_dump()
    with pytest.raises(ValidationError):
        Run.model_validate(plain | {"id": name.replace(".hidden", "..")})


def test_a_report_shows_whatever_a_record_says_as_text(tmp_path: Path) -> None:
    """Everything in a record can be written by whoever may write to the results."""
    paths = make_results.demo(tmp_path, repeats=1)
    runs = make_results.plan_of(paths).runs
    make_results.complete(paths, runs[1:])
    for run in runs[1:]:
        for file in paths.run(run.id).attempt(1).rank_records():
            record = read_record(file, RankRecord)
            about = {"cpu_model": EVIL, "commit": EVIL, "python": EVIL, "torch": EVIL}
            changes = {"node": EVIL, "warnings": [EVIL], "environment": about}
            write_record(file, record.model_copy(update=changes))
    failed = {"type": EVIL, "message": EVIL, "traceback": EVIL}
    make_results.leave(paths, runs[0], outcome="failed", exit_code=1, error=failed, node=EVIL)
    manifest = make_results.manifest(title=EVIL)
    (tmp_path / "data/manifest.json").write_text(manifest.model_dump_json())
    assert main(["report", str(paths.folder)]) == 3
    html = (paths.report / "report.html").read_text()
    own = (files("hpcncf_analysis.report") / "templates/report.js").read_text().strip()
    assert "<script" not in html.replace(f"<script>{own}</script>", "")
    assert "<img src=x" not in html
    assert html.count("&lt;script&gt;") >= 3
    markdown = (paths.report / "report.md").read_text()
    outside = re.sub(r"(?ms)^```.*?^```$", "", markdown)  # code, whose every line begins with a #
    assert not re.search(r"(?<!\\)<(script|img)", outside)
    seen = [line for line in markdown.splitlines() if "alert(" in line and line not in outside]
    assert all(line.startswith("#") for line in seen)
    for svg in (paths.report / "figures").glob("*.svg"):
        assert "<script" not in svg.read_text()


def test_slurm_gets_no_secret_of_the_environment_and_files_are_their_users_alone(
    planned: Planned, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch scripts (a site's `environment`), logs, pickles."""
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    paths, job, plan = planned
    submit(paths, job, plan, "slurm")
    assert fake_slurm.submitted
    files = [path for path in paths.folder.parent.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET in path.read_text("latin-1")]
    assert paths.submitit(user()).stat().st_mode & 0o077 == 0
