"""Our programs beside d3rlpy's algorithms, on the same data, networks, batches and seeds: scores and times.

    pip install --no-deps d3rlpy gym gym_notices structlog colorama dataclasses-json marshmallow typing_inspect
    python -m datasets_rl.recipes.results.beside_d3rlpy --dataset demo/pendulum

d3rlpy reads the file that `dataset.export` writes, and normalizes observations, actions and rewards as our programs do.
Its `update` is called without its logger and progress bar. Times are the medians of rounds in which both take turns.
The share of the data is the time of the batches alone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
import torch

import datasets_rl as rl
from datasets_rl import training
from datasets_rl.recipes.results.table import SHARED, Run, run_one
from datasets_rl.transforms import DoubleToFloat

ROUNDS, UPDATES = 9, 100
"""Rounds of a measurement, and the updates or batches of each."""


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser("beside_d3rlpy", description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--dataset", default="demo/pendulum", metavar="ID")
    parser.add_argument(
        "--programs", nargs="+", default=("bc", "td3_bc", "iql"), choices=("bc", "td3_bc", "iql", "cql")
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--arguments", default=SHARED, help="of every run; by default %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs", "table"), metavar="FOLDER", help="that of table.py")
    return parser.parse_args(argv)


class Ours:
    """The program `name` of this package."""

    def __init__(self, name: str, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        program = importlib.import_module(f"datasets_rl.recipes.train.{name}")
        self.agent, self.step = program.Agent(dataset.select(program.KEYS), space, args), 0
        self.batches: Iterator[Any] = dataset.batches(2 * (ROUNDS + 1) * UPDATES, args.batch_size)

    def draw(self) -> Any:
        """Return a batch."""
        return next(self.batches)

    def learn(self, batch: Any) -> None:
        """Take a step."""
        self.step += 1
        self.agent.update(batch, self.step)


class Theirs:
    """The same algorithm of d3rlpy with the settings of our agent."""

    def __init__(self, name: str, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        from d3rlpy import algos, models, preprocessing
        from d3rlpy.dataset import InfiniteBuffer, ReplayBuffer

        ours = importlib.import_module(f"datasets_rl.recipes.train.{name}").Agent(dataset, space, args)
        layers = models.encoders.VectorEncoderFactory(hidden_units=args.hidden)
        scalers = preprocessing.StandardObservationScaler, preprocessing.MinMaxActionScaler
        settings: dict[str, Any] = {
            "batch_size": args.batch_size,
            "observation_scaler": scalers[0](mean=ours.inputs.shift.numpy(), std=ours.inputs.scale.numpy()),
            "action_scaler": scalers[1](minimum=space.low, maximum=space.high),
        }
        if name == "bc":
            settings |= {"learning_rate": args.lr, "encoder_factory": layers}
        else:
            rates = {"actor_learning_rate": getattr(args, "actor_lr", args.lr), "critic_learning_rate": args.lr}
            settings |= {**rates, "actor_encoder_factory": layers, "critic_encoder_factory": layers}
        if hasattr(ours, "reward"):  # these datasets have no sparse rewards, which are shifted
            settings["reward_scaler"] = preprocessing.MultiplyRewardScaler(ours.reward.scale)
        if name == "iql":
            settings |= {"value_encoder_factory": layers}
        if name == "cql":  # without the Lagrange multiplier, as ours
            settings |= {
                "conservative_weight": args.weight,
                "alpha_learning_rate": 0.0,
                "temp_learning_rate": args.actor_lr,
            }
        config = {"bc": "BC", "td3_bc": "TD3PlusBC", "iql": "IQL", "cql": "CQL"}[name]
        # d3rlpy reports what it finds in the file on stdout, where the table is printed.
        with TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            whole = rl.load(args.dataset, final_unknown="keep")
            with whole.export("d3rlpy", Path(folder, "data.h5"), lossy=True).open("rb") as stream:
                self.data = ReplayBuffer.load(stream, InfiniteBuffer())
        self.algorithm = getattr(algos, f"{config}Config")(**settings).create(device=False)
        self.algorithm.build_with_dataset(self.data)

    def draw(self) -> Any:
        """Return a batch."""
        return self.data.sample_transition_batch(self.algorithm.batch_size)

    def learn(self, batch: Any) -> None:
        """Take a step."""
        self.algorithm.update(batch)

    def act(self, observation: Any) -> Any:
        """Return the actions [B, A] for observations [B, O], in the units of the environment."""
        return self.algorithm.predict(observation.astype(np.float32))


def train(name: str, dataset_id: str, seed: int, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Return the result of a run of d3rlpy, with the evaluation of our program. A finished run is read."""
    done = folder / "result.json"
    if done.exists():
        found: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return found
    learner, args, envs = make(Theirs, name, dataset_id, seed, arguments)
    began = time.perf_counter()
    for _ in range(args.steps):
        learner.learn(learner.draw())
    seconds = time.perf_counter() - began
    seeds = np.random.SeedSequence([seed, args.steps, 0]).generate_state(args.eval_episodes)  # the seeds of our run
    episodes = training.play(envs, lambda states, *_: learner.act(states), seeds.tolist())
    envs.close()
    numbers = training.summarize(dataset_id, episodes)
    result = {"algorithm": f"{name} of d3rlpy", "dataset": dataset_id, "seed": seed, "step": args.steps, **numbers}
    folder.mkdir(parents=True, exist_ok=True)
    done.write_text(json.dumps({**result, "train_seconds": round(seconds, 1)}), encoding="utf-8")
    return result


