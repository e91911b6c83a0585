"""The data folder moves to another place, whatever kills the process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from datasets_rl import disk
from datasets_rl.errors import IntegrityError, InvalidArgumentError, LockedError
from datasets_rl.store import move as moving
from datasets_rl.store.layout import mark_folder

DISKS = [Path("/dev/shm"), Path(tempfile.gettempdir()), Path(__file__).parent]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links")


VERSION = b'{"format": "datasets-rl/ted", "format_version": 2}'
POINTER = b"0001-01234567\n"


def write(folder, name, data):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    for name in ("demo/a/0001-01234567/rows.npy", "demo/a/0002-89abcdef/rows.npy", "d4rl/b/raw/b.part"):
        write(folder, name, name.encode() * 5000)
    write(folder, "demo/a/CURRENT", POINTER)
    mark_folder(folder / "d4rl" / "b")
    write(tmp_path, "elsewhere/CURRENT", POINTER)
    (folder / "demo" / "linked").symlink_to("a")
    (folder / "demo" / "outside").symlink_to("../../elsewhere")
    (folder / "demo" / "a" / "0001-01234567" / "empty").mkdir()
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
    others = [disk for disk in DISKS if disk.is_dir() and disk.stat().st_dev != tmp_path.stat().st_dev]
    if not others:
        pytest.skip("there is no second file system")
    with tempfile.TemporaryDirectory(prefix="rlds-test-", dir=others[0]) as folder:
        yield Path(folder, "new")


def moved(home, target, **options):
    return moving.move(home, target, **{"switch": lambda _: True, **options})


def hidden(*folders):
    return [path.name for folder in folders for path in folder.iterdir() if path.name[0] == "."]


def test_everything_is_at_the_new_place_and_nothing_at_the_old_one(home, target):
    before = content(home)

    plan = moved(home, target)

    assert (plan.source, plan.target) == (home, target)
    assert content(target) == before
    assert not home.exists()
    assert hidden(home.parent, target.parent, target) == []


def test_what_a_killed_audit_left_does_not_keep_the_old_folder(home, target):
    part = home / ".audit" / "0123456789abcdef0123456789abcdef" / "3.npz"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x")
    moved(home, target)

    assert not home.exists()


def test_moving_again_changes_nothing_and_moving_back_restores_the_folder(home, target):
    before = content(home)
    moved(home, target)

    assert moved(target, target) is None
    moved(target, home)
    assert content(home) == before
    assert not target.exists()


def test_where_the_setting_cannot_be_changed_the_old_files_stay_until_the_new_place_is_the_home(home, target):
    before = content(home)

    for _ in range(2):
        moved(home, target, switch=lambda _: False)
        assert content(home) == before
        assert {**before, ".rlds-moved-from": str(home).encode()} == content(target)
    assert moved(target, target).is_switched
    assert content(target) == before
    assert not home.exists()


def test_folders_of_other_projects_stay(home, target):
    (home / "imagenet" / "raw").mkdir(parents=True)
    (home / "imagenet" / "raw" / "a.jpg").write_text("mine")
    (home / "notes.txt").write_text("mine")
    (home / ".git").mkdir()
    before = content(home)

    moving.move(home, target, switch=lambda _: True)

    assert sorted(content(home)) == [".git", "imagenet", "imagenet/raw", "imagenet/raw/a.jpg", "notes.txt"]
    assert {name.partition("/")[0] for name in content(target)} == {"d4rl", "demo"}
    assert content(home).keys() | content(target).keys() == before.keys()


def test_of_a_home_that_is_that_of_the_user_only_datasets_move(home, target):
    """Folders of other programs may have the names of sources, and folders in them the names of ours: ~/local, ~/minari."""
    mine = [".bashrc", "local/bin/tool", "local/raw/a.csv", "demo/a/notes.txt", "demo/README.md", "minari/x/main.hdf5"]
    mine += ["minari/fork/build-20241101/results.csv", "minari/fork/CURRENT", "minari/fork/.lock", ".stream/x/0/raw/a"]
    for name in mine:
        write(home, name, b"mine")
    (home / "minari" / "fork" / "linked").symlink_to("build-20241101")
    (home / "minari" / "fork" / "empty").mkdir()
    write(home, "local/single/manifest.json", VERSION)
    write(home, "local/single/rows.npy", b"rows")
    mark_folder(home / "d4rl" / ".stream" / "x" / "0")
    write(home, "d4rl/.stream/x/0/shards/rows.npy", b"rows")
    before = content(home)

    moved(home, target)

    assert sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()) == sorted(mine)
    assert (home / "minari" / "fork" / "linked").is_symlink()
    assert (home / "minari" / "fork" / "empty").is_dir()
    assert content(target).items() <= before.items()
    assert content(home).keys() | content(target).keys() == before.keys()


def test_equal_files_are_not_copied_again(home, target):
    copied = []
    moved(home, target, switch=lambda _: False, advance=copied.append)
    moved(home, target, switch=lambda _: False, advance=(again := []).append)

    assert sum(copied) == sum(
        path.stat().st_size for path in home.rglob("*") if path.is_file() and not path.is_symlink()
    )
    assert again == []


def test_what_the_new_place_does_not_have_is_not_deleted_later(home, target):
    moved(home, target, switch=lambda _: False)
    (home / "demo" / "late.npy").write_bytes(b"late")
    disk.write_bytes(home / "demo" / "a" / "CURRENT", b"0002-89abcdef\n")

    moved(target, target)

    left = {"demo": None, "demo/a": None, "demo/a/CURRENT": b"0002-89abcdef\n", "demo/late.npy": b"late"}
    assert content(home) == left


def test_a_folder_that_is_in_use_is_not_moved(home, tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from datasets_rl import disk\n"
        "with disk.lock(Path(sys.argv[1]), 'a'): print('held', flush=True); time.sleep(100)"
    )
    lock = home / "demo" / "a" / ".lock"
    with subprocess.Popen([sys.executable, "-c", program, lock], stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        with pytest.raises(LockedError):
            moved(home, tmp_path / "new")
        owner.kill()
    assert (home / "demo").is_dir()
    moved(home, tmp_path / "new")
    assert not home.exists()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("home/inside", "inside each other"),
        ("", "inside each other"),
        ("full", "exists already"),
        ("/", "inside each other"),
    ],
)
def test_impossible_places_are_refused_before_anything_is_copied(home, tmp_path, target, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    before = content(tmp_path)

    with pytest.raises(InvalidArgumentError, match=message):
        moved(home, tmp_path / target)
    assert content(tmp_path) == before


def test_nothing_to_move_is_an_error(tmp_path):
    with pytest.raises(InvalidArgumentError, match="nothing to move"):
        moved(tmp_path / "none", tmp_path / "new")


def test_what_another_process_writes_during_the_move_is_kept(home, target):
    def late(_):
        (home / "demo" / "a" / "0002-89abcdef" / "late.npy").write_bytes(b"late")
        return True

    moved(home, target, switch=late)

    assert (target / "demo" / "a" / "0002-89abcdef" / "late.npy").read_bytes() == b"late"
    assert not home.exists()


@pytest.mark.parametrize("kind", ["any folder", "a link", "a pipe", "bytes"])
def test_what_others_put_at_the_target_moves_no_folder_of_theirs(home, tmp_path, kind):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("mine")
    (tmp_path / "new").mkdir()
    record = tmp_path / "new" / ".rlds-moved-from"
    if kind == "any folder":
        record.write_text(str(theirs))
    elif kind == "a link":
        record.symlink_to(theirs / "thesis.tex")
    elif kind == "a pipe":
        os.mkfifo(record)
    else:
        record.write_bytes(b"\xff" * 100)
    before = content(home)

    for act in (moving.plan_move, moved):
        with pytest.raises((IntegrityError, InvalidArgumentError), match="new"):
            act(home, tmp_path / "new")
    assert content(home) == before
    assert (theirs / "thesis.tex").read_text() == "mine"


def test_links_in_the_copy_of_an_interrupted_move_are_not_followed(home, tmp_path):
    theirs = tmp_path / "theirs"
    (theirs / "a").mkdir(parents=True)
    (theirs / "a" / "CURRENT").write_text("mine")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".rlds-moved-from").write_text(str(home))
    (tmp_path / "new" / "demo").symlink_to(theirs)
    before = content(home)

    with pytest.raises(IntegrityError, match="link"):
        moved(home, tmp_path / "new")
    assert content(home) == before
    assert [path.read_text() for path in theirs.rglob("*") if path.is_file()] == ["mine"]


KILLER = """
import os, sys
from pathlib import Path
from datasets_rl.store import move as moving
from datasets_rl.store.layout import mark_folder
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
setting = Path(sys.argv[4])
moving.move(Path(setting.read_text()), Path(sys.argv[2]), switch=lambda place: bool(setting.write_text(str(place))))
"""


def killed_at_each_operation(home, target, setting, moments):
    """Kill moves before their n-th operation, and complete each by a second call; return how many were killed."""
    before, killed = content(home), 0
    for moment in moments:
        setting.write_text(str(home))
        ran = subprocess.run([sys.executable, "-c", KILLER, home, target, str(moment), setting], check=False)
        killed += ran.returncode == -9
        assert ran.returncode in {0, -9}
        # What the setting names has every file at any moment.
        named = content(Path(setting.read_text()))
        assert {name: named[name] for name in before} == before, moment
        moved(Path(setting.read_text()), target)
        assert content(target) == before, moment
        assert not home.exists(), moment
        assert [name for name in hidden(home.parent, target.parent) if not name.endswith(".lock")] == [], moment
        moved(target, home)
        assert content(home) == before
        if ran.returncode == 0:
            break
    return killed


@pytest.mark.first(1)
def test_a_killed_move_is_completed_by_the_same_command(home, target, tmp_path_factory):
    setting = tmp_path_factory.mktemp("settings") / "home"

    assert killed_at_each_operation(home, target, setting, [3, 16, 52]) == 3


@pytest.mark.slow
def test_a_move_killed_at_any_operation_is_completed_by_the_same_command(home, target, tmp_path_factory):
    setting = tmp_path_factory.mktemp("settings") / "home"

    assert killed_at_each_operation(home, target, setting, range(1000)) > 20
