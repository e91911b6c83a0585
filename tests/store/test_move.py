"""The data folder moves to another place, whatever kills the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datasets_rl.errors import IntegrityError, InvalidArgumentError, LockedError
from datasets_rl.store import move as moving

OTHER_DISK = Path("/dev/shm")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links")


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    for name in (
        "demo/a/CURRENT",
        "demo/a/0001-01234567/rows.npy",
        "demo/a/0002-89abcdef/rows.npy",
        "d4rl/b/raw/b.part",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 5000)
    (folder / "demo" / "linked").symlink_to("a")
    (folder / "demo" / "outside").symlink_to("../../elsewhere")
    (folder / "empty").mkdir()
    (tmp_path / "elsewhere").mkdir()
    return folder


def content(folder):
    """Return the bytes of every file and the target of every link."""
    return {
        path.relative_to(folder).as_posix(): os.path.realpath(path).replace(str(folder), "HOME")
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


@pytest.fixture(params=["same disk", "other disk"])
def target(request, tmp_path):
    if request.param == "same disk":
        yield tmp_path / "new"
        return
    if not OTHER_DISK.is_dir() or OTHER_DISK.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    folder = OTHER_DISK / f"rlds-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    yield folder / "new"
    shutil.rmtree(folder)


def test_everything_is_at_the_new_place_and_a_link_at_the_old_one(home, target):
    before = content(home)

    plan = moving.move(home, target)

    assert (plan.source, plan.target) == (home, target)
    assert content(target) == {**before}
    assert home.readlink() == target
    assert sorted(path.name for path in (*home.parent.iterdir(), *target.parent.iterdir()) if path.name[0] == ".") == []


def test_moving_again_changes_nothing_and_moving_back_restores_the_folder(home, target):
    before = content(home)
    moving.move(home, target)

    assert moving.move(home, target) is None
    moving.move(home, home)
    assert not home.is_symlink()
    assert content(home) == before
    assert target.readlink() == home


def test_a_folder_that_is_in_use_is_not_moved(home, tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from datasets_rl import disk\n"
        "with disk.lock(Path(sys.argv[1]), 'a'): print('held', flush=True); time.sleep(100)"
    )
    lock = home / "demo" / "a" / ".lock"
    with subprocess.Popen([sys.executable, "-c", program, lock], stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        with pytest.raises(LockedError):
            moving.move(home, tmp_path / "new")
        owner.kill()
    assert not home.is_symlink()
    moving.move(home, tmp_path / "new")
    assert home.is_symlink()


@pytest.mark.parametrize(
    ("target", "message"),
    [("home/inside", "inside each other"), ("", "inside each other"), ("full", "exists already"), ("/", "root of")],
)
def test_impossible_places_are_refused_before_anything_is_copied(home, tmp_path, target, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    before = content(tmp_path)

    with pytest.raises(InvalidArgumentError, match=message):
        moving.move(home, tmp_path / target)
    assert content(tmp_path) == before


def test_nothing_to_move_is_an_error(tmp_path):
    with pytest.raises(InvalidArgumentError, match="nothing to move"):
        moving.move(tmp_path / "none", tmp_path / "new")


def test_what_another_process_writes_during_the_move_is_kept(home, target, monkeypatch):
    switch = moving._switch

    def late(plan):
        (plan.source / "demo" / "late.npy").write_bytes(b"late")
        switch(plan)

    monkeypatch.setattr(moving, "_switch", late)
    moving.move(home, target)

    assert (target / "demo" / "late.npy").read_bytes() == b"late"


@pytest.mark.parametrize("kind", ["any folder", "a link", "a pipe", "lines", "a copy"])
def test_what_others_put_beside_the_target_moves_no_folder_of_theirs(home, tmp_path, kind):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("mine")
    copy = tmp_path / ".new.rlds-move"
    record = copy / ".rlds-move"
    if kind != "a copy":
        copy.mkdir()
    if kind == "any folder":
        record.write_text(str(theirs))
    elif kind == "a link":
        record.symlink_to(theirs / "thesis.tex")
    elif kind == "a pipe":
        os.mkfifo(record)
    elif kind == "lines":
        record.write_bytes(b"\0" * 100)
    else:
        copy.symlink_to(theirs)
    before = content(home)

    for plan in (moving.plan_move, moving.move):
        with pytest.raises(IntegrityError, match="rlds-move"):
            plan(home, tmp_path / "new")
    assert content(home) == before
    assert not theirs.is_symlink()
    assert [path.name for path in theirs.iterdir()] == ["thesis.tex"]
    assert (theirs / "thesis.tex").read_text() == "mine"


def test_links_in_the_copy_of_an_interrupted_move_are_not_followed(home, tmp_path):
    theirs = tmp_path / "theirs"
    (theirs / "a").mkdir(parents=True)
    (theirs / "a" / "rows.npy").write_text("mine")
    (tmp_path / ".new.rlds-move").mkdir()
    (tmp_path / ".new.rlds-move" / ".rlds-move").write_text(str(home))
    (tmp_path / ".new.rlds-move" / "demo").symlink_to(theirs)
    before = content(home)

    moving.move(home, tmp_path / "new")
    assert content(tmp_path / "new") == before
    assert [path.read_text() for path in theirs.rglob("*.npy")] == ["mine"]


KILLER = """
import os, sys
from pathlib import Path
from datasets_rl.store import move as moving
left = int(sys.argv[3])
def watch(event, arguments):
    global left
    if event in {"os.rename", "os.link", "os.symlink", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"} or (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    ):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
sys.addaudithook(watch)
moving.move(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def killed_at_each_operation(home, target, back, moments):
    """Kill moves before their n-th operation, and complete each by a second call; return how many were killed."""
    before, killed = content(home), 0
    for moment in moments:
        ran = subprocess.run([sys.executable, "-c", KILLER, home, target, str(moment)], check=False)
        killed += ran.returncode == -9
        assert ran.returncode in {0, -9}
        whole = [folder for folder in (home, target) if folder.is_dir() and not folder.is_symlink()]
        assert any(content(folder) == before for folder in whole), moment
        moving.move(home, target)
        assert content(target) == before, moment
        assert home.readlink() == target
        hidden = [path for folder in (home.parent, target.parent) for path in folder.iterdir() if path.name[0] == "."]
        assert hidden == [], moment
        moving.move(target, back)
        target.unlink()
        assert content(home) == before
        if ran.returncode == 0:
            break
    return killed


def test_a_killed_move_is_completed_by_the_same_command(home, target):
    assert killed_at_each_operation(home, target, home, [3, 25]) == 2


@pytest.mark.slow
def test_a_move_killed_at_any_operation_is_completed_by_the_same_command(home, target):
    assert killed_at_each_operation(home, target, home, range(1000)) > 30


@pytest.mark.slow
def test_a_move_back_killed_at_any_operation_is_completed_by_the_same_command(home, target):
    before = content(home)
    for moment in range(1000):
        moving.move(home, target)
        ran = subprocess.run([sys.executable, "-c", KILLER, home, home, str(moment)], check=False)
        moving.move(home, home)
        assert content(home) == before, moment
        assert not home.is_symlink()
        target.unlink()
        if ran.returncode == 0:
            assert moment > 30
            return
