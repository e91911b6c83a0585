"""What converting a log of a DQN agent costs: against TorchRL's own code, and against inflating it into memory."""

from __future__ import annotations

import shutil
import time
import warnings
from pathlib import Path

import pytest
from bench_data import convert, peak
from raw.atari_dqn import LOGS, Buffer

GAMES = ("pong", "breakout", "seaquest", "space_invaders", "qbert", "asterix", "beam_rider", "enduro", "freeway")
GAMES += ("ms_pacman",)


def write_logs(tree, frames, *, logs=1, game="seaquest", screens=512):
    """Write the logs of a buffer with this many frames; return their folder."""
    buffer = Buffer(tree / LOGS, frames, level=6, game=game, screens=screens)
    while buffer.logs < logs:
        buffer.play(min(1000, buffer.capacity // 2))
    return tree


def torchrl_convert(tree, folder):
    """Seconds, and MB over the idle process, of TorchRL's conversion."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.data.datasets import AtariDQNExperienceReplay

    logs, idle, start = AtariDQNExperienceReplay._list_runs(tree), peak(), time.perf_counter()
    for run in logs:
        AtariDQNExperienceReplay._preproc_run(Path(folder, "Pong", "1", str(run)), logs, run)
    took = time.perf_counter() - start
    shutil.rmtree(folder)
    return took, peak() - idle


@pytest.mark.usefixtures("torchrl_data")
def test_a_checkpoint_takes_a_third_of_torchrls_time_and_little_more_than_inflating_it(
    size, expect, expect_exactly, run_in_child, tmp_path
):
    trees = [write_logs(tmp_path / "small", 64), write_logs(tmp_path / "tree", size(full=200_000, small=64))]
    # The least that each took: what others do on the machine only adds to it.
    rounds = [
        (
            run_in_child(convert, "atari_dqn/Pong/1", {}, trees, tmp_path / "home"),
            run_in_child(torchrl_convert, tmp_path / "tree", tmp_path / "theirs"),
        )
        for _ in range(size(full=3, small=1))
    ]

    ours, alone = (min(getattr(one, name) for one, _ in rounds) for name in ("seconds", "alone"))
    theirs, theirs_peak = (min(two[place] for _, two in rounds) for place in (0, 1))
    print(f"\nours {ours:.2f} s, TorchRL {theirs:.2f} s and {theirs_peak:.0f} MB over idle")
    expect("a checkpoint, times TorchRL's speed", theirs / ours, at_least=3)
    expect("a checkpoint, of the time of inflating it", ours / alone, at_most=1.5)
    expect_exactly("a checkpoint, MB over the idle process", max(one.peak for one, _ in rounds), at_most=200)


def test_compressing_frames_takes_less_time_than_writing_them(size, expect, expect_exactly, run_in_child, tmp_path):
    frames, screens = size(full=200_000, small=64), size(full=8_000, small=512)
    trees = [write_logs(tmp_path / "small", 64), write_logs(tmp_path / "tree", frames, screens=screens)]
    rounds = [
        {
            images: run_in_child(convert, "atari_dqn/Pong/1", {"images": images}, trees, tmp_path / images)
            for images in ("compressed", "raw")
        }
        for _ in range(size(full=3, small=1))
    ]

    took = {images: min(one[images].seconds for one in rounds) for images in ("compressed", "raw")}
    alone = min(one["compressed"].alone for one in rounds)
    expect("compressed frames, of the time of inflating them", took["compressed"] / alone, at_most=1.5)
    expect("compressed frames, times the speed of writing them", took["raw"] / took["compressed"], at_least=1)
    grown = max(one["compressed"].peak for one in rounds)
    expect_exactly("compressed frames, MB over the idle process", grown, at_most=200)


@pytest.mark.slow
def test_two_jobs_are_not_slower_than_one(size, expect, run_in_child, tmp_path):
    """A process compresses on both of two cores. On more cores, several processes are faster."""
    write_logs(tmp_path / "small", 64)
    trees = [
        tmp_path / "small",
        write_logs(tmp_path / "tree", size(full=140_000, small=64), logs=4, screens=size(full=4000, small=512)),
    ]
    costs = {
        jobs: [
            run_in_child(convert, "atari_dqn/Pong/1", {}, trees, tmp_path / "home", jobs)
            for _ in range(size(full=3, small=1))
        ]
        for jobs in (1, 2)
    }
    took = {jobs: min(cost.seconds for cost in rounds) for jobs, rounds in costs.items()}
    cpu = {jobs: min(cost.cpu for cost in rounds) for jobs, rounds in costs.items()}

    print("\n" + ", ".join(f"{jobs} jobs {took[jobs]:.1f} s, {cpu[jobs]:.1f} s of the processors" for jobs in costs))
    expect("two jobs, times the speed of one", took[1] / took[2], at_least=1)


@pytest.mark.slow
def test_frames_of_ten_games_take_a_25th_of_their_pixels(size, expect_exactly, tmp_path):
    shares = {}
    for game in GAMES[: size(full=10, small=2)]:
        frames = size(full=12_000, small=512)
        tree = write_logs(tmp_path / game, frames, game=game, screens=frames)
        cost = convert("atari_dqn/Pong/1", {}, [tree], tmp_path / "home")
        shares[game] = cost.stored / (cost.steps * 84 * 84)

    print("\n" + ", ".join(f"{game} 1/{1 / share:.0f}" for game, share in shares.items()))
    expect_exactly(
        "stored bytes of a byte of pixels, mean of ten games", sum(shares.values()) / len(shares), at_most=1 / 25
    )
