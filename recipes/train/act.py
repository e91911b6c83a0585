"""ACT, Action Chunking with Transformers: the next actions at once, as a variational autoencoder (Zhao et al. 2023, arXiv:2304.13705).

loss = | a - pi(o, z) |  +  beta KL(q(z | a, o) || N(0, 1))          a: H actions inside of the episode, o: the last observation

In training, z is the style of the demonstration, drawn from the encoder q. In evaluation, z is 0. The network is asked
in every step, and executes the mean of all actions that it predicted for this step, with the weights exp(-m i), i = 0
for the oldest prediction.

Left out of the paper: the ResNet18 of ImageNet (a small network per camera is trained from scratch), and positions that are added to the
queries and keys of each layer (here added to the inputs). The widths are smaller, and ``--hidden 512 512 512 512
--chunk 100`` has the paper's.

    rlds train act --dataset local/push
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import datasets_rl as rl
from datasets_rl import training
from datasets_rl.transforms import DoubleToFloat, WindowTransform

NAME = "act"


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=10_000, eval_every=2_500, batch_size=32)
    parser.add_observations()
    parser.add_integer("--chunk", 16, high=10_000, text="actions that are predicted at once, in the paper 100")
    parser.add_hidden(128, 128, equal=True, text="of the layers of each transformer, a number for each")
    parser.add_integer("--heads", 4, high=1_000, text="of attention, a divisor of the width, in the paper 8")
    parser.add_integer("--style", 32, high=10_000, text="numbers of z")
    parser.add_number("--beta", 10, text="weight of the divergence")
    parser.add_number("--dropout", 0.1, high=0.9)
    parser.add_number("--ensemble", 0.01, text="m, of the weights of earlier predictions")
    parser.add_number("--lr", 3e-4, above=0, text="of AdamW, in the paper 1e-5")
    args = parser.parse(argv)
    if args.hidden[0] % args.heads or args.hidden[0] % 4:
        parser.error(
            f"argument --hidden: the width is {args.hidden[0]}, expected a multiple of 4 and of --heads {args.heads}"
        )
    return args


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return steps with the chunks of the next actions, and the mask of those after the end."""
    windows = WindowTransform.act(args.chunk)
    sampler = windows.sampler(generator=torch.Generator().manual_seed(args.seed))
    data = rl.load(args.dataset, sampler=sampler, transform=[DoubleToFloat(), windows], **selection)
    return data.select([*args.keys, "action", "next.done"])


def positions(count: int, width: int, like: Tensor) -> Tensor:
    """Return the sinusoidal embedding of 0 to `count` - 1, [count, width]."""
    angles = torch.arange(count, device=like.device)[:, None] * torch.logspace(0, -4, width // 2, device=like.device)
    return torch.cat([angles.sin(), angles.cos()], -1)


class Agent(training.Learner):
    """A policy of observations [B, ...] that predicts chunks of actions [B, H, A], in the units of the environment."""

    selected_by = "l1"

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.ObservationEncoder(dataset, "standard", crop=args.crop)
        self.outputs = training.action_normalizer(NAME, dataset, space, "standard")
        self.choices = self.inputs.choices
        actions, width, layers = len(self.outputs.shift), args.hidden[0], len(args.hidden)
        sizes = (width, args.heads, 4 * width, args.dropout)
        layer = nn.TransformerEncoderLayer(*sizes, batch_first=True)
        self.style = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)  # q
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, batch_first=True), layers)
        self.vectors = nn.Linear(max(1, self.inputs.vector_size), width)
        self.map, self.action, self.last = (
            nn.Linear(self.inputs.width, width),
            nn.Linear(actions, width),
            nn.Linear(width, actions),
        )
        self.to_style, self.from_style = nn.Linear(width, 2 * args.style), nn.Linear(args.style, width)
        self.summary, self.queries = (nn.Parameter(torch.randn(count, width)) for count in (1, args.chunk))
        self.to(args.device)
        self.optimizers = {"loss": torch.optim.AdamW(self.parameters(), args.lr, weight_decay=1e-4, fused=True)}

    def infer(self, batch: Any, actions: Tensor, is_pad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the logarithm of the variance of z, [B, Z] each, for normalized actions [B, H, A]."""
        tokens = [self.summary.expand(len(actions), -1, -1), *self.embedded_vectors(batch), self.action(actions)]
        inputs = torch.cat(tokens, 1)
        inputs = inputs + positions(inputs.shape[1], inputs.shape[2], inputs)
        unused = functional.pad(is_pad, (inputs.shape[1] - is_pad.shape[1], 0))
        mean, spread = self.to_style(self.style(inputs, src_key_padding_mask=unused)[:, 0]).chunk(2, -1)
        return mean, spread

    def embedded_vectors(self, batch: Any) -> list[Tensor]:
        """Return the token of the vectors, [B, 1, D], or nothing with images alone."""
        return [self.vectors(self.inputs.vectors(batch))[:, None]] if self.inputs.vector_size else []

    def predict(self, batch: Any, style: Tensor) -> Tensor:
        """Return normalized actions [B, H, A] for observations and z [B, Z]."""
        tokens = [self.from_style(style)[:, None], *self.embedded_vectors(batch)]
        for maps in self.inputs.maps(batch):
            rows, columns = (positions(count, self.args.hidden[0] // 2, maps) for count in maps.shape[-2:])
            places = [rows[:, None].expand(-1, len(columns), -1), columns.expand(len(rows), -1, -1)]
            tokens.append(self.map(maps.flatten(2).mT) + torch.cat(places, -1).flatten(0, 1))
        return self.last(self.decoder(self.queries.expand(len(style), -1, -1), self.encoder(torch.cat(tokens, 1))))

    def start_policy(self) -> training.Policy:
        """Return the policy of new episodes, which averages the predictions for a step in the last H steps."""
        plans: list[Tensor] = []

        @torch.no_grad()
        def act(observations: Any, returns: Any, _: Any) -> Any:
            style = torch.zeros(len(returns), self.args.style, device=self.queries.device)
            plans[:] = [*plans, self.predict({"observation": self.as_batch(observations)}, style)][-self.args.chunk :]
            now = torch.stack([plan[:, -age] for age, plan in enumerate(plans, 1 - len(plans))], 1)  # the oldest first
            weights = (-self.args.ensemble * torch.arange(len(plans), device=now.device)).softmax(0)
            return self.outputs.denormalize((weights[:, None] * now).sum(1)).cpu().numpy()

        return act

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the network and return the losses. For held-out batches z is 0, as in the policy."""
        del step
        actions, inside = self.outputs(batch["action"]), ~batch["is_pad"]
        mean, spread = self.infer(batch, actions, batch["is_pad"])
        style = mean + (spread / 2).exp() * torch.randn_like(mean) if self.learning else torch.zeros_like(mean)
        error = (self.predict(batch, style) - actions).abs().mean(-1)
        losses = {
            "l1": (error * inside).sum() / inside.sum(),
            "divergence": (mean**2 + spread.exp() - 1 - spread).sum(-1).mean() / 2,
        }
        self.descend("loss", losses["l1"] + self.args.beta * losses["divergence"])
        return losses


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        return run.train(Agent(run.dataset, run.action_space, args))


if __name__ == "__main__":
    training.run_program(main)
