"""Files are written completely or not at all."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from servers.basics.atomic import atomic_path, refuse_unwritable, write_file
from servers.basics.errors import CannotWrite


def test_the_old_content_stays_until_the_new_file_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a" / "report.html"
    write_file(path, b"old")
    with atomic_path(path) as part:
        part.write_bytes(b"new, and l")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new, and l"
    with suppress(KeyError), atomic_path(path) as part:
        part.write_bytes(b"never")
        raise KeyError
    assert path.read_bytes() == b"new, and l"
    assert os.listdir(path.parent) == ["report.html"]


def test_a_part_file_left_by_a_killed_process_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".report.html.part").write_bytes(b"longer than what comes now")
    write_file(tmp_path / "report.html", b"new")
    assert (tmp_path / "report.html").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["report.html"]


def test_the_permissions_of_a_file_stay_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a").touch(mode=0o600)
    write_file(tmp_path / "a", b"new")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    received: list[bytes] = []
    reading = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_bytes()))
    reading.start()
    write_file(tmp_path / "pipe", b"new")
    reading.join()
    assert received == [b"new"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_at_a_files_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match=r"/file: file exists; choose another place$"):
        write_file(tmp_path / "file" / "report.html", b"")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(CannotWrite, match=r"/report.html: is a directory; .*another place$"):
        write_file(tmp_path / "report.html", b"")
    assert sorted(os.listdir(tmp_path)) == ["file", "report.html"]


def test_a_path_that_cannot_be_written_is_refused_without_creating_a_file(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path / "a" / "profile.json")
    assert os.listdir(tmp_path / "a") == []
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "profile.json", Path("/proc/self/profile.json")):
        with pytest.raises(CannotWrite, match=r"profile\.json|file: "):
            refuse_unwritable(path)
