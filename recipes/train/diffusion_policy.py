"""Diffusion Policy: a network that turns noise into the next actions, step by step (Chi et al. 2023, arXiv:2303.04137).

loss = || noise - eps(sqrt(c_k) a + sqrt(1 - c_k) noise, k, o) ||^2          a: H actions, o: the last observations
a_k-1 = sqrt(c_k-1) a_0 + sqrt(1 - c_k-1) eps(a_k, k, o)                     sampling (DDIM), from noise to actions

`WindowTransform.diffusion_policy` reads the windows of the code of the authors, padded at both ends of an episode. Of the H
actions, the actions of the next ``--execute`` steps are executed before the network is asked again. Observations are
vectors, images, or both; each camera has a small network in place of a ResNet18.

    rlds train diffusion_policy --dataset demo/pendulum
    rlds train diffusion_policy --dataset local/push
"""

from __future__ import annotations

import argparse
import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl
from datasets_rl import training
from datasets_rl.transforms import DoubleToFloat, WindowTransform

NAME = "diffusion_policy"


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=10_000, eval_every=2_500, batch_size=256)
    parser.add_observations(crop=0.875)
    parser.add_integer("--observe", 2, high=1_000, text="observations that the network gets")
    parser.add_integer("--horizon", 8, high=10_000, text="actions that the network predicts")
    parser.add_integer("--execute", 4, high=10_000, text="actions that are executed")
    parser.add_hidden(256, 256, 256, equal=True)
    parser.add_integer("--noise-levels", 50, high=100_000, text="in training")
    parser.add_integer("--denoise-steps", 10, high=100_000, text="in evaluation")
    parser.add_number("--lr", 1e-3, above=0, text="of AdamW")
    parser.add_number("--ema", 0.995, high=1, text="decay of the averaged network, which acts")
    return parser.parse(argv)


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return windows of the last observations and of the actions from the first of these observations on."""
    windows = WindowTransform.diffusion_policy(
        args.horizon,
        args.observe - 1,
        args.execute - 1,
        [*args.keys, "action"],
        key_first_k=dict.fromkeys(args.keys, args.observe),
    )
    sampler = windows.sampler(generator=torch.Generator().manual_seed(args.seed))
    data = rl.load(args.dataset, sampler=sampler, transform=[DoubleToFloat(), windows], **selection)
    return data.select([*args.keys, "action", "next.done"])


class Denoiser(nn.Module):
    """A residual network: noisy actions [B, H * A], noise levels [B] and features [B, F] to the noise [B, H * A].

    The encoder makes the features of the last N observations.
    """

    def __init__(self, encoder: training.ObservationEncoder, actions: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.encoder, self.width = encoder, (width := args.hidden[0])
        self.first = nn.Linear(actions + args.observe * encoder.size + width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Mish(), nn.Linear(width, width))
            for _ in args.hidden
        )
        self.last = nn.Linear(width, actions)

    def features(self, batch: Any) -> Tensor:
        """Return the features of the windows of a batch, [B, F]."""
        return self.encoder(batch).flatten(1)

    def forward(self, actions: Tensor, level: Tensor, features: Tensor) -> Tensor:
        """Return the noise in the actions."""
        angles = level[:, None] * torch.logspace(0, -4, self.width // 2, device=level.device)
        hidden = self.first(torch.cat([actions, features, angles.sin(), angles.cos()], -1))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(hidden)


class Agent(training.Learner):
    """A policy of the last observations, [B, N, ...], that returns the next actions, in the units of the environment."""

    selected_by = "loss"
    kept: Tensor

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.outputs = training.action_normalizer(NAME, dataset, space, "limits")
        self.shape = (args.horizon, len(self.outputs.shift))
        encoder = training.ObservationEncoder(dataset, "limits", crop=args.crop)
        self.choices = encoder.choices
        self.denoiser = Denoiser(encoder, math.prod(self.shape), args)
        self.average = copy.deepcopy(self.denoiser)
        angles = torch.linspace(0, 1, args.noise_levels + 1) + 0.008  # the squared cosine of Nichol and Dhariwal (2021)
        kept = (angles / 1.008 * math.pi / 2).cos().square()
        self.register_buffer("kept", (kept / kept[0]).clamp(1e-4, 1.0))  # share of the actions in the variance
        self.to(args.device)
        optimizer = torch.optim.AdamW(self.denoiser.parameters(), args.lr, weight_decay=1e-6, fused=True)
        self.optimizers = {"loss": optimizer}

    @torch.no_grad()
    def denoise(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Return the actions of the next steps, [B, T, A], for the observations of a batch, [B, N, ...]."""
        given = self.average.features(batch)
        actions = torch.randn(len(given), math.prod(self.shape), generator=generator, device=given.device)
        levels = np.linspace(self.args.noise_levels, 0, self.args.denoise_steps + 1).round().astype(int).tolist()
        for level, following in pairwise(levels):
            noise = self.average(actions, torch.full((len(given),), level, device=given.device), given)
            kept, kept_next = self.kept[level], self.kept[following]
            clean = ((actions - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-1, 1)
            noise = (actions - kept.sqrt() * clean) / (1 - kept).sqrt()
            actions = kept_next.sqrt() * clean + (1 - kept_next).sqrt() * noise
        first = self.args.observe - 1  # the action of the last observation
        return self.outputs.denormalize(actions.unflatten(1, self.shape))[:, first : first + self.args.execute]

    def start_policy(self) -> training.Policy:
        """Return the policy of new episodes, which executes the predicted actions before the next prediction."""
        generator = torch.Generator(self.args.device).manual_seed(self.args.seed)
        past: list[Any] = []
        planned: list[Tensor] = []

        def act(observations: Any, *_: Any) -> Any:
            past[:] = [*(past or [observations] * self.args.observe)[1:], observations]  # as in the padded windows
            if not planned:
                batch = {"observation": self.as_batch(training.stack_observations(past))}
                planned.extend(self.denoise(batch, generator).unbind(1))
            return planned.pop(0).cpu().numpy()

        return act

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the network and of the average network, and return the loss."""
        del step
        network = self.denoiser if self.learning else self.average
        given = network.features(batch)
        actions = self.outputs(batch["action"]).flatten(1)
        noise = torch.randn_like(actions)
        level = torch.randint(1, self.args.noise_levels + 1, (len(given),), device=actions.device)
        kept = self.kept[level][:, None]
        noisy = kept.sqrt() * actions + (1 - kept).sqrt() * noise
        loss = functional.mse_loss(network(noisy, level, given), noise)
        self.descend("loss", loss)
        self.follow(self.average, self.denoiser, 1 - self.args.ema)
        return {"loss": loss}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        return run.train(Agent(run.dataset, run.action_space, args))


if __name__ == "__main__":
    training.run_program(main)
