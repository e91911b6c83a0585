"""The table of results in README.md: every program on every dataset, with several seeds.

    python -m datasets_rl.recipes.train.table                     # runs what is missing, and writes the table

A run that was interrupted resumes, and one that is done is read from its result.json. The networks and the numbers of
updates are small, so that the whole table takes two cores about an hour; papers take a hundred times as many.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import datasets_rl as rl

PROGRAMS = ("bc", "td3_bc", "iql", "rebrac", "cql")
PLAN = {
    "demo/pendulum": PROGRAMS,
    "demo/pendulum@top_10_percent": ("bc",),
    "local/pendulum-medium-replay": ("bc", "td3_bc", "iql", "rebrac"),
    "local/cartpole-medium-replay": ("bc",),
    "local/cartpole-medium-replay@top_10_percent": ("bc",),
}
"""The programs of each dataset."""
SHARED = "--hidden 64 64 --lr 1e-3 --steps 10000 --eval-every 2500 --eval-episodes 20"
README = Path(__file__).with_name("README.md")
START, END = "<!-- results -->", "<!-- end of results -->"


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser("table", description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--datasets", nargs="+", default=tuple(PLAN), metavar="ID")
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="by default those of PLAN")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--arguments", default=SHARED, help="of every run; by default %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs", "table"), metavar="FOLDER")
    parser.add_argument("--write", type=Path, default=README, metavar="FILE", help="the page with the table")
    parser.add_argument("--only-write", action="store_true", help="run nothing: write the table of the finished runs")
    return parser.parse_args(argv)


def run_one(folder: Path, name: str, dataset_id: str, seed: int, arguments: list[str]) -> dict[str, Any]:
    """Return the result of a run, which begins or resumes if it is not done."""
    done = folder / "result.json"
    if done.exists():
        found: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return found
    program = importlib.import_module(f"{__package__}.{name}")
    result: dict[str, Any] = program.main(
        ["--dataset", dataset_id, "--seed", str(seed), "--out", str(folder), *arguments]
    )
    done.write_text(json.dumps(result), encoding="utf-8")
    return result


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
    results: list[dict[str, Any]] = []
    plan = {one: args.programs or PLAN.get(one, PROGRAMS) for one in args.datasets}
    cells = [(seed, one, name) for one, names in plan.items() for name in names for seed in range(args.seeds)]
    for seed, dataset_id, name in cells:
        folder = args.out / name / dataset_id / str(seed)
        if args.only_write and not (folder / "result.json").exists():
            continue
        sys.stderr.write(f"{name} on {dataset_id}, seed {seed}\n")
        results.append(run_one(folder, name, dataset_id, seed, args.arguments.split()))
        write_table(args.write, "\n".join(table_rows(results)))


def write_table(page: Path, table: str) -> None:
    """Replace the table between the marks of a page; a page that does not exist begins with it."""
    text = page.read_text(encoding="utf-8") if page.exists() else f"{START}\n{END}\n"
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{START}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
