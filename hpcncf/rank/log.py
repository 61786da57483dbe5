"""What a run's first rank prints, which is its log: a line an epoch, and where the record is."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from hpcncf.records import Epoch


def of_epoch(epoch: Epoch, epochs: int) -> str:
    """`epoch 1/3: loss 0.4213, HR@10 0.312, NDCG@10 0.190, 152,331 instances/s, 2.4 s, 0.1 s of
    them evaluation`."""
    parts = [f"loss {epoch.loss:.4f}"]
    if epoch.hr10 is not None and epoch.ndcg10 is not None:
        parts.append(f"HR@10 {epoch.hr10:.3f}, NDCG@10 {epoch.ndcg10:.3f}")
    if epoch.training_s > 0:
        parts.append(f"{epoch.instances / epoch.training_s:,.0f} instances/s")
    parts.append(f"{epoch.training_s + epoch.evaluation_s + epoch.checkpoint_s:.1f} s")
    if epoch.hr10 is not None:
        parts.append(f"{epoch.evaluation_s:.1f} s of them evaluation")
    return f"epoch {epoch.epoch + 1}/{epochs}: {', '.join(parts)}"


def of_end(record: Path) -> str:
    return f"completed; record: {record}"


def say(line: str) -> None:
    """At once: who follows the log waits for it. A full disk must not end the training."""
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
