"""A transport that tells a step's clock how much this rank sends."""

from __future__ import annotations

from collections.abc import Sequence

from hpcncf.ncf.phases import StepClock
from hpcncf.ncf.sync.transport import Bytes, Transport


class Counted:
    """The transport it is given, counted."""

    def __init__(self, transport: Transport, clock: StepClock) -> None:
        self._transport, self._clock = transport, clock
        self.name, self.slot, self.close = transport.name, transport.slot, transport.close

    def exchange(self, size: int) -> Sequence[Bytes]:
        self._clock.sent(size)
        return self._transport.exchange(size)
