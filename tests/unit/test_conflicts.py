"""What does not go together is refused with the reason; what does is not."""

from __future__ import annotations

from typing import Any

import pytest

from hpcncf.job.spec import Model, Resources, Training
from hpcncf.job.validate import training_conflicts, model_conflicts, describe_gloo_choice

GPU = Resources(gpus_per_node=1)
GRAPH = Training(engine="rowwise", loader="device", cuda_graph=True)


@pytest.mark.parametrize(
    ("resources", "training", "word"),
    [
        (Resources(), Training(device="cuda"), "gpus_per_node"),
        (Resources(), Training(backend="nccl"), "gloo"),
        (
            Resources(gpus_per_node=1, tasks_per_node=2),
            Training(backend="nccl"),
            "two ranks on one device",
        ),
        (Resources(cpus_per_task=2), Training(threads=3), "cpus_per_task 2"),
        (Resources(), Training(loader="vectorized", num_workers=1), "num_workers"),
        (Resources(), Training(collate="fast"), "makes whole batches"),
        (Resources(), Training(loader="device", num_workers=1), "no meaning with loader device"),
        (Resources(), Training(loader="device", pin_memory=True), "where the model trains"),
        (Resources(), Training(loader="device", engine="native"), "draws its instances itself"),
        (Resources(), Training(profile="py-spy", profile_steps=5), "profile_steps has no meaning"),
        (Resources(), Training(profile_ranks="all"), "profile none"),
        (
            Resources(tasks_per_node=3, cpus_per_task=2),
            Training(loader="batched", num_workers=4),
            "12 workers on 6 cores",
        ),
        (Resources(), Training(loader="batched", workers="thread"), "num_workers is 0"),
        (
            Resources(),
            Training(loader="batched", num_workers=1, workers="thread", persistent_workers=False),
            "no time",
        ),
        (Resources(), Training(loader="batched", collate="fast"), "use loader per_sample"),
        (Resources(tasks_per_node=4), Training(global_batch_size=3), "4 ranks"),
        (Resources(tasks_per_node=2), Training(engine="rowwise"), "use sync rows"),
        (Resources(nodes=2), Training(engine="native"), "use sync rows"),
        (Resources(), Training(sync_every=4), "leave it out, or use local_sgd"),
        (Resources(), Training(sync="rows"), "use engine rowwise"),
        (Resources(), Training(engine="native", loader="batched"), "draws its instances itself"),
        (Resources(gpus_per_node=1), Training(engine="native"), "native runs on CPUs"),
        (Resources(), Training(engine="native", weight_decay=0.1), "every row in every step"),
        (Resources(), Training(engine="rowwise", optimizer="sgd", sparse=True), "whole tables"),
        (Resources(), Training(engine="rowwise", adam="fused"), "engine rowwise"),
        (Resources(), Training(optimizer="sgd", adam="foreach"), "optimizer sgd"),
        (Resources(), Training(sparse=True), "moves every row"),
        (Resources(), Training(optimizer="lazy_adam"), "sparse: true"),
        (
            Resources(gpus_per_node=2, tasks_per_node=2),
            Training(optimizer="lazy_adam", sparse=True),
            "nccl exchanges",
        ),
        (Resources(), Training(engine="rowwise", accumulate=2), "a larger batch is the same"),
        (Resources(), Training(engine="native", compile="inductor"), "written out"),
        (Resources(), Training(engine="native", precision="bfloat16"), "float32"),
        (Resources(), Training(engine="native", tf32=True), "runs on CPUs"),
        (Resources(), GRAPH, "trains on a CPU"),
        (GPU, GRAPH.model_copy(update={"loader": "vectorized"}), "use loader device"),
        (GPU, GRAPH.model_copy(update={"engine": "reference"}), "the same memory"),
        (GPU, GRAPH.model_copy(update={"profile": "torch"}), "none of their operations"),
        (
            Resources(gpus_per_node=2, tasks_per_node=2),
            GRAPH.model_copy(update={"sync": "rows"}),
            "no part of a graph",
        ),
        (Resources(), Training(engine="rowwise", compile="torchscript"), "use compile inductor"),
        (
            Resources(tasks_per_node=2),
            Training(engine="rowwise", compile="inductor", sync="rows"),
            "in the midst of a step",
        ),
        (Resources(), Training(engine="rowwise", precision="float16"), "on a CPU"),
        (
            Resources(),
            Training(precision="float16", sparse=True, optimizer="lazy_adam"),
            "two of torch's",
        ),
        (Resources(nodes=2), Training(precision="float16", sync="local_sgd"), "the others take"),
        (GPU, Training(tf32=True, precision="bfloat16"), "products of float32"),
        (Resources(), Training(engine="rowwise", static_graph=True), "no graph"),
        (Resources(), Training(engine="rowwise", bucket_mb=1.0), "no buckets"),
        (Resources(), Training(engine="rowwise", parallel="data_parallel"), "no module"),
        (Resources(nodes=2), Training(global_batch_size=8, accumulate=5), "exceeds the 4"),
        (Resources(), Training(accumulate=2, static_graph=True), "143580"),
        (Resources(nodes=2), Training(parallel="data_parallel"), "one process for all GPUs"),
        (Resources(), Training(parallel="data_parallel", compile="torchscript"), "anew in every"),
        (Resources(), Training(lr_base_batch=1024), "lr_scale"),
        (Resources(nodes=2), Training(sync="local_sgd", static_graph=True), "of sync dense"),
        (Resources(), Training(engine="rowwise", weight_decay=0.1), "every row in every step"),
        (Resources(), Training(optimizer="sgd", sparse=True, weight_decay=0.1), "sparse: true"),
    ],
)
def test_settings_that_do_not_go_together_are_told_with_the_reason(
    resources: Resources, training: Training, word: str
) -> None:
    (reason,) = training_conflicts(resources, training)
    assert word in reason


