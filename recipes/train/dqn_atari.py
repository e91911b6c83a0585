"""Offline DQN on stacks of frames: double Q-learning with the penalty of CQL (arXiv:1509.06461, arXiv:2006.04779).

Q = min  huber(Q(s, a) - sign(r) - gamma Q'(s', argmax Q(s', .))) + alpha (logsumexp Q(s, .) - Q(s, a))

Frames are gray or in color, [H, W], [C, H, W] or [H, W, C]. `CatFrames` stacks four when a batch is read. Stacks that
the recipe atari_dqn stored are used unchanged. ``--alpha 0`` is plain DQN, as in Agarwal et al. (2020,
arXiv:1907.04543). With ``--offline-fraction`` below 1, training continues online: that share of each batch is from the
dataset, the rest from the new experience, with frames that a ring keeps compressed.

    rlds train dqn_atari --dataset atari_dqn/Pong/1
    rlds train dqn_atari --dataset atari_dqn/Pong/1 --offline-fraction 0.5
"""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl
from datasets_rl import training
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms import CatFrames

NAME = "dqn_atari"
IMAGES: tuple[Any, ...] = ("observation", ("next", "observation"))
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated", "next.done")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=100_000, eval_every=10_000, eval_episodes=5, batch_size=32)
    parser.add_integer("--eval-steps", 27_000, text="limit of an episode")
    parser.add_widths("--channels", 32, 64, 64, text="of the three convolutions")
    parser.add_hidden(512, text="of hidden layers after the convolutions, a number for each")
    parser.add_number("--lr", 1e-4, above=0, text="of Adam")
    parser.add_number("--discount", 0.99, high=1)
    parser.add_integer("--copy-every", 2_000, text="updates between copies to the target network")
    parser.add_number("--alpha", 0.1, text="weight of the penalty for actions not in the data")
    parser.add_number(
        "--offline-fraction", 1, high=1, text="of a batch, where below 1 means online training in an environment"
    )
    parser.add_integer("--ring", 1_000_000, text="steps of new experience that are kept")
    parser.add_integer("--start", 1_000, low=0, text="steps of the environment before the first update")
    parser.add_integer("--updates", 1, high=1_000, text="for each step of the environment")
    parser.add_number("--epsilon", 0.05, high=1, text="share of random actions of new experience")
    args = parser.parse(argv)
    if args.offline_fraction < 1 and (args.no_eval or args.validation):
        parser.error(
            "argument --no-eval or --validation: online learning has an environment, and holds out no episodes"
        )
    if len(args.channels) != 3:
        parser.error(f"argument --channels: there are {len(args.channels)} widths, expected 3")
    return args


