"""How training rows keep their context: which columns fit into a byte, and the order of columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.columns import Sliced, slices
from hpcncf.ncf.data.rows import Floats


class Layout:
    """Columns of any numbers first, then those of whole numbers from 0 to 255 only, such as the
    zeros and ones of a one-hot column; both in the order of their source."""

    def __init__(self, names: list[str], *contexts: Sliced) -> None:
        """Of so many columns, which each of `contexts` [rows, columns] has; read in one sweep."""
        fits = np.ones(len(names), dtype=np.bool_)
        for part in (context[span] for context in contexts for span in slices(len(context))):
            fits &= fit_a_byte(part)
            if not fits.any():
                break
        self._order = np.argsort(fits, kind="stable")
        self.names = [names[column] for column in self._order]
        self.small = int(fits.sum())

    def ordered(self, context: Floats) -> Floats:
        """[rows, columns] of the source, its columns as they are kept."""
        return context[:, self._order]


def fit_a_byte(context: Floats) -> NDArray[np.bool_]:
    """[columns]: whether each of its values comes back from a byte with the same bits, so that
    -0 does not."""
    with np.errstate(invalid="ignore"):  # what is no number from 0 to 255 becomes any byte
        back = context.astype(np.uint8).astype(np.float32)
    same = context.view(np.uint32) == back.view(np.uint32)
    fits: NDArray[np.bool_] = np.logical_and.reduce(same)
    return fits
