"""What ranks of a node share: the prepared arrays are used where they are mapped, never copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcncf.job.spec import Model, Training
from hpcncf.ncf.batches import InstanceSource
from hpcncf.ncf.data.prepared import Prepared, load_prepared

MAPPED = ["train_rows", "positives_indptr", "positives"]


@pytest.fixture(scope="module")
def data(tiny_data: Path) -> Prepared:
    return load_prepared(tiny_data)


def same_memory(data: Prepared, names: list[str], used: list[np.ndarray[Any, Any]]) -> list[bool]:
    return [
        np.shares_memory(getattr(data, name), array)
        for name, array in zip(names, used, strict=True)
    ]


def test_loaders_read_the_mapped_pages(data: Prepared) -> None:
    source = InstanceSource(data, Training())
    used = [source.train_rows, source.indptr, source.positives, *source.suspected.args]
    assert all(same_memory(data, [*MAPPED, "buckets_indptr", "buckets"], used))


def test_the_native_engine_reads_the_mapped_pages(data: Prepared) -> None:
    from hpcncf.ncf.engines.native.engine import Kernel
    from hpcncf.ncf.engines.native.library import cpu_flags, installed_builds, select_build

    if not select_build(installed_builds(), cpu_flags()):
        pytest.skip("engine native was not built here")
    kernel = Kernel(data, Model(), Training(engine="native"), 1, 256)
    assert all(same_memory(data, [*MAPPED, "buckets_indptr", "buckets"], kernel._kept))


def test_opening_the_data_maps_its_files(tiny_data: Path) -> None:
    data = load_prepared(tiny_data)
    smaps = Path("/proc/self/smaps").read_text()
    for path in tiny_data.glob("*.npy"):
        assert getattr(data, path.stem).flags.writeable is False
        assert str(path) in smaps
