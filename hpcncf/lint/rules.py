"""What `hpcncf lint` finds, and what to do instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from hpcncf.batch.edits import Edit
from hpcncf.text import pluralize

DRAW_NEGATIVES: Final = "Draw negatives for a whole batch at once: hpcncf.remedies.NegativeSampler"
# In the order of docs/lint.md.
RULES: Final = {
    "set-difference": "builds a list of all items except the user's to draw a few of them. "
    f"{DRAW_NEGATIVES}",
    "pandas-per-sample": ".{name} goes through pandas for each sample. Convert the columns to "
    "arrays once, in __init__ (`self.users = frame['user'].to_numpy()`)",
    "tensor-per-sample": "creates a tensor for each sample, by {name}(). Index tensors created "
    "once, or add `__getitems__`, which creates a whole batch",
    "no-shuffle": "DataLoader without shuffle=True or a sampler gives the rows in the same order "
    "in every epoch. Set one of the two",
    "no-set-epoch": "every epoch has the order of epoch 0. Call sampler.set_epoch(epoch) before "
    "each epoch",
    "kept-graph": "keeps the graph of every step, and memory grows. Keep `loss.detach()`",
    "synchronised-step": ".item() in every step makes the GPU's launches wait for its results; on "
    "a CPU it costs nothing. Sum `loss.detach()`, and call .item() once in a while",
    "checkpoint-each-step": "writes the whole model in every step. Write it once in an epoch or "
    "every few minutes: `if step % 1000 == 0:`",
    "dense-embedding": "{optimizer} updates all {rows:,} rows in every step, although a batch "
    "reads few of them. hpcncf.remedies.rowwise updates only those, with the result of Adam or "
    "AdamW for all",
    "data-parallel": "drives all GPUs from one process, which copies the model to each of them in "
    "every step; on CPUs it adds nothing. Use DistributedDataParallel with one process per GPU, "
    "started by torchrun",
    "anomaly-detection": "keeps a traceback of each forward operation and checks each gradient "
    "for NaN: small steps take a multiple of their time. Use it to find an error, then train "
    "without",
    "layer-size": "{sizes}: tensor cores take float16 and bfloat16 in multiples of {multiple}. "
    "Use {larger}",
    "too-many-workers": "{workers} workers and the rank itself are {processes} processes on "
    "{cores}. Request {workers} cores per task, or set the number to {most}",
    "fixed-port": "every task of the array uses port {port}, so two tasks on one node fail or mix "
    "up their ranks. Derive the port from the job: MASTER_PORT=$((12000 + SLURM_JOB_ID % 20000))",
    "too-many-threads": "{threads} threads oversubscribe the {cores} of each task. Set the number "
    "to {mend}",
    "old-launcher": "torch.distributed.launch is deprecated. Use torchrun with the same options, "
    "and read the local rank from the environment variable LOCAL_RANK instead of --local-rank",
    # Directives
    "dos-line-ends": "lines end as on Windows (CR LF): sbatch refuses the script (DOS line "
    "breaks), other shells look for `python\\r`. Run `dos2unix` on the file",
    "byte-order-mark": "a byte order mark stands before `#!`: sbatch says that this does not look "
    "like a batch script. Save the file as UTF-8 without it",
    "no-shebang": "sbatch refuses a script whose very first line is not `#!` and an interpreter",
    "null-character": "the script contains a NUL character, which Slurm's controller refuses",
    "after-command": "{command} reads directives up to the first command, in line {first}: this "
    "one is ignored. Move it up",
    "commented-directive": "is a comment, although the script relies on it. A directive begins "
    "with {prefix}",
    "directive-spelling": "is a comment to the scheduler: a directive begins with {prefix}, in "
    "capitals, in the first column",
    "stray-word": "sbatch stops at the word {word!r}: it refuses the script (invalid directive), "
    "or in older versions ignores all directives from here on. Quote a value with blanks, and "
    "put `#` before a remark",
    "wrong-dash": "{word!r} does not begin with the ASCII dash, as text copied from a web page or "
    "an editor: {command} refuses it or ignores it",
    "single-dash": "{word} has one dash: sbatch reads it as -{letter} with the value {rest!r}",
    "equals-sign": "a short option takes its value without `=` (-c 4), a long one without blanks "
    "around it (--mem=4G): sbatch takes the sign for a part of the value, and refuses most",
    "unknown-option": "sbatch has no option {word} and refuses the script. --{meant} is meant",
    "open-quote": "a quote ({quote}) is opened and not closed: {command} refuses the script",
    "continued-directive": "directives are not continued by a backslash: {command} reads the next "
    "line as a command. Begin that line with a directive of its own",
    "variable-in-directive": "{command} reads directives before the script runs: {value} is taken "
    "as it is written. {mend}, or give the option to {command} itself",
    "time-format": "{command} does not take {value!r} as a time. Slurm: minutes, hours:minutes:"
    "seconds or days-hours; LSF: [hours:]minutes",
    "memory-format": "sbatch takes whole numbers with K, M, G or T, and refuses {value!r}",
    "memory-unit": "a number without a unit is in {unit}: {said} is less than the job needs. Add "
    "the unit",
    "memory-per-core": "{name} is for each of {cores}: {value} each are {total} together, which "
    "few nodes have: the job may wait forever. If {value} is the whole, request {each} each",
    "time-unit": "{value} is {really}, after which the job is ended. Hours are written {hours}",
    "array-syntax": "{command} refuses {value!r} as the tasks of an array. {mend}",
    "option-twice": "--{name} is given in line {earlier} ({before}) and here: the later one, "
    "{value}, counts",
    "exclusive-options": "{options} exclude each other: sbatch refuses the script",
    "tasks-contradict": "{tasks} on {nodes} with {per_node} per node do not fit together: "
    "--ntasks counts, and --ntasks-per-node is then only the most. Ranks that are expected do not "
    "start, and the others wait for them",
    "whole-node": "{option} takes all of a node, for a process that asks for one core: nobody "
    "else can use the rest. Ask for the memory that it needs, or for more cores",
    "beside-select": "PBS takes {name} as part of a chunk (select=1:...:{name}=...), and refuses "
    "it beside select (PBS Professional User's Guide, section 4.3)",
    "no-limits": "neither time nor memory is requested: the site's defaults, often minutes and "
    "one or two gigabytes, end the job. {scheduler} takes both",
    # Tasks and processes
    "ranks-without-launcher": "starts one process, but {tasks} tasks are requested. Start it with "
    "srun or torchrun",
    "tasks-for-threads": "starts one process, for which {tasks} tasks are requested: tasks are "
    "processes, not cores, and may lie on several nodes; srun would start {tasks} equal copies. "
    "Request one task with {cores} cores",
    "one-task-for-nodes": "starts on the first of {nodes} nodes only. Start it with {launcher}, "
    "or request one node",
    "copies-by-srun": "srun starts {tasks} equal copies of a program that knows nothing of ranks. "
    "Start one (srun --ntasks=1), or request one task with more cores",
    "torchrun-per-task": "srun starts torchrun in each of {tasks} tasks of a node, and torchrun "
    "starts processes of its own: {processes} on a node, which fight for one port. Request one "
    "task per node (--ntasks-per-node=1) with all its cores",
    "srun-in-loop": "srun without --ntasks starts {tasks} copies in each turn, one for each task "
    "of the job. Use srun --ntasks=1 --exact",
    "steps-wait": "the step takes all {what} of the job, so that steps beside it wait "
    "(`step creation temporarily disabled`) and run one after another. Add {option}",
    "step-too-large": "srun asks for {needed} processors of a job with {allocated}: Slurm refuses "
    "the step (`More processors requested than permitted`)",
    "srun-without-cores": "srun of Slurm 22.05 to 23.02 does not inherit --cpus-per-task from "
    "sbatch: a bound task has 1 of its {cores} cores. Use srun "
    "--cpus-per-task=$SLURM_CPUS_PER_TASK",
    "idle-tasks": "starts {used} of the {tasks} tasks that are requested; the others idle",
    "mpirun-slots": "Open MPI takes one slot for each {what}: {ranks} ranks, {tasks}: "
    "`There are not enough slots available`. Request {mend}",
    "slots-on-several-hosts": "{request} may give slots on several hosts, and this is one process "
    "on the first. Request {mend}",
    "no-wait": "the script ends while this runs in the background, and the scheduler ends the job "
    "with all its processes. Add `wait` as the last line",
    # Ranks
    "rendezvous-localhost": "{what}: each of {nodes} nodes waits for itself, or trains for "
    "itself. Ranks meet at the first node, whose name the batch script can find out",
    "node-rank-fixed": "each of {nodes} nodes is told that it is node {rank}. Use "
    "--rdzv_backend=c10d, or `srun bash -c '... --node_rank=$SLURM_NODEID ...'`",
    "rank-expanded-early": "{variable} is filled in by the batch script's shell before srun "
    "starts the tasks: 0 in all of them. Set it inside each task: srun bash -c '...'",
    "master-addr-per-task": "each of {tasks} takes its own host name for that of rank 0. Set it "
    "in the batch script, before srun",
    "world-size-differs": "{said}, but {really}: ranks wait for others that never come, or are "
    "left out",
    "lightning-tasks": "Lightning's Trainer has {setting}={wanted}, but srun starts {really}: "
    "Lightning wants one task for each device, and refuses other numbers. Request {mend}",
    "no-rendezvous": "the program asks the environment for MASTER_ADDR, MASTER_PORT, RANK and "
    "WORLD_SIZE, and srun sets none of them. Start it with torchrun, or set them in each task",
    "same-port": "several launchers on one node use port {port}: the second one ends with "
    "`Address already in use`. Use torchrun --standalone, or a port for each",
    # Threads and workers
    "threads-of-node": "{counted} counts all cores of the node or the job, also those of other "
    "ranks and users. Use {mend}",
    "too-few-threads": "{threads} on {cores} cores: a single process leaves the others idle. Use "
    "as many threads as cores, or request fewer",
    "processes-times-threads": "{processes} processes with {threads} each on {cores}: they take "
    "turns. Set OMP_NUM_THREADS={fitting}",
    "ranks-above-cores": "{ranks} on {cores}: they take turns, unless the site gives cores with "
    "a GPU. Request --cpus-per-task={ranks_number} or more",
    "pool-too-large": "{where} starts {processes} processes on {cores}: they take turns, and each "
    "takes memory. Request {processes} cores per task, or start as many as there are: {mend}",
    "foreign-variable": "{name} {why}: it is empty here{mend}",
    "unset-variable": "{name} is not set, because no directive gives --{option} (unless sbatch's "
    "own line does): it is empty here",
    # GPUs
    "gpu-unused": "a GPU is requested, and {why} keeps the program from using it",
    "gpu-not-requested": "{said}, but no GPU is requested{why}. Add {mend}",
    "hidden-gpus": "CUDA_VISIBLE_DEVICES={value} where {gpus} requested, which the program may "
    "number from 0: {what}. Leave the variable to the scheduler",
    "fewer-gpus-than-ranks": "{ranks} on {gpus}: ranks without one of their own fail, or share it",
    "idle-gpus": "{by} {used} of the {gpus} GPUs of a node",
    "cuda-visible-devices": "CUDA_VISIBLE_DEVICES={value} by hand: the scheduler sets it to the "
    "job's GPUs, which it may number from 0, and number {value} may be another job's or none",
    # Arrays
    "array-index-unused": "no task of the array reads its index ({variable}): all do the same "
    "work. Pass it to the program, unless the program reads it itself",
    "array-one-log": "all tasks of the array write to {file}, and overwrite each other or mix "
    "their lines. Add the task's index to the name",
    "array-too-large": "index {largest}: Slurm's default limit (MaxArraySize=1001) refuses more "
    "than 1000; `scontrol show config` shows the site's. Let a task do several",
    "array-throttle": "%1 runs the {tasks} tasks one after another",
    # Environment
    "conda-not-initialised": "a batch shell reads no .bashrc, so that conda's shell function is "
    "not defined: `conda activate` fails, and the script goes on with another Python",
    "module-in-sh": "`module` is a function of bash: /bin/sh, which is dash on Debian and Ubuntu, "
    "does not have it",
    "setenv-in-bash": "`setenv` is a command of csh: {shell} does not have it, {name} is not set, "
    "and the script goes on. Use `export {name}=...`",
    "export-none": "srun inherits --export={value}: its tasks get neither PATH nor what the "
    "script has set since",
    "other-python": "{what} is not the Python of {environment}, which is active: its packages are "
    "not found, or others",
    "missing-folder": "{parent} has no folder of that name, so that cd fails and the script goes "
    "on where it was",
    "log-folder-too-late": "Slurm opens the log before the script makes {folder}: without it the "
    "job fails (exit code 0:53) and leaves no log. Make it before sbatch",
    "starts-at-home": "the job starts in the home folder, where {script} is not. Add `{mend}`",
}
# True at some sites and versions only: they do not count as faults.
NOTES: Final = frozenset(
    {"srun-without-cores", "array-too-large", "module-in-sh", "no-limits", "ranks-above-cores"}
)
THREAD_VARIABLES: Final = frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"})


@dataclass(frozen=True, order=True)
class Complaint:
    """A line that costs speed, memory or correctness, and what to do instead."""

    line: int
    """From 1."""
    rule: str
    message: str
    edits: tuple[Edit, ...] = field(default=(), compare=False)
    """The lines as they should be, where that is known."""

    is_note: bool = field(default=False, compare=False)
    """Whether it depends on the site or on the scheduler's version, as all of some rules do."""

    @property
    def level(self) -> Literal["warning", "note"]:
        return "note" if self.is_note or self.rule in NOTES else "warning"


