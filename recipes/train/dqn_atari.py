"""Offline DQN on stacks of frames: double Q-learning with the penalty of CQL (arXiv:1509.06461, arXiv:2006.04779).

Q = min  huber(Q(s, a) - sign(r) - gamma Q'(s', argmax Q(s', .))) + alpha (logsumexp Q(s, .) - Q(s, a))

Frames are gray or in color, [H, W], [C, H, W] or [H, W, C]; `CatFrames` stacks four when a batch is read. Stacks that the recipe
atari_dqn stored are taken unchanged. ``--alpha 0`` is plain DQN, as in Agarwal et al. (2020, arXiv:1907.04543).

    rlds train dqn_atari --dataset atari_dqn/Pong/1
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl

NAME = "dqn_atari"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated", "next.done")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = argparse.ArgumentParser(NAME, description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--dataset", required=True, metavar="ID", help="such as atari_dqn/Pong/1")
    parser.add_argument("--seed", type=int, default=0, help="the default is %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: of the network")
    parser.add_argument("--steps", type=int, default=100_000, help="updates; the default is %(default)s")
    parser.add_argument("--eval-every", type=int, default=10_000, metavar="N", help="also saved; default %(default)s")
    parser.add_argument("--eval-episodes", type=int, default=5, metavar="N")
    parser.add_argument("--eval-steps", type=int, default=27_000, metavar="STEPS", help="limit of an episode")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="checkpoint and logs; by default runs/NAME/ID/SEED")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases too")
    parser.add_argument("--batch-size", type=int, default=32, help="the default is %(default)s")
    parser.add_argument("--channels", type=int, nargs=3, default=[32, 64, 64], metavar="N")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-4, help="of Adam; the default is %(default)s")
    parser.add_argument("--discount", type=float, default=0.99, help="the default is %(default)s")
    parser.add_argument("--copy-every", type=int, default=2_000, metavar="STEPS", help="updates of the target network")
    parser.add_argument("--alpha", type=float, default=0.1, help="weight of the penalty for actions not in the data")
    args = parser.parse_args(argv)
    args.out = args.out or Path("runs", NAME, args.dataset.lstrip("./~"), str(args.seed))
    return args


class Images:
    """The layout of the images of a dataset, for the stacks that the network reads."""

    def __init__(self, dataset: Any, env: Any) -> None:
        stored = dataset[:1].get("observation")
        shape = tuple(getattr(stored, "shape", (0,))[1:])
        if len(shape) not in {2, 3} or getattr(env.observation_space, "shape", None) != shape:
            raise SystemExit(
                f"{NAME} needs images; the dataset has observations {list(shape)}, its environment {env.observation_space}"
            )
        self.channels_last = len(shape) == 3 and shape[-1] < shape[0]
        self.axis = -1 if self.channels_last else -3
        self.is_frame = len(shape) == 2 or shape[self.axis] in {1, 3}  # else the dataset holds stacks
        count = (1 if len(shape) == 2 else shape[self.axis]) * (4 if self.is_frame else 1)
        self.shape = (count, *(shape[:2] if self.channels_last else shape[-2:]))
        if min(self.shape[1:]) < 36:
            raise SystemExit(f"{NAME} needs images of at least 36 x 36 pixels; those of the dataset are {list(shape)}")

    def first(self, stacks: Tensor) -> Tensor:
        """Return stacks with the channels first, in [0, 1]."""
        return (stacks.movedim(-1, -3) if self.channels_last else stacks) / 255

    def stack(self, frames: list[Any]) -> Tensor:
        """Return the stack of the last four frames, [1, ...], as `CatFrames` builds it."""
        if not self.is_frame:
            return torch.from_numpy(frames[-1])[None]
        rows = [frame[None] if frame.ndim == 2 else frame for frame in frames[-4:]]
        return torch.from_numpy(np.concatenate(rows, axis=self.axis))[None]


class Agent(nn.Module):
    """The network of Mnih et al. (2015): stacks of frames, uint8 [B, C, H, W] or [B, H, W, C], to values of actions, [B, A]."""

    def __init__(self, images: Images, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args, self.images = args, images
        first, second, third = args.channels
        layers = [
            nn.Conv2d(images.shape[0], first, 8, 4),
            nn.Conv2d(first, second, 4, 2),
            nn.Conv2d(second, third, 3, 1),
        ]
        self.network = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())), nn.Flatten())
        size = self.network(torch.zeros(1, *images.shape)).shape[1]
        self.network.extend([nn.Linear(size, args.width), nn.ReLU(), nn.Linear(args.width, int(space.n))])
        self.target = copy.deepcopy(self.network)
        self.to(args.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), args.lr, eps=1.5e-4, fused=True)

    @torch.no_grad()
    def act(self, stacks: Tensor) -> Tensor:
        """Return the best actions, int64 [B]."""
        return self.network(self.images.first(stacks)).argmax(-1)

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the network; return the losses."""
        following = self.images.first(batch["next", "observation"])
        with torch.no_grad():
            best = self.network(following).argmax(-1, keepdim=True)
            alive = self.args.discount * ~batch["next", "terminated"]
            target = batch["next", "reward"].sign() + alive * self.target(following).gather(-1, best)
        values = self.network(self.images.first(batch["observation"]))
        chosen = values.gather(-1, batch["action"].long().reshape(-1, 1))
        penalty = (values.logsumexp(-1, keepdim=True) - chosen).mean()
        losses = {"td": functional.smooth_l1_loss(chosen, target), "penalty": penalty}
        self.optimizer.zero_grad()
        (losses["td"] + self.args.alpha * penalty).backward()
        self.optimizer.step()
        if step % self.args.copy_every == 0:
            self.target.load_state_dict(self.network.state_dict())
        return losses


