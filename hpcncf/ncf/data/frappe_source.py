"""Where Frappe's zip is: given, in HPCNCF_DATA, in our cache, or to be downloaded into it.

It may not be redistributed, so it is not part of this package.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from hpcncf.ncf.data import frappe, manifest, synthetic
from hpcncf.ncf.data.download import Unavailable, download
from hpcncf.ncf.data.manifest import FORMAT_VERSION, DataError, Outline
from hpcncf.ncf.data.prepared import load
from hpcncf.ncf.data.writing import Written

URL: Final = (
    "https://raw.githubusercontent.com/irecsys/CARSKit/HEAD/context-aware_data_sets/" + frappe.ZIP
)


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hpcncf"


def find(say: Callable[[str], None], url: str = URL) -> Path:
    """The zip's path. Raises Unavailable naming where it was looked for and what to do."""
    given = os.environ.get("HPCNCF_DATA")
    folders = [*([Path(given)] if given else []), cache()]
    for folder in folders:
        if (folder / frappe.ZIP).is_file():
            return folder / frappe.ZIP
    say(f"downloading {url}")
    try:
        download(url, frappe.SHA256, cache() / frappe.ZIP)
    except Unavailable as error:
        looked = " nor in ".join(str(folder) for folder in folders)
        raise Unavailable(
            f"{frappe.ZIP}: not in {looked}, and {error}. Download it by other means and give it "
            "with --source FILE, or set HPCNCF_DATA to its folder; --or-synthetic makes data of "
            "its shape instead"
        ) from None
    return cache() / frappe.ZIP


def prepare_or_stand_in(
    folder: Path,
    seed: int,
    test_negatives: int,
    force: bool,
    say: Callable[[str], None],
    url: str = URL,
) -> tuple[Written, str | None]:
    """Frappe, or where it cannot be had made data of its shape, with the reason.

    Real data that is there stays where it cannot be had again; a stand-in makes way for it.
    Raises DataError where what is there is of another format, unless forced.
    """
    standing = _standing(folder)
    try:
        source = find(say, url)
    except Unavailable as error:
        if standing and standing.dataset == "frappe" and not force:
            if standing.format_version != FORMAT_VERSION:
                advice = f"replace it with --force; {error}"
                raise manifest.other_format(folder, standing, advice) from None
            return Written(load(folder).manifest, "already there"), str(error)
        made = synthetic.prepare_like(folder, "frappe", seed, test_negatives, force, say)
        return made, str(error)
    makes_way = standing is not None and standing.options.get("like") == "frappe"
    return frappe.prepare(folder, source, seed, test_negatives, force or makes_way), None


def _standing(folder: Path) -> Outline | None:
    """What the folder holds, of whatever format. None, too, where that cannot be read: to write
    there complains of it."""
    with suppress(DataError):
        return manifest.outline(folder)
    return None
