"""Fetching a published file, from a server on this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hpcncf.ncf.data.frappe import Unavailable, download

CONTENT = b"rows" * 50_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.zip").write_bytes(CONTENT)
    handler = partial(Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


def test_a_file_with_the_right_checksum_is_kept(server: str, tmp_path: Path) -> None:
    download(f"{server}/a.zip", SHA256, tmp_path / "cache" / "a.zip")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["a.zip"]
    assert (tmp_path / "cache" / "a.zip").read_bytes() == CONTENT


def test_another_file_under_the_same_name_is_refused(server: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=f"not the published file: SHA-256 {SHA256}"):
        download(f"{server}/a.zip", "0" * 64, tmp_path / "cache" / "a.zip")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("path", ["/missing.zip", ":bad"])
def test_a_failed_download_names_the_url(server: str, tmp_path: Path, path: str) -> None:
    with pytest.raises(Unavailable, match=f"{server}{path}: cannot be downloaded"):
        download(f"{server}{path}", SHA256, tmp_path / "a.zip")


def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be downloaded"):
        download("http://127.0.0.1:9/a.zip", SHA256, tmp_path / "a.zip")


def test_a_cache_that_cannot_be_written_is_reported(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be written"):
        download(f"{server}/a.zip", SHA256, tmp_path / "file" / "a.zip")