def evaluate(agent: Agent, env: Any, args: argparse.Namespace) -> dict[str, float]:
    """Return the mean return of episodes, and the interquartile mean of the scores, in percent."""
    returns = np.zeros(args.eval_episodes)
    for episode in range(args.eval_episodes):
        frame, _ = env.reset(seed=1_000 * args.seed + episode)
        frames = [frame] * 4  # as `CatFrames` fills the stacks at the start of an episode
        for _ in range(args.eval_steps):
            stack = agent.images.stack(frames).to(args.device)
            frame, reward, terminated, truncated, _ = env.step(int(agent.act(stack)))
            frames = [*frames[-3:], frame]
            returns[episode] += float(reward)
            if terminated or truncated:
                break
    found = {"return": float(returns.mean()), "return_std": float(returns.std())}
    try:
        score = rl.interquartile_mean(rl.normalized_score(args.dataset, returns, percent=True))
    except rl.InvalidArgumentError:  # nobody published reference scores
        return found
    return {**found, "score": score.value, "score_low": score.low, "score_high": score.high}


def open_log(args: argparse.Namespace, step: int) -> Any:
    """Return a writer of TensorBoard's files, which W&B copies; None if TensorBoard is not installed."""
    if args.wandb:
        import wandb

        wandb.init(project=args.wandb, name=str(args.out), config=vars(args), sync_tensorboard=True)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(args.out, purge_step=step + 1)


def load_checkpoint(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the checkpoint of a run with the same settings, if there is one."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    other = [f"{name} {value}" for name, value in state["settings"].items() if settings.get(name) != value]
    if other:
        raise SystemExit(f"{path} is of a run with {', '.join(other)}: give another --out, or delete it")
    return state


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as one line of JSON."""
    args = parse_arguments(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    sampler = rl.RandomSampler(generator=torch.Generator().manual_seed(args.seed))
    dataset = rl.load(args.dataset, sampler=sampler, final_unknown="drop").show(KEYS)
    env = dataset.make_env()
    if not isinstance(env.action_space, gymnasium.spaces.Discrete):
        raise SystemExit(f"{NAME} needs discrete actions; those of {args.dataset} are {env.action_space}")
    agent = Agent(images := Images(dataset, env), env.action_space, args)
    if images.is_frame:
        keys = ["observation", ("next", "observation")]
        dataset.append_transform(rl.CatFrames(4, images.axis, in_keys=keys, padding="same"))

    # A run may go on for more steps, or on another device; all other arguments are those of its checkpoint.
    changeable = {"steps", "device", "out", "wandb"}
    settings = {name: value for name, value in vars(args).items() if name not in changeable}
    settings |= {"program": NAME, "data": dataset.manifest.digest}
    step, seconds, history = 0, 0.0, []
    if state := load_checkpoint(args.out / "checkpoint.pt", settings):
        agent.load_state_dict(state["networks"])
        agent.optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        step, seconds, history = state["step"], state["seconds"], state["history"]
    log = open_log(args, step)

    sys.stderr.write(f"{NAME} on {args.dataset}, from step {step:,} to {args.steps:,}; checkpoints in {args.out}\n")
    while step < args.steps:
        began, losses = time.perf_counter(), {}
        # The run of batches ends with the checkpoint: the sampler is not ahead of it.
        for batch in dataset.batches(min(args.eval_every, args.steps - step), args.batch_size):
            step += 1
            losses.update(agent.update(batch.to(args.device), step))
        seconds += time.perf_counter() - began
        last = {name: loss.item() for name, loss in losses.items()}
        history.append({"step": step, **last, **evaluate(agent, env, args), "train_seconds": round(seconds, 1)})
        sys.stderr.write("  ".join(f"{name} {value:,.5g}" for name, value in history[-1].items()) + "\n")
        for name, value in history[-1].items() if log else ():
            log.add_scalar(name, value, step)
        checkpoint = {
            "settings": settings,
            "networks": agent.state_dict(),
            "optimizer": agent.optimizer.state_dict(),
            "sampler": sampler.state_dict(),
            "step": step,
            "seconds": seconds,
            "history": history,
        }
        torch.save(checkpoint, args.out / "checkpoint.tmp")
        os.replace(args.out / "checkpoint.tmp", args.out / "checkpoint.pt")  # whole or not at all, if it is killed
    env.close()
    result = {"algorithm": NAME, "dataset": args.dataset, "seed": args.seed, **history[-1]}
    print(json.dumps(result), flush=True)
    return result


if __name__ == "__main__":
    main()