@dataclass(frozen=True)
class ProgramContext:
    """Facts about a program from its other files."""

    cores: int | None = None
    """Of one rank, if they are known."""
    sets_epoch: bool = False
    in_array: bool = False
    """Whether a job array starts it."""


def complain(line: int, rule: str, **values: object) -> Complaint:
    """Build a complaint; `values` fill the placeholders of the rule's message."""
    return Complaint(line, rule, RULES[rule].format(**values))


def too_many_workers(line: int, workers: int, cores: int | None) -> list[Complaint]:
    """Return a complaint if there are more workers than cores; empty if cores is None.

    A rank whose workers are busy waits for them.
    """
    if cores is None or workers <= cores:
        return []
    return [
        complain(
            line,
            "too-many-workers",
            workers=workers,
            processes=workers + 1,
            cores=pluralize(cores, "core"),
            most=max(cores - 1, 1),
        )
    ]


def too_many_threads(
    line: int, threads: int | None, cores: int | None, mend: str = "SLURM_CPUS_PER_TASK"
) -> list[Complaint]:
    """Return a complaint if there are more threads than cores; empty if either is unknown.

    `mend`: the variable that holds the number of cores.
    """
    if not threads or cores is None or threads <= cores:
        return []
    values = {"threads": threads, "cores": pluralize(cores, "core"), "mend": mend}
    return [complain(line, "too-many-threads", **values)]
