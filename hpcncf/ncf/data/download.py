"""Fetching one published file: checked, whole or not at all, given up soon without a network."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from queue import Empty, Queue
from secrets import token_hex
from threading import Thread
from typing import Any, Final
from urllib.request import urlopen

from hpcncf.ncf.data.manifest import DataError

SOCKET_S: Final = 5.0
CONNECT_S: Final = 8.0
TOTAL_S: Final = 60.0


class Unavailable(DataError):
    """A published file that is neither here nor can be fetched now."""


def download(url: str, sha256: str, to: Path) -> None:
    """Fetch `url` into the file `to`. Raises Unavailable with the reason."""
    try:
        content = _read(_connect(url), time.monotonic() + TOTAL_S)
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"{url}: cannot be downloaded: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise Unavailable(f"{url}: not the published file: SHA-256 {found}, expected {sha256}")
    _keep(content, to)


def _connect(url: str) -> HTTPResponse:
    """The opened URL. In a thread, because looking up a host's name knows no time limit."""
    answers: Queue[Any] = Queue()
    Thread(
        target=_answer, args=(answers, lambda: urlopen(url, timeout=SOCKET_S)), daemon=True
    ).start()
    try:
        answer = answers.get(timeout=CONNECT_S)
    except Empty:
        raise TimeoutError(f"no connection within {CONNECT_S:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    response: HTTPResponse = answer
    return response


def _answer(answers: Queue[Any], work: Callable[[], Any]) -> None:
    try:
        answers.put(work())
    except (OSError, HTTPException, ValueError) as error:
        answers.put(error)


def _read(response: HTTPResponse, deadline: float) -> bytes:
    parts = []
    with response:
        while part := response.read(1 << 16):
            parts.append(part)
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done within {TOTAL_S:g} s")
    return b"".join(parts)


def _keep(content: bytes, to: Path) -> None:
    partial = to.with_name(f".{to.name}.{token_hex(4)}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content)
            partial.replace(to)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"{to}: cannot be written: {error.strerror}") from None
