"""The shared arguments of training programs, and checks of the values before any network is built."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from datasets_rl.errors import Argument, DatasetsRLError, Remedy
from datasets_rl.settings import require_memory

_MAX_WIDTH = 65_536
_MAX_BATCH = 1 << 20
_DEVICE = re.compile("(cpu|cuda|mps|xpu)(:[0-9]+)?")
_BYTES_OF_A_PARAMETER = 16
"""Bytes of a float32, of the gradient, and of the two moments of Adam."""


class Parser(argparse.ArgumentParser):
    """A parser with the arguments of all programs, to which a program adds more arguments.

        >>> parser = Parser("bc", __doc__, steps=20_000, eval_every=5_000, batch_size=256)
        >>> parser.add_hidden(256, 256)
        >>> parser.add_number("--lr", 3e-4, above=0, text="of Adam")
        >>> args = parser.parse(["--dataset", "demo/pendulum"])

    Args:
        name: The name of the program.
        text: The docstring of the program. The first paragraph is the description.
        steps: The default of ``--steps``.
        eval_every: The default of ``--eval-every``.
        eval_episodes: The default of ``--eval-episodes``.
        batch_size: The default of ``--batch-size``.
        paper: The number of steps in the paper, as an addition to the help of ``--steps``.
    """

    def __init__(
        self,
        name: str,
        text: str | None,
        *,
        steps: int,
        eval_every: int,
        batch_size: int,
        eval_episodes: int = 10,
        paper: str = "",
    ) -> None:
        description = " ".join((text or "").partition("\n\n")[0].split())
        super().__init__(name, description=description, allow_abbrev=False)
        self._checked: list[str] = []
        self._equal = False
        self.add_argument(
            "--dataset",
            required=True,
            metavar="ID",
            help="an id, such as demo/pendulum, a folder, or a mixture, mix.toml",
        )
        self.add_integer("--seed", 0, low=0, high=(1 << 32) - 1, text="of the networks, batches and evaluations")
        self.add_argument("--device", type=_device, default="cpu", help="cpu or cuda, default %(default)s")
        self.add_integer("--threads", None, text="threads of torch on the CPU, by default 1 for small networks")
        self.add_integer("--steps", steps, text=f"updates{paper and f'; {paper}'}")
        self.add_integer("--eval-every", eval_every, text="updates between evaluations, which also save a checkpoint")
        self.add_integer("--eval-episodes", eval_episodes, high=10_000, text="episodes of an evaluation")
        self.add_argument("--no-eval", action="store_true", help="make no environment, and print a validation loss")
        self.add_argument(
            "--validation",
            type=_share_or_name,
            metavar="X",
            help="share of the episodes that are held out for a validation loss, by default 0, or 0.05 without environment; "
            "or the id, folder or mixture of other data",
        )
        self.add_argument(
            "--no-conventions",
            action="store_true",
            help="accept other bounds, rates, units and signs in a mixture or in data for validation",
        )
        self.add_argument(
            "--out", type=Path, metavar="FOLDER", help="of checkpoints and logs, by default runs/NAME/ID/SEED"
        )
        self.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases too")
        self.add_argument("--quiet", action="store_true", help="print the result only")
        self.add_integer("--batch-size", batch_size, high=_MAX_BATCH, text="of an update")

    def add_integer(
        self,
        flag: str,
        default: int | None,
        *,
        low: int = 1,
        high: int = 10**12,
        text: str = "",
        count: int | None = None,
    ) -> None:
        """Add an integer from `low` to `high`. With `count`, add a list of `count` integers."""
        self._add(flag, partial(_integer, low=low, high=high), default, "N", text, count)

    def add_number(
        self,
        flag: str,
        default: float | None,
        *,
        low: float = 0.0,
        high: float = math.inf,
        above: float = -math.inf,
        text: str = "",
    ) -> None:
        """Add a finite number from `low` to `high`, which is larger than `above`."""
        self._add(flag, partial(_number, low=low, high=high, above=above), default, "X", text)

    def add_widths(self, flag: str, *default: int, text: str) -> None:
        """Add a list of widths of layers. The layers must fit into the memory."""
        self._checked.append(flag)
        self._add(flag, partial(_integer, low=1, high=_MAX_WIDTH), [*default], "WIDTH", text, "+")

    def add_hidden(self, *default: int, equal: bool = False, text: str = "of hidden layers, a number for each") -> None:
        """Add ``--hidden``, the widths of the hidden layers of all networks.

        Args:
            *default: The width of each layer.
            equal: Whether all layers must have the same width, as in a transformer.
            text: The description of the layers.
        """
        self._equal = equal
        self.add_widths("--hidden", *default, text=f"{text}, all equal" if equal else text)

    def add_actor_critic(self, hidden: Sequence[int] = (256, 256), lr: float = 3e-4) -> None:
        """Add the widths of the networks, the learning rate, the discount and the rate of the target networks."""
        self.add_hidden(*hidden)
        self.add_number("--lr", lr, above=0, text="of Adam")
        self.add_number("--discount", 0.99, high=1)
        self.add_number("--tau", 0.005, high=1, text="share of the networks in an update of the targets")

    def add_observations(self, crop: float = 1.0) -> None:
        """Add the inputs of a policy: the keys of observations, and the crop of images, as in `ObservationEncoder`."""
        self.add_argument(
            "--keys",
            nargs="+",
            default=["observation"],
            metavar="KEY",
            help="inputs of the policy, default observation",
        )
        self.add_number("--crop", crop, above=0, high=1, text="share of the sides of images, at a random position")

    def add_reward_scaling(self) -> None:
        """Add the arguments of `reward_scaling`."""
        self.add_number("--reward-scale", None, above=0, text="by default 1,000 / (highest - lowest return), as in IQL")
        self.add_number(
            "--reward-shift", None, low=-1e9, text="added to scaled rewards, by default -1 if rewards are 0 or 1"
        )

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Return the parsed arguments, by default from the command line of this process.

        Torch is imported only for a device other than the CPU, so that a wrong argument is reported at once.

        Raises:
            NotEnoughMemoryError: If the networks cannot fit into the memory of this machine.
        """
        args = self.parse_args(argv)
        if self._equal and len({*args.hidden}) > 1:
            self.error(f"argument --hidden: the widths are {' '.join(map(str, args.hidden))}, expected equal widths")
        args.out = args.out or Path("runs", self.prog, args.dataset.lstrip("./~"), str(args.seed))
        for flag in self._checked:
            name = flag.strip("-").replace("-", "_")
            _check_memory(name, getattr(args, name))
        return args

    def _add(
        self,
        flag: str,
        kind: Callable[[str], float],
        default: object,
        metavar: str,
        text: str,
        count: int | str | None = None,
    ) -> None:
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        parts = [text, "" if default is None else f"default {shown}"]
        help_text = "; ".join(part for part in parts if part).replace("%", "%%")
        self.add_argument(flag, type=kind, default=default, metavar=metavar, nargs=count, help=help_text)