class Images:
    """The layout of the images of a dataset, for the stacks that the network reads."""

    def __init__(self, dataset: Any) -> None:
        spec = dataset.specs.get("observation", None)
        shape = tuple(getattr(spec, "shape", (0,)))
        if len(shape) not in {2, 3}:
            has = f"the observation {list(shape)}" if shape else "nested observations"
            raise InvalidArgumentError(f"{NAME} needs an image as the observation, and {dataset.manifest.id} has {has}")
        self.channels_last = len(shape) == 3 and shape[-1] < shape[0]
        self.axis = -1 if self.channels_last else -3
        self.is_frame = len(shape) == 2 or shape[self.axis] in {1, 3}  # else the dataset holds stacks
        count = (1 if len(shape) == 2 else shape[self.axis]) * (4 if self.is_frame else 1)
        self.shape = (count, *(shape[:2] if self.channels_last else shape[-2:]))
        if min(self.shape[1:]) < 36:
            raise InvalidArgumentError(
                f"{NAME} needs images of at least 36 x 36 pixels, and the stored images are {list(shape)}"
            )

    def stacks(self) -> CatFrames:
        """Return the transform that stacks the frames of a batch."""
        return CatFrames(4, self.axis, in_keys=[*IMAGES], padding="same")

    def first(self, stacks: Tensor) -> Tensor:
        """Return stacks with the channels first, in [0, 1]."""
        return (stacks.movedim(-1, -3) if self.channels_last else stacks) / 255

    def stack(self, frames: list[Any]) -> Tensor:
        """Return the stacks of the last four frames, [E, ...] each, as in `CatFrames`."""
        if not self.is_frame:
            return torch.from_numpy(frames[-1])
        rows = [frame[:, None] if frame.ndim == 3 else frame for frame in frames[-4:]]
        return torch.from_numpy(np.concatenate(rows, axis=self.axis))


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return transitions with stacks of four frames."""
    sampler = rl.RandomSampler(generator=torch.Generator().manual_seed(args.seed))
    data = rl.load(args.dataset, sampler=sampler, final_unknown="drop", **selection).select(KEYS)
    if (images := Images(data)).is_frame:
        data.append_transform(images.stacks())
    return data


class Agent(training.Learner):
    """The network of Mnih et al. (2015): stacks of frames, uint8 [B, C, H, W] or [B, H, W, C], to values of actions, [B, A]."""

    def __init__(self, images: Images, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args, self.images = args, images
        self.actions = int(space.n)
        first, second, third = args.channels
        sizes = [(images.shape[0], first, 8, 4), (first, second, 4, 2), (second, third, 3, 1)]
        self.network = nn.Sequential(
            *(layer for size in sizes for layer in (nn.Conv2d(*size), nn.ReLU())), nn.Flatten()
        )
        size = self.network(torch.zeros(1, *images.shape)).shape[1]
        self.network.extend(training.make_mlp(size, *args.hidden, self.actions))
        self.target = copy.deepcopy(self.network)
        self.to(args.device)
        self.optimizers = {"td": torch.optim.Adam(self.network.parameters(), args.lr, eps=1.5e-4, fused=True)}

    def start_policy(self) -> training.Policy:
        """Return the policy of new episodes, which keeps the last four frames."""
        frames: list[Any] = []

        @torch.no_grad()
        def act(observations: Any, *_: Any) -> Any:
            frames[:] = [
                *(frames or [observations] * 4)[1:],
                observations,
            ]  # as `CatFrames` fills the stacks at the start
            return (
                self.network(self.images.first(self.images.stack(frames).to(self.args.device))).argmax(-1).cpu().numpy()
            )

        return act

    def start_exploring(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """Return the policy of a new episode that collects experience: actions [1] of `dtype` for frames [1, ...]."""
        policy = self.start_policy()

        def explore(frames: Tensor) -> Tensor:
            best = torch.from_numpy(policy(frames.cpu().numpy(), np.zeros(1), {}))
            return torch.where(torch.rand(1) < self.args.epsilon, torch.randint(self.actions, (1,)), best).to(dtype)

        return explore

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the network. Return the losses."""
        following = self.images.first(batch["next", "observation"])
        with torch.no_grad():
            best = self.network(following).argmax(-1, keepdim=True)
            alive = self.args.discount * ~batch["next", "terminated"]
            target = batch["next", "reward"].sign() + alive * self.target(following).gather(-1, best)
        values = self.network(self.images.first(batch["observation"]))
        chosen = values.gather(-1, batch["action"].long().reshape(-1, 1))
        penalty = (values.logsumexp(-1, keepdim=True) - chosen).mean()
        losses = {"td": functional.smooth_l1_loss(chosen, target), "penalty": penalty}
        self.descend("td", losses["td"] + self.args.alpha * penalty)
        if step % self.args.copy_every == 0:
            self.follow(self.target, self.network, 1.0)
        return losses


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        if not hasattr(run.action_space, "n"):
            raise InvalidArgumentError(f"{NAME} needs discrete actions, and {args.dataset} has {run.action_space}")
        agent = Agent(Images(run.dataset.members[0]), run.action_space, args)
        source = online_episodes(run, agent, args) if args.offline_fraction < 1 else None
        return run.train(agent, source=source, evaluate=lambda: run.evaluate(agent, max_steps=args.eval_steps))


def online_episodes(run: Any, agent: Agent, args: argparse.Namespace) -> training.OnlineEpisodes:
    """Return the updates on the dataset and on new experience, with frames compressed like the dataset's frames."""
    if run.envs is None:
        raise InvalidArgumentError(
            f"--offline-fraction {args.offline_fraction:g} is online learning, and {args.dataset} names no environment"
        )
    if not agent.images.is_frame:
        raise InvalidArgumentError(
            f"{args.dataset} holds stacks, and online learning stores frames, and stacks them in batches"
        )
    ring = rl.LazyTensorStorage(args.ring, compress=IMAGES)
    dataset = run.dataset.single("online learning mixes a dataset and new steps")
    rb = rl.OfflineToOnlineReplayBuffer(dataset, online_storage=ring, interleave=True, missing="drop")
    rb.online_buffer.append_transform(agent.images.stacks())
    rb.offline_fraction = args.offline_fraction
    start = functools.partial(agent.start_exploring, dataset[:1]["action"].dtype)
    return training.OnlineEpisodes(agent, start, dataset.make_env(), rb, args, dtype=torch.uint8)


if __name__ == "__main__":
    training.run_program(main)
