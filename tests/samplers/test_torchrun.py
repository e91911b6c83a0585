"""Jobs of torchrun draw each step once, also if a rank is killed, and if another number of ranks goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from servers import serve
from stored_data import trajectory, write_dataset

LENGTHS = [5 + 7 * number % 31 for number in range(60)]
pytestmark = pytest.mark.usefixtures("warm_python")
PROGRAM = Path(__file__).parents[1] / "rank_program.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "some"
    write_dataset(folder, [trajectory(length) for length in LENGTHS])
    return folder


class Job:
    """A job that is started with torchrun, several times with different numbers of ranks."""

    def __init__(self, dataset, out, **task):
        self.out = out
        self.task = {
            "batch_size": 16,
            "every": 3,
            "epochs": 2,
            "slice_len": None,
            "dataset": str(dataset),
            "out": str(out),
            **task,
        }

    def run(self, ranks, *, kill=None):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += ["--monitor-interval=0.1", str(PROGRAM)]
        environment = {
            **{name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}},
            "OMP_NUM_THREADS": "1",
            "PYTHON_EXEC": sys.executable,  # starts the ranks
            "RLDS_HOME": str(self.out / "home"),
            "RLDS_NO_PROGRESS": "1",
        }
        task = json.dumps({**self.task, "kill": kill, "start": len(self.starts())})
        with subprocess.Popen(
            [*command, task],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        ) as job:
            try:
                return job.wait(150), job.stderr.read()
            finally:
                with suppress(ProcessLookupError):  # after a failure, ranks may be left
                    os.killpg(job.pid, signal.SIGKILL)

    def starts(self):
        """Return the number of ranks, the first step, and the logged steps, of each start."""
        found = []
        while logs := sorted(self.out.glob(f"start-{len(found)}-*.jsonl")):
            lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in logs]
            heads = {tuple(head) for head, *_ in lines if head}
            assert len(heads) == 1
            found.append((*heads.pop(), [line for _, *rest in lines for line in rest]))
        return found

    def epochs(self):
        """Return how often each step was drawn, by epoch: what a start drew counts up to the checkpoint of the next."""
        starts = self.starts()
        ends = [first for _, first, _ in starts[1:]] + [10**9]
        epochs: dict[int, Counter[tuple[int, int]]] = {}
        for (_, _, lines), end in zip(starts, ends, strict=True):
            for step, epoch, rows in lines:
                if step < end:
                    epochs.setdefault(epoch, Counter()).update(map(tuple, rows))
        return epochs


def check(epochs, lengths=LENGTHS):
    """Check that both epochs have each step of each episode once."""
    assert sorted(epochs) == [0, 1]
    for drawn in epochs.values():
        assert Counter(episode for episode, _ in drawn) == dict(enumerate(lengths))
        assert set(drawn.values()) == {1}


@pytest.mark.slow
def test_a_job_of_two_ranks_continues_exactly_after_kill_9_of_one(folder, tmp_path):
    job = Job(folder, tmp_path)
    code, errors = job.run(2, kill=[1, 17])
    assert code != 0
    assert "Signal 9 (SIGKILL)" in errors
    code, errors = job.run(2)

    assert code == 0, errors
    assert [(ranks, first) for ranks, first, _ in job.starts()] == [(2, 0), (2, 15)]
    check(job.epochs())


@pytest.mark.slow
@pytest.mark.parametrize("slice_len", [None, 4])
@pytest.mark.parametrize("lives", [[4, 4], [4, 2], [2, 4], [4, 3, 1, 2]], ids=str)
def test_any_number_of_ranks_goes_on_after_a_kill(folder, tmp_path, lives, slice_len):
    slices = {} if slice_len is None else {"slice_len": slice_len, "batch_size": 2 * slice_len}
    job = Job(folder, tmp_path, **slices)
    kill = 0
    for ranks in lives[:-1]:
        kill += 5
        code, _ = job.run(ranks, kill=[ranks - 1, kill])
        assert code != 0
    code, errors = job.run(lives[-1])

    assert code == 0, errors
    assert [ranks for ranks, _, _ in job.starts()] == lives
    assert all(first > 0 for _, first, _ in job.starts()[1:])
    if slice_len is None:
        check(job.epochs())
        return
    for drawn in job.epochs().values():
        assert Counter(episode for episode, _ in drawn) == dict.fromkeys(range(len(LENGTHS)), slice_len)


@pytest.mark.slow
@pytest.mark.parametrize("lives", [[2, 2], [4, 2], [2, 4]], ids=str)
def test_a_stream_is_shared_by_ranks_and_resumed(tmp_path, lives):
    lengths = [40 * length for length in LENGTHS]  # so that there are as many blocks as ranks
    folder = tmp_path / "some"
    write_dataset(folder, [trajectory(length) for length in lengths])
    files = {f"/some/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with serve(files) as server:
        job = Job(f"{server.url}/some", tmp_path, batch_size=256)
        code, _ = job.run(lives[0], kill=[lives[0] - 1, 8])
        assert code != 0
        code, errors = job.run(lives[1])

    assert code == 0, errors
    assert [ranks for ranks, _, _ in job.starts()] == lives
    assert job.starts()[1][1] == 6
    check(job.epochs(), lengths)
