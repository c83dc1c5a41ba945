"""A server finds a place for its sockets, or says what to set."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
from child_process import run_to_end

from quire.engine.processes import private_folder as module
from quire.engine.processes.private_folder import private_folder
from quire.errors import ConfigError
from quire.locked_folder import remove_left_folders


def assert_holds_sockets(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(f"ipc://{folder}/engine-1234567-12345.sock")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a shorter path than pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("name", "is_used"),
    [("usual", True), ("ü", True), ("a" * 120, False), ("ü" * 40, False), ("\udcff", False)],
    ids=["usual", "not ASCII", "long", "long in bytes", "not UTF-8"],
)
def test_any_folder_for_temporary_files_will_do(
    name: str, is_used: bool, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = short / name
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with private_folder() as found:
        assert (found.parent == folder) == is_used
        assert_holds_sockets(found)
    assert not found.exists()


def test_no_folder_that_can_be_written_is_an_error_with_the_fix(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    monkeypatch.setattr(module, "OTHERS", (str(short / "none"), str(short)))
    with private_folder() as found:
        assert_holds_sockets(found)
    monkeypatch.setattr(module, "OTHERS", (str(short / "none"),))
    with pytest.raises(ConfigError, match="TMPDIR"), private_folder():
        pass


def test_cleaners_of_temporary_folders_leave_it_alone() -> None:
    """They skip what is locked; else counters of dead processes are gone after some days."""
    with private_folder() as folder:
        cleaner = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(cleaner)
        shutil.rmtree(folder)  # a less careful one


def test_a_file_system_without_locks_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with private_folder() as folder:
        assert_holds_sockets(folder)
    assert not folder.exists()


def test_folders_of_killed_servers_are_removed_and_no_others(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    owner = "import os; from quire.engine.processes.private_folder import private_folder as made\n"
    owner += "with made(): os.kill(os.getpid(), 9)"
    with private_folder() as in_use:
        run_to_end([sys.executable, "-c", owner], env=os.environ | {"TMPDIR": str(short)})
        [left] = set(short.glob(f"{module.PREFIX}*")) - {in_use}
        (left / "engine-0-0").touch()
        names = (f"{module.PREFIX}of_other", f"{module.PREFIX}logs", "quire-data")
        of_others = [short / name for name in names]
        for folder in of_others:
            folder.mkdir(0o700)
        of_others.append(short / f"{module.PREFIX}archives")  # as long as those that are made
        of_others[-1].mkdir(0o755)
        (short / f"{module.PREFIX}link").symlink_to(short / "quire-data")
        find_status = os.fstat

        def of_another_user(file: int) -> object:
            found = find_status(file)
            is_theirs = os.path.samestat(found, of_others[0].stat())
            theirs = SimpleNamespace(st_mode=found.st_mode, st_uid=os.geteuid() + 1)
            return theirs if is_theirs else found

        monkeypatch.setattr(os, "fstat", of_another_user)
        with private_folder() as new:
            assert in_use.exists()
            assert new.exists()
            assert all(folder.exists() for folder in of_others)
            assert not left.exists()


def test_a_folder_that_another_server_removes_before_it_is_locked_is_made_again(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    lock, taken = fcntl.flock, []

    def flock(file: int, how: int) -> None:
        if how == fcntl.LOCK_SH and not taken:
            taken.extend(short.glob(f"{module.PREFIX}*"))
            remove_left_folders(module.PREFIX, short)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with private_folder() as folder:
        assert folder.exists()
        assert [folder] != taken
