"""The table of results in README.md: every program on every dataset, with several seeds.

    python -m datasets_rl.recipes.results.table --jobs 2            # makes and runs what is missing, and writes the table

A run that was interrupted resumes, and a run that is done is read from its result.json. So are the datasets. The
networks and the numbers of updates are small, so that the whole table takes two cores less than two hours. Papers take
a hundred times as many updates.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import datasets_rl as rl
from datasets_rl.errors import NotADatasetError

SHARED = "--hidden 64 64 --lr 1e-3 --steps 10000 --eval-every 2500 --eval-episodes 20"
MUJOCO = "--hidden 128 128 --lr 1e-3 --steps 20000 --eval-every 5000 --eval-episodes 10"
SEQUENCES = "--hidden 64 64 --length 10 --steps 5000 --eval-every 2500 --eval-episodes 10"
OFFLINE = ("bc", "td3_bc", "iql", "rebrac")
PLAN: dict[str, dict[str, str]] = {
    "demo/pendulum": dict.fromkeys(OFFLINE, SHARED) | {"cql": f"{SHARED} --weight 0.5"},
    "demo/pendulum@top_10_percent": {"bc": SHARED},
    "local/pendulum-medium-replay": dict.fromkeys(OFFLINE, SHARED),
    "local/cartpole-medium-replay": {"bc": SHARED},
    "local/cartpole-medium-replay@top_10_percent": {"bc": SHARED},
    "local/hopper-medium-replay": {
        **dict.fromkeys(OFFLINE, MUJOCO),
        "rebrac": f"{MUJOCO} --actor-penalty 0.05 --critic-penalty 0.5",
        "dt": SEQUENCES,
    },
    "local/hopper-medium-replay@top_10_percent": {"bc": MUJOCO},
    "local/halfcheetah-medium-replay": {
        **dict.fromkeys(OFFLINE, MUJOCO),
        "rebrac": f"{MUJOCO} --actor-penalty 0.01 --critic-penalty 0.001",
        "dt": SEQUENCES,
    },
    "local/halfcheetah-medium-replay@top_10_percent": {"bc": MUJOCO},
}
"""The programs of each dataset, with their arguments. The penalties of ReBRAC are after the paper's for D4RL."""
BODY = "--start 5000 --eval-every 5000 --hidden 128 128"
GATHERED = {
    "local/pendulum-medium-replay": "Pendulum-v1",
    "local/cartpole-medium-replay": "CartPole-v1 --steps 12000",
    "local/hopper-medium-replay": f"Hopper-v5 --steps 150000 {BODY}",
    "local/halfcheetah-medium-replay": f"HalfCheetah-v5 --steps 100000 --episodes 50 {BODY}",
}
"""The arguments of gather.py that make a dataset."""
README = Path(__file__).parents[1] / "train" / "README.md"
START, END = "<!-- results -->", "<!-- end of results -->"


class Run(NamedTuple):
    """A program on a dataset with a seed."""

    program: str
    dataset: str
    seed: int
    arguments: str
    folder: Path

    @property
    def done(self) -> Path:
        """The file of the result."""
        return self.folder / "result.json"


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser("table", description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--datasets", nargs="+", default=tuple(PLAN), metavar="ID")
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="by default the names in PLAN")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--arguments", help="of every run, by default as in PLAN")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time, a thread each")
    parser.add_argument("--out", type=Path, default=Path("runs", "table"), metavar="FOLDER")
    parser.add_argument("--write", type=Path, default=README, metavar="FILE", help="the page with the table")
    parser.add_argument("--only-write", action="store_true", help="run nothing: write the table of the finished runs")
    return parser.parse_args(argv)


def planned(args: argparse.Namespace) -> list[Run]:
    """Return the runs of the table in its order."""
    runs = []
    for dataset in args.datasets:
        programs = PLAN.get(dataset, dict.fromkeys(OFFLINE, SHARED))
        for name in args.programs or programs:
            arguments = args.arguments or programs.get(name, SHARED)
            folders = [Path(args.out, name, dataset, str(seed)) for seed in range(args.seeds)]
            runs += [Run(name, dataset, seed, arguments, folder) for seed, folder in enumerate(folders)]
    return runs


def make_dataset(dataset: str) -> None:
    """Gather or derive a dataset of the plan that does not exist."""
    base, _, recipe = dataset.partition("@")
    try:
        rl.load(dataset, download=recipe == "" and base not in GATHERED)
    except NotADatasetError:
        if not recipe:
            importlib.import_module(f"{__package__}.gather").main(GATHERED[base].split())
            return
        make_dataset(base)
        rl.load(base).derive(recipe)


def run_one(run: Run) -> dict[str, Any]:
    """Return the result of a run, which begins or resumes if not done."""
    if not run.done.exists():
        torch.set_num_threads(1)
        sys.stderr.write(f"{run.program} on {run.dataset}, seed {run.seed}\n")
        words = ["--dataset", run.dataset, "--seed", str(run.seed), "--out", str(run.folder), *run.arguments.split()]
        result = importlib.import_module(f"datasets_rl.recipes.train.{run.program}").main(words)
        run.done.write_text(json.dumps(result), encoding="utf-8")
    found: dict[str, Any] = json.loads(run.done.read_text(encoding="utf-8"))
    return found


def table_rows(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table: for each dataset the policy in the data, then a line for each program."""
    yield "| dataset | policy | return | score, IQM of seeds [95 % interval] | seeds | updates | minutes a run |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for dataset_id in dict.fromkeys(one["dataset"] for one in results):
        behavior = rl.load(dataset_id, download=False).statistics["return"]["mean"]
        score = rl.normalized_score(dataset_id, behavior, percent=True)
        yield f"| {dataset_id} | in the data | {behavior:,.0f} | {score:.1f} | | | |"
        of_dataset = [one for one in results if one["dataset"] == dataset_id]
        for name in dict.fromkeys(one["algorithm"] for one in of_dataset):
            runs = [one for one in of_dataset if one["algorithm"] == name]
            returns = [one["return"] for one in runs]
            found = rl.interquartile_mean(rl.normalized_score(dataset_id, returns, percent=True))
            minutes = np.mean([one["train_seconds"] for one in runs]) / 60
            yield (
                f"| | {name} | {np.mean(returns):,.0f} ± {np.std(returns):,.0f} | "
                f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}] | {len(runs)} | {runs[0]['step']:,} | {minutes:.1f} |"
            )


def main(argv: list[str] | None = None) -> None:
    """Run what is missing, and write the table after every run."""
    args = parse_arguments(argv)
    runs = planned(args)
    if not args.only_write:
        for dataset in args.datasets:
            make_dataset(dataset)
        missing = [run for run in runs if not run.done.exists()]
        # A new process for each run: what a run leaves in memory does not slow the next run.
        with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
            for _ in pool.map(run_one, missing) if args.jobs > 1 else map(run_one, missing):
                write_table(args.write, runs)
    write_table(args.write, runs)


def write_table(page: Path, runs: list[Run]) -> None:
    """Replace the table between the marks of a page by the table of the finished runs. A new page begins with the table."""
    table = "\n".join(table_rows([run_one(run) for run in runs if run.done.exists()]))
    text = page.read_text(encoding="utf-8") if page.exists() else f"{START}\n{END}\n"
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{START}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