def run_program(main: Callable[[], object]) -> None:
    """Run the `main` function of a program, and report an error as `Parser` reports a wrong argument.

    An error of this package, or an `OSError`, is a line on stderr, and the program ends with the exit code 2. With
    RLDS_DEBUG=1 the error is raised, with a traceback.

    Args:
        main: The function, which uses the arguments of this process.

    Raises:
        SystemExit: If the function raised an error.
    """
    try:
        main()
    except (DatasetsRLError, OSError) as error:
        if os.environ.get("RLDS_DEBUG") == "1":
            raise
        parts = [error.message, error.remedy.text_with(_spell)] if isinstance(error, DatasetsRLError) else [str(error)]
        line = "; ".join(" ".join(part.split()) for part in parts if part)
        sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {line}\n")
        raise SystemExit(2) from None


def _spell(action: Any) -> str:
    """Return the text of an action of a remedy. An argument becomes an option of the program."""
    return shlex.join(action.option_words()) if isinstance(action, Argument) else str(action)


def _integer(text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"the value is {text}, expected an integer from {low:,} to {high:,}")
    return value


def _number(text: str, low: float, high: float, above: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (low <= value <= high and value > above and math.isfinite(value)):
        bound = f"above {above:g}" if above >= low else f"of at least {low:g}"
        limit = "" if math.isinf(high) else f", at most {high:g}"
        raise argparse.ArgumentTypeError(f"the value is {text}, expected a finite number {bound}{limit}")
    return value


def _share_or_name(text: str) -> float | str:
    """Return a share, or the name of a dataset."""
    try:
        float(text)
    except ValueError:
        return text
    return _number(text, low=0.0, high=0.9, above=-math.inf)


def _device(text: str) -> str:
    if text == "cpu":
        return text
    if not _DEVICE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"the value is {text}, expected cpu, cuda or cuda:N")
    import torch

    try:
        torch.empty(0, device=text)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        raise argparse.ArgumentTypeError(
            f"the value is {text}, which this machine or this build of torch does not have"
        ) from error
    return text


def _check_memory(name: str, widths: Sequence[int]) -> None:
    needed = _BYTES_OF_A_PARAMETER * sum(before * after for before, after in pairwise(widths))
    purpose = f"a network with hidden layers of {', '.join(map(str, widths))}"
    require_memory(needed, purpose, hint=Remedy("take smaller layers with {}", Argument(name)))
