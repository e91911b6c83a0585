"""What converting the logs of a DQN agent costs: against inflating them, against TorchRL's own code, and in memory."""

import os
import subprocess
import sys

import pytest
from raw.atari_dqn import LOGS, Buffer

ROWS = int(os.environ.get("RLDS_BENCH_FRAMES", "200000"))
BARE = """
import sys, time
from pathlib import Path
from isal.igzip import IGzipFile

buffer = memoryview(bytearray(1 << 18))
start = time.perf_counter()
for path in Path(sys.argv[1]).glob("**/*.gz"):
    with IGzipFile(path) as file:
        while file.readinto(buffer):
            pass
print(time.perf_counter() - start)
"""
HELD = """
import sys, time
from pathlib import Path
from isal import igzip

start = time.perf_counter()
held = [igzip.decompress(path.read_bytes()) for path in Path(sys.argv[1]).glob("**/*.gz")]
print(time.perf_counter() - start)
"""
OURS = """
import sys, time
from pathlib import Path
from datasets_rl import downloading
from datasets_rl.pipeline import engines
from datasets_rl.settings import Settings
import datasets_rl.pipeline.conversion, datasets_rl.sources.atari_dqn.log_reader

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

engines.MIN_PARALLEL_BYTES = 0  # so few frames are very small when they are compressed
idle = peak()
settings = Settings(home=Path(sys.argv[2]), progress=False, jobs=int(sys.argv[3]))
start = time.perf_counter()
downloading.download("atari_dqn/Pong/1", from_local=sys.argv[1], settings=settings)
print(time.perf_counter() - start, peak() - idle)
"""
THEIRS = """
import sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from torchrl.data.datasets import AtariDQNExperienceReplay

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

logs, idle = AtariDQNExperienceReplay._list_runs(sys.argv[1]), peak()
start = time.perf_counter()
for run in logs:
    AtariDQNExperienceReplay._preproc_run(Path(sys.argv[2]) / "Pong" / "1" / str(run), logs, run)
print(time.perf_counter() - start, peak() - idle)
"""


def child(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return [float(word) for word in done.stdout.split()]


def written(root, capacity, logs):
    buffer = Buffer(root / LOGS, capacity, level=6, game="seaquest")
    while buffer.logs < logs:
        buffer.play(1000)
    raw = logs * sum(column.nbytes for column in buffer.store.values()) / 1e6
    return root, raw, sum(path.stat().st_size for path in (root / LOGS).iterdir()) / 1e6


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A checkpoint."""
    return written(tmp_path_factory.mktemp("one"), ROWS, 1)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Four checkpoints with as many rows together."""
    return written(tmp_path_factory.mktemp("several"), ROWS // 4, 4)


def stored(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def test_a_checkpoint_takes_a_third_of_torchrls_time_and_little_more_than_inflating_it(one, tmp_path, show):
    pytest.importorskip("torchrl.data.datasets", reason="pip install --no-deps torchrl hoptorch")
    root, raw, packed = one

    rounds = []
    for turn in range(5):
        (bare,), (held,) = child(BARE, root), child(HELD, root)
        ours, theirs = child(OURS, root, tmp_path / f"ours{turn}", 1), child(THEIRS, root, tmp_path / f"theirs{turn}")
        rounds.append((bare, held, ours[0], theirs[0], ours[1], theirs[1]))
        disk = stored(tmp_path / f"ours{turn}"), stored(tmp_path / f"theirs{turn}")
        subprocess.run(["rm", "-r", tmp_path / f"ours{turn}", tmp_path / f"theirs{turn}"], check=True)

    # The least that each took: what others do on the machine only adds to it.
    bare, held, ours, theirs = (min(seconds) for seconds in zip(*(one[:4] for one in rounds), strict=True))
    ours_peak, theirs_peak = (max(one[at] for one in rounds) for at in (4, 5))
    show(
        f"\n{ROWS:,} rows, {raw:.0f} MB, {packed:.1f} MB packed; ours {disk[0]:.0f} MB, TorchRL's {disk[1]:.0f} MB stored"
        f"\ninflating {bare:.2f} s, kept in memory {held:.2f} s, ours {ours:.2f} s, TorchRL {theirs:.2f} s"
        f"\nspeed: {bare / ours:.2f} of inflating, {held / ours:.2f} of inflating into memory, "
        f"{theirs / ours:.2f} times TorchRL's; peak over idle: ours {ours_peak:.0f} MB, TorchRL {theirs_peak:.0f} MB"
    )
    assert theirs / ours >= 3
    assert held / ours >= 0.7
    assert ours_peak < 200


@pytest.mark.parametrize("jobs", [1, 2])
def test_checkpoints_whose_rows_come_late(several, tmp_path, show, jobs):
    """The digest of what was written late takes another look at the file."""
    root, raw, packed = several

    rounds = [(child(HELD, root)[0], child(OURS, root, tmp_path / str(turn), jobs)) for turn in range(3)]

    held, ours = min(one[0] for one in rounds), min(one[1][0] for one in rounds)
    show(
        f"\n4 checkpoints, {raw:.0f} MB, {packed:.1f} MB packed, jobs {jobs}: inflating into memory {held:.2f} s, "
        f"ours {ours:.2f} s; {held / ours:.2f} of its speed; {max(one[1][1] for one in rounds):.0f} MB over idle"
    )
    assert max(one[1][1] for one in rounds) < 200
