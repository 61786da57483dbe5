"""Whether compute nodes can be expected to see a folder, as far as a login node can say."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.slurm.preflight import file_system, unshared_folder_warning

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /dev/shm rw - tmpfs tmpfs rw
24 22 0:22 / /home rw,relatime - nfs4 server:/home rw,vers=4.2
25 22 0:23 / /scratch\040space rw - lustre mds:/scratch rw
26 22 0:24 / /data rw - ext4 /dev/vdb rw
27 22 0:25 / /data rw - overlay overlay rw
broken
"""


@pytest.mark.parametrize(
    ("folder", "kind", "at"),
    [
        ("/home/me/results", "nfs4", "/home"),
        ("/homes", "ext4", "/"),
        ("/scratch space/a", "lustre", "/scratch space"),
        ("/data/a", "overlay", "/data"),
        ("/", "ext4", "/"),
    ],
)
def test_a_folder_lies_on_the_nearest_mount(folder: str, kind: str, at: str) -> None:
    assert file_system(Path(folder), MOUNTS) == (kind, at)


@pytest.mark.parametrize(
    ("folder", "doubtful"),
    [
        ("/home/me", False),
        ("/scratch space/me", False),
        ("/opt/exported/perhaps", False),
        ("/dev/shm/me", True),
        ("/tmp/me", True),
        ("/data/me", True),
    ],
)
def test_only_what_no_other_machine_sees_is_doubted(
    tmp_path: Path, folder: str, doubtful: bool
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    said = unshared_folder_warning(Path(folder), tmp_path / "mountinfo")
    assert (said is not None) is doubtful
    assert said is None or "--check-node" in said


def test_where_mounts_are_not_reported_nothing_is_doubted(tmp_path: Path) -> None:
    assert unshared_folder_warning(Path("/tmp"), tmp_path / "gone") is None
