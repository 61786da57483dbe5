"""Conflicting settings are refused with a reason, and so are runs that cannot fit into memory."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

import pytest
import yaml
from make_results import manifest

from hpcncf.cli import main
from hpcncf.job.spec import Model, Resources, Training
from hpcncf.job.validate import (
    describe_gloo_choice,
    describe_no_effect,
    describe_shared_memory,
    find_conflicts,
    instances_at_once,
    memory_conflicts,
    model_bytes,
    step_bytes,
)

GPU = Resources(gpus_per_node=1)
GRAPH = "cuda_graph=true"
PAIR = methodcaller("partition", "=")
SMALL = Model(gmf_width=1, mlp_width=2, layers=(3,))


def settings(text: str) -> tuple[Resources, Training]:
    """`cpus_per_task=2 threads=3` as resources and training settings."""
    values = {key: yaml.safe_load(value) for key, _, value in map(PAIR, text.split())}
    resources = {key: values.pop(key) for key in set(values) & set(Resources.model_fields)}
    return Resources(**resources), Training(**values)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("device=cuda", "gpus_per_node"),
        ("backend=nccl", "gloo"),
        ("tasks_per_node=2 gpus_per_node=1 backend=nccl", "two ranks on one GPU"),
        ("cpus_per_task=2 threads=3", "cpus_per_task 2"),
        ("num_workers=1", "num_workers"),
        ("loader=device num_workers=1", "no effect with loader device"),
        ("loader=device pin_memory=true", "device that trains"),
        ("engine=native loader=device", "the same instances"),
        ("profile=py-spy profile_steps=5", "profile_steps has no effect"),
        ("profile=torch profile_rate=50", "profile_rate has no effect"),
        ("profile_ranks=all", "profile none"),
        ("tasks_per_node=3 cpus_per_task=2 loader=batched num_workers=4", "12 workers on 6 cores"),
        ("loader=batched prefetch_factor=4", "num_workers is 0"),
        ("tasks_per_node=4 global_batch_size=3", "4 ranks"),
        ("tasks_per_node=2 engine=rowwise", "Use sync rows"),
        ("nodes=2 engine=native", "Use sync rows"),
        ("sync=rows", "Use engine rowwise"),
        ("engine=native loader=batched", "the same instances"),
        ("gpus_per_node=1 engine=native", "native runs on CPUs"),
        ("gpus_per_node=1 engine=rowwise", "rowwise runs on CPUs"),
        ("weight_decay=0.1 engine=native", "every row in every step"),
        ("optimizer=sgd sparse=true engine=rowwise", "whole tables"),
        ("adam=fused engine=rowwise", "engine rowwise"),
        ("optimizer=sgd adam=foreach", "optimizer sgd"),
        ("sparse=true", "updates every row"),
        ("optimizer=lazy_adam", "sparse: true"),
        ("tasks_per_node=2 gpus_per_node=2 optimizer=lazy_adam sparse=true", "dense gradients"),
        ("accumulate=2 engine=rowwise", "mathematically the same"),
        ("engine=native compile=inductor", "no torch module"),
        ("engine=rowwise compile=reduce-overhead", "no torch module"),
        ("engine=native precision=bfloat16", "float32"),
        ("engine=rowwise precision=float16", "float32"),
        (GRAPH, "trains on a CPU"),
        (f"gpus_per_node=1 {GRAPH} compile=inductor", "Use compile: reduce-overhead"),
        (f"gpus_per_node=1 {GRAPH} optimizer=sgd sparse=true", "sparse gradients"),
        (f"gpus_per_node=2 {GRAPH} parallel=data_parallel", "copies the module"),
        (f"gpus_per_node=1 {GRAPH} profile=torch", "without their operations"),
        (f"tasks_per_node=2 gpus_per_node=2 {GRAPH}", "middle of a graph"),
        ("optimizer=lazy_adam sparse=true precision=float16", "two torch optimizers"),
        ("engine=rowwise parallel=data_parallel", "no torch module"),
        ("nodes=2 global_batch_size=8 accumulate=5", "exceeds the 4"),
        ("nodes=2 parallel=data_parallel", "one process for all GPUs"),
        ("parallel=data_parallel compile=torchscript", "in every step"),
        ("weight_decay=0.1 engine=rowwise", "every row in every step"),
        ("optimizer=sgd weight_decay=0.1 sparse=true", "sparse: true"),
        ("cpus_per_task=4 loader=per_sample num_workers=3", None),
        ("weight_decay=0.01 adam=fused", None),
        ("optimizer=sgd weight_decay=0.01", None),
        ("optimizer=sgd sparse=true", None),
        ("optimizer=lazy_adam sparse=true", None),
        ("compile=reduce-overhead", None),
        ("precision=float16", None),
        ("engine=rowwise", None),
        ("optimizer=lazy_adam engine=rowwise", None),
        ("optimizer=sgd engine=rowwise", None),
        ("engine=native", None),
        ("optimizer=lazy_adam engine=native", None),
        ("optimizer=sgd engine=native", None),
        (f"gpus_per_node=1 {GRAPH}", None),
        (f"gpus_per_node=1 {GRAPH} loader=device precision=float16", None),
        (f"gpus_per_node=1 {GRAPH} adam=fused accumulate=4", None),
    ],
)
def test_conflicting_settings_are_refused_with_the_reason(text: str, word: str | None) -> None:
    reasons = find_conflicts(*settings(text))
    assert len(reasons) == (word is not None)
    assert all(word in reason for reason in reasons if word)


@pytest.mark.parametrize(
    ("text", "backend", "reason"),
    [
        ("", "gloo", None),
        ("gpus_per_node=1", "nccl", None),
        ("tasks_per_node=2 gpus_per_node=1", "gloo", "2 ranks share 1 GPU on each node"),
        ("tasks_per_node=4 gpus_per_node=2 ranks_per_gpu=2", "gloo", "4 ranks share 2 GPUs"),
        ("tasks_per_node=2 gpus_per_node=2", "nccl", None),
        ("tasks_per_node=2", "gloo", None),
        ("tasks_per_node=2 gpus_per_node=1 device=cpu", "gloo", None),
        ("tasks_per_node=2 gpus_per_node=1 backend=gloo", "gloo", None),
    ],
)
def test_ranks_with_a_gpu_each_get_nccl_and_others_gloo_with_a_notice(
    text: str, backend: str, reason: str | None
) -> None:
    resources, training = settings(text)
    assert find_conflicts(resources, training) == []
    assert training.backend_for(resources) == backend
    assert training.device_for(resources) == (
        "cuda" if "gpu" in text and "cpu" not in text else "cpu"
    )
    found = describe_gloo_choice(resources, training)
    assert found is None if reason is None else str(found).startswith(reason)


@pytest.mark.parametrize(
    ("training", "model", "word"),
    [
        (Training(engine="native"), Model(dropout=0.1), "Use engine rowwise"),
        (settings(GRAPH)[1], Model(dropout=0.1), "masks that replays draw"),
        (Training(engine="native"), Model(layers=(4,) * 17), "fewer layers"),
        (Training(engine="native"), Model(), None),
        (Training(engine="native"), Model(layers=(4,) * 16), None),
        (Training(engine="rowwise"), Model(dropout=0.1, layers=(4,) * 17), None),
    ],
)
def test_models_that_an_engine_cannot_train_are_refused(
    training: Training, model: Model, word: str | None
) -> None:
    reasons = find_conflicts(GPU if training.cuda_graph else Resources(), training, model)
    assert len(reasons) == (word is not None)
    assert all(word in reason for reason in reasons if word)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"runs_per_node": 2, "nodes": 2}, "runs_per_node places whole runs on one node"),
        ({"runs_per_node": 2, "launcher": "torchrun"}, "Use launcher srun"),
        ({"runs_per_gpu": 2}, "runs_per_gpu shares a GPU"),
        ({"mps": True}, "mps shares a GPU"),
        ({"runs_per_node": 3, "runs_per_gpu": 2, "gpus_per_node": 1}, "not a multiple of"),
        ({"ranks_per_gpu": 2, "gpus_per_node": 1}, "is 2 ranks on each node"),
        ({"ranks_per_gpu": 2, "gpus_per_node": 2, "tasks_per_node": 4}, None),
        ({"runs_per_node": 4, "runs_per_gpu": 2, "gpus_per_node": 1, "mps": True}, None),
    ],
)
def test_runs_that_cannot_share_a_node_are_refused(asked: dict[str, Any], word: str | None) -> None:
    reasons = find_conflicts(Resources(**asked))
    assert bool(reasons) == (word is not None)
    assert (word or "") in "; ".join(reasons)


def refused(
    model: Model | None = None, mem_gb: float = 4, ranks: int = 1, **training: Any
) -> list[str]:
    resources = Resources(tasks_per_node=ranks, mem_gb=mem_gb)
    return memory_conflicts(resources, Training(**training), model or Model())


def test_the_bytes_of_a_step_are_those_of_its_instances() -> None:
    """6 positives with 4 negatives are 30 instances; rowwise 16 indices + 12 row + 12 outputs."""
    training, resources = Training(global_batch_size=6, engine="rowwise"), Resources()
    assert instances_at_once(resources, training) == 30
    assert step_bytes(resources, training, SMALL) == 30 * 40
    plain = training.model_copy(update={"engine": "reference"})
    # 20 indices + two rows of 12 + the MLP's input of 16 + 12 outputs.
    assert step_bytes(resources, plain, SMALL) == 30 * 72
    parts = Training(global_batch_size=12, accumulate=3)
    assert instances_at_once(Resources(tasks_per_node=2), parts) == 2 * 5


def test_the_bytes_of_a_model_are_its_parameters_and_the_state_of_adam() -> None:
    """(2 + 3) rows of 3; (2 x 2 + 1 context + 1) x 3 + 1 + 3 + 1 in the layers: 38 parameters."""
    adam, sgd = Training(), Training(optimizer="sgd")
    assert model_bytes(adam, SMALL, users=2, items=3, context=1) == 38 * 4 * 4
    assert model_bytes(sgd, SMALL, users=2, items=3, context=1) == 38 * 4
    data = manifest()
    sizes = (data.users, data.items, len(data.context_columns))
    assert model_bytes(sgd, Model(), *sizes) == 4 * data.parameters


def test_runs_that_cannot_fit_into_memory_are_refused_with_numbers() -> None:
    """256 x 100,001 instances x 400 bytes are 9.5 GiB."""
    (reason,) = refused(engine="rowwise", negatives=100_000)
    assert "25,600,256 instances need at least 9.5 GiB" in reason
    assert "resources.mem_gb is 4" in reason
    assert not refused(engine="rowwise", negatives=100_000, mem_gb=10)
    assert refused(engine="rowwise", negatives=100_000, mem_gb=10, ranks=2, batch_size_per_rank=256)
    (reason,) = refused(Model(gmf_width=10**9), global_batch_size=1, negatives=1, engine="native")
    assert reason.startswith("model: ")


@pytest.mark.parametrize("settings", [{}, {"global_batch_size": 100_000}, {"negatives": 999}])
def test_usual_settings_fit_into_memory(settings: dict[str, Any]) -> None:
    assert not refused(**settings)


def test_the_memory_of_a_gpu_is_not_part_of_the_request() -> None:
    assert not memory_conflicts(GPU, Training(negatives=100_000), Model())


def test_plan_refuses_a_run_that_cannot_fit(
    job_file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for setting in ("model.gmf_width=1000000000", "training.negatives=10000000"):
        assert main(["plan", str(job_file()), "-s", setting]) == 2
        assert "GiB on each of 1 rank of a node" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"num_workers": 4, "prefetch_factor": 2}, False),
        ({"num_workers": 4, "prefetch_factor": 2000}, True),
        ({"loader": "vectorized"}, False),
    ],
)
def test_batches_of_workers_may_not_fill_half_of_the_memory(
    settings: dict[str, Any], warns: bool
) -> None:
    training = Training(**{"loader": "batched", "global_batch_size": 4096, **settings})
    found = describe_shared_memory(Resources(mem_gb=1, cpus_per_task=4), training)
    assert (found is not None) == warns


@pytest.mark.parametrize(
    ("device", "engine", "given"),
    [
        ("cpu", "reference", {"pin_memory": True, "non_blocking": False}),
        ("cpu", "reference", {"prefetch_to_device": True}),
        ("cpu", "reference", {"parallel": "data_parallel"}),
        ("cpu", "native", {"omp_wait_policy": "active"}),
        ("cuda", "reference", {"cudnn_benchmark": True}),
    ],
)
def test_settings_without_effect_are_named(device: str, engine: str, given: dict[str, Any]) -> None:
    warnings = describe_no_effect(Training(engine=engine, **given), device)
    assert [each.split()[0] for each in warnings] == [f"training.{name}" for name in given]
    assert all("has no effect: " in each for each in warnings)


def test_settings_with_an_effect_are_not_warned_of() -> None:
    for device in ("cpu", "cuda"):
        assert (
            describe_no_effect(Training(engine="rowwise", omp_wait_policy="active"), device) == []
        )
    given = Training(pin_memory=True, prefetch_to_device=True, parallel="data_parallel")
    assert describe_no_effect(given, "cuda") == []
