"""Base class of everything that a user may write into a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pydantic import BaseModel, ConfigDict

PYDANTIC_PART: Final = re.compile(r"\[key\]$|(literal|function-[a-z]+)\[")


class Settings(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def error_location(loc: Iterable[int | str]) -> list[int | str]:
    """Where a problem of pydantic's is, without the names that it has for a union's alternatives
    and for a mapping's keys."""
    return [part for part in loc if not PYDANTIC_PART.match(str(part))]
