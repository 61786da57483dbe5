"""Measure time on the GPU by CUDA events, without ever waiting for the GPU.

An event is read only once it has completed. Not measured on a GPU yet.
"""

EVERY = 16
MOST_WAITING = 64

SECONDS = {"steps": 0, "gpu_s": 0.0, "elapsed_s": 0.0}
_POOL = []
_WAITING = []
_LAST = {}


def end_step(clock, torch):
    """Record a CUDA event at the end of one step in EVERY, and at the end of the next step."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    try:
        if cuda.is_current_stream_capturing():
            return
        _collect()
        event = _POOL.pop() if _POOL else cuda.Event(enable_timing=True)
        event.record()
        began = _LAST.pop(clock.ident, None)
        if clock.step % EVERY == 0:
            _LAST[clock.ident] = event, clock.since
        elif began is not None and len(_WAITING) < MOST_WAITING:
            _WAITING.append((began[0], event, clock.since - began[1]))
    except Exception:
        _LAST.clear()


def _collect():
    while _WAITING and _WAITING[0][1].query():
        begin, end, elapsed_s = _WAITING.pop(0)
        SECONDS["steps"] += 1
        SECONDS["gpu_s"] += begin.elapsed_time(end) / 1000
        SECONDS["elapsed_s"] += elapsed_s
        _POOL.extend((begin, end))
