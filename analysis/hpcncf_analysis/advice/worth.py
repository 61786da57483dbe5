"""What a core must bring to be worth asking for: the one rule of the report and of `tune`."""

from __future__ import annotations

from typing import Final

# More cores are worth asking for while each delivers this share of the most that any core does:
# while a unit of work costs at most 1 / WORTH of the cheapest.
WORTH: Final = 0.7