def test_settings_that_go_together_have_no_conflict() -> None:
    assert (
        training_conflicts(
            Resources(cpus_per_task=4), Training(loader="per_sample", num_workers=3)
        )
        == []
    )


@pytest.mark.parametrize(
    "training",
    [
        Training(adam="fused", weight_decay=0.01),
        Training(optimizer="sgd", weight_decay=0.01),
        Training(optimizer="sgd", sparse=True),
        Training(optimizer="lazy_adam", sparse=True),
        Training(engine="rowwise", compile="inductor"),
        Training(precision="float16"),
        Training(tf32=True),
        *(
            Training(engine=engine, optimizer=each)
            for engine in ("rowwise", "native")
            for each in ("adam", "lazy_adam", "sgd")
        ),
    ],
)
def test_an_optimizer_that_an_engine_has_is_no_conflict(training: Training) -> None:
    assert training_conflicts(Resources(), training) == []


@pytest.mark.parametrize(
    "training",
    [
        GRAPH,
        GRAPH.model_copy(update={"compile": "inductor", "precision": "float16"}),
        GRAPH.model_copy(update={"optimizer": "lazy_adam", "tf32": True}),
    ],
)
def test_what_a_gpu_makes_faster_goes_together(training: Training) -> None:
    assert training_conflicts(GPU, training) == []


def test_ranks_that_share_a_gpu_get_gloo() -> None:
    shared = Resources(gpus_per_node=1, tasks_per_node=2)
    assert Training().backend_for(shared) == "gloo"
    assert training_conflicts(shared, Training()) == []
    assert Training().backend_for(Resources(gpus_per_node=2, tasks_per_node=2)) == "nccl"


@pytest.mark.parametrize(
    ("asked", "settings", "told"),
    [
        ({"tasks_per_node": 2, "gpus_per_node": 1}, {}, "2 ranks share 1 GPU on each node"),
        ({"tasks_per_node": 4, "gpus_per_node": 2, "ranks_per_gpu": 2}, {}, "4 ranks share 2 GPUs"),
        ({"tasks_per_node": 2, "gpus_per_node": 2}, {}, None),
        ({"tasks_per_node": 2}, {}, None),
        ({"tasks_per_node": 2, "gpus_per_node": 1}, {"device": "cpu"}, None),
        ({"tasks_per_node": 2, "gpus_per_node": 1}, {"backend": "gloo"}, None),
    ],
)
def test_that_ranks_share_a_gpu_and_so_get_gloo_is_told_unless_it_was_asked_for(
    asked: dict[str, int], settings: dict[str, Any], told: str | None
) -> None:
    said = describe_gloo_choice(Resources(**asked), Training(**settings))
    assert (said is None) if told is None else (said is not None and said.startswith(told))


def test_dropout_is_refused_where_the_engine_has_none() -> None:
    (reason,) = model_conflicts(Training(engine="native"), Model(dropout=0.1))
    assert "use engine rowwise" in reason
    (reason,) = model_conflicts(GRAPH, Model(dropout=0.1))
    assert "masks that replays draw" in reason
    assert model_conflicts(Training(engine="native"), Model()) == []
    assert model_conflicts(Training(engine="rowwise"), Model(dropout=0.1)) == []


def test_more_layers_than_engine_native_has_room_for_are_refused_before_anything_runs() -> None:
    deep = Model(layers=(4,) * 17)
    (reason,) = model_conflicts(Training(engine="native"), deep)
    assert "use engine rowwise, or fewer" in reason
    assert model_conflicts(Training(engine="native"), Model(layers=(4,) * 16)) == []
    assert model_conflicts(Training(engine="rowwise"), deep) == []