def make(learner: Any, name: str, dataset_id: str, seed: int, arguments: list[str]) -> tuple[Any, Any, Any]:
    """Return a learner, the arguments of its program and the environments of an evaluation."""
    program = importlib.import_module(f"datasets_rl.recipes.train.{name}")
    args = program.parse_arguments(["--dataset", dataset_id, "--seed", str(seed), *arguments])
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - d3rlpy draws its batches from this generator
    dataset = rl.load(dataset_id, transform=DoubleToFloat(), final_unknown="drop")
    envs = gymnasium.vector.SyncVectorEnv([dataset.make_env] * args.eval_episodes)
    return learner(name, dataset, envs.single_action_space, args), args, envs


def seconds_of(learners: tuple[Any, Any]) -> tuple[list[float], list[float]]:
    """Return the seconds of an update, and of its batch, for each learner: medians of rounds in turn."""
    took = np.zeros((ROUNDS + 1, 2, 2))  # [R, learner, update or batch]; the first round is not counted
    for one in took:
        for learner, times in zip(learners, one, strict=True):
            began = time.perf_counter()
            for _ in range(UPDATES):
                learner.learn(learner.draw())
            middle = time.perf_counter()
            for _ in range(UPDATES):
                learner.draw()
            times[:] = middle - began, time.perf_counter() - middle
    updates, batches = np.median(took[1:], 0).T / UPDATES
    return list(updates), list(batches)


def main(argv: list[str] | None = None) -> None:
    """Print the table, a line after each algorithm."""
    args = parse_arguments(argv)
    arguments = args.arguments.split()
    print(f"| {args.dataset} | score: ours | d3rlpy | ms of an update: ours | d3rlpy | share of data: ours | d3rlpy |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in args.programs:
        returns: list[list[float]] = [[], []]  # ours, and theirs
        for seed in range(args.seeds):
            sys.stderr.write(f"{name} on {args.dataset}, seed {seed}\n")
            place = Path(args.dataset, str(seed))
            ours = run_one(Run(name, args.dataset, seed, args.arguments, args.out / name / place))
            theirs = train(name, args.dataset, seed, args.out / f"{name} of d3rlpy" / place, arguments)
            returns[0].append(ours["return"])
            returns[1].append(theirs["return"])
        made = [make(one, name, args.dataset, 0, arguments)[0] for one in (Ours, Theirs)]
        updates, batches = seconds_of((made[0], made[1]))
        scores = np.asarray(rl.normalized_score(args.dataset, np.array(returns), percent=True))
        cells = [
            *(" ".join(f"{score:.0f}" for score in one) for one in scores),
            *(f"{1000 * seconds:.2f}" for seconds in updates),
            *(f"{batch / update:.0%}" for batch, update in zip(batches, updates, strict=True)),
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    training.run_program(main)
