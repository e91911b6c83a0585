"""A training run of an agent: updates, evaluations, checkpoints and the result."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from datasets_rl import disk, progress
from datasets_rl.catalog.environments import named_environment
from datasets_rl.errors import Argument, InvalidArgumentError, MissingDependencyError, Remedy
from datasets_rl.libraries import importing
from datasets_rl.lockfile.lock import LOCK_FILE
from datasets_rl.lockfile.write import lock_opened
from datasets_rl.settings import Settings
from datasets_rl.training import checkpoints
from datasets_rl.training.data import Named, TrainingData, shared_episodes_of
from datasets_rl.training.evaluation import Episodes, Policy, StoppedError, play, summarize
from datasets_rl.training.fit import check_fit, fitted_steps
from datasets_rl.training.holding_out import hold_out
from datasets_rl.training.interrupts import Interrupts
from datasets_rl.training.learner import Learner, has_bounds

_CHANGEABLE = {"steps", "device", "out", "wandb", "quiet", "threads", "no_conventions"}
"""Arguments that may change on resume. All other arguments must equal the arguments in the checkpoint."""
_CHUNK_SECONDS = 0.25
_MAX_CHUNK = 1024
"""Maximum number of updates between two checks of interrupts and losses, which are `_CHUNK_SECONDS` apart."""
_VALIDATION_BATCHES = 32
_SMALL = 1 << 26
"""For smaller products of the batch size and the number of parameters, one thread is nearly as fast as several."""


class Source(Protocol):
    """Source of updates other than batches of the dataset, for a program that also acts in an environment."""

    def updates(self, step: int, target: int) -> Iterator[tuple[int, Sequence[Mapping[str, Tensor]]]]:
        """Yield the number of the last step, and the losses since the previous yield. The run may be saved at a yield."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is needed to continue the updates exactly."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""


class Run:
    """Context manager of a run: opens the dataset, makes the environments, and locks the output folder.

        >>> with Run("bc", args, open_dataset) as run:
        ...     return run.train(Agent(run.dataset, run.action_space, args))

    Errors come before training: a missing dataset, members of a mixture that do not fit together, an environment that
    cannot be made, another run in the same folder.

    Args:
        name: The name of the program.
        args: The arguments of a `Parser`.
        open_dataset: Returns the dataset of the arguments, with `selection` only the selected episodes. Called for each
            member of a mixture.

    Raises:
        InvalidArgumentError: If the environment of the dataset cannot be made, no episode is left to train on, or datasets
            do not fit together.
        LockedError: If another run uses the output folder.
    """

    dataset: TrainingData
    """The dataset or the mixture, without the episodes that are held out."""
    held_out: TrainingData | None = None
    """The episodes for the validation loss, or None without a validation loss."""
    envs: Any = None
    """An environment for each episode of an evaluation, or None without evaluation."""
    action_space: Any
    """The action space of the environment, or of the dataset."""
    step: int = 0
    """Number of updates so far."""

    def __init__(self, name: str, args: argparse.Namespace, open_dataset: Callable[..., Any]) -> None:
        self.name, self.args = name, args
        self._open_dataset = open_dataset
        self._resources = contextlib.ExitStack()
        self._interrupts = Interrupts()
        self._seconds = {"train": 0.0, "data": 0.0}
        self._has_started = False
        self._history: list[dict[str, float]] = []
        self._last: dict[str, float] = {}
        self._environment: dict[str, Any] | None = None
        self._data_facts: dict[str, Any] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as resources:
            torch.manual_seed(self.args.seed)
            self.dataset = self._open(self.args.dataset)
            self._make_environments(resources)
            self._open_validation()
            self._report_members()
            disk.check_outside_versions(self.args.out)
            resources.enter_context(
                disk.lock(self.args.out / ".rlds-train.lock", f"the run in {self.args.out}", wait=0.0)
            )
            for name in (checkpoints.CHECKPOINT, checkpoints.PREVIOUS, checkpoints.BEST):
                disk.free_temporary_files(self.args.out, name)
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _open(self, name: str) -> TrainingData:
        return TrainingData(Named.read(name), self._open_dataset, self.args)

    def _make_environments(self, resources: contextlib.ExitStack) -> None:
        with importing("gymnasium", "gymnasium", f"the program {self.name}"):
            import gymnasium

        if not self.args.no_eval and (reason := self._no_environment()):
            self._print(f"{reason}: the policy is not evaluated")
            self.args.no_eval = True
        if self.args.no_eval:
            self.action_space = _action_space(self.dataset)
            return
        member = self.dataset.members[0]
        try:
            self._environment = member.describe_env()
            self.envs = gymnasium.vector.SyncVectorEnv([member.make_env] * self.args.eval_episodes)
        except (InvalidArgumentError, MissingDependencyError) as error:
            without = Remedy("or train without evaluation: {}", Argument("no_eval", True))
            error.hint = Remedy("{}, {}", error.remedy, without) if error.remedy else without
            raise
        resources.callback(self.envs.close)
        self.action_space = self.envs.single_action_space

    def _no_environment(self) -> str:
        """Return why there is no environment of all members, or nothing if there is one."""
        data = self.dataset
        environments = []
        for name, member in zip(data.names, data.members, strict=True):
            try:
                environments.append(named_environment(member.manifest))
            except InvalidArgumentError:
                return f"{name} does not name an environment"
        different = [
            f"{environment.id} of {name}"
            for name, environment in zip(data.names, environments, strict=True)
            if environment != environments[0]
        ]
        if different:
            first = f"{environments[0].id} of {data.names[0]}"
            return f"the members of {data.name} name different environments, {', '.join([first, *different])}"
        try:
            units = [fitted_steps(member) for member in data.members] if len(data.members) > 1 else []
        except InvalidArgumentError as error:  # a member is a merge of datasets in different units
            return error.message
        if any(steps != units[0] for steps in units):
            return (
                f"the members of {data.name} have observations in different units, and no environment has all of them"
            )
        return ""

    def _open_validation(self) -> None:
        """Open the data for the validation loss, or hold out a share of the episodes."""
        if self.args.validation is None:
            self.args.validation = 0.05 if self.args.no_eval else 0.0
        if isinstance(self.args.validation, str):
            self._open_held_out(self.args.validation)
        elif self.args.validation:
            self._hold_out(self.args.validation)
        if self.held_out is not None:
            self._validation_start = self.held_out.sampler.state_dict()

    def _open_held_out(self, name: str) -> None:
        self.held_out = self._open(name)
        trained = (self.dataset.names[0], self.dataset.members[0])
        for member in zip(self.held_out.names, self.held_out.members, strict=True):
            check_fit(
                "the data for training and for validation", [trained, member], conventions=not self.args.no_conventions
            )
        episodes = sum(len(np.unique(member.episodes.numbers)) for member in self.held_out.members)
        self._data_facts["held_out"] = episodes
        self._print(f"the validation loss is that of {episodes:,} episodes of {name}")

    def _hold_out(self, share: float) -> None:
        whole = self.dataset
        held_out = hold_out(whole, share, self.args.seed)
        self.held_out, self.dataset = whole.part(held_out.validating), whole.part(held_out.training)
        count, rest = (sum(map(len, part)) for part in (held_out.validating, held_out.training))
        self._data_facts |= {"held_out": count, "held_out_copies": held_out.copies}
        self._print(f"{count:,} of {count + rest:,} episodes are held out for the validation loss")
        if held_out.copies:
            self._print(f"{held_out.copies:,} of the held-out episodes have copies, which are held out, too")

    def _report_members(self) -> None:
        """Report the shares of the members, and the episodes that two members, or training and validation, have."""
        if len(self.dataset.members) > 1:
            shares = zip(self.dataset.names, self.dataset.shares, strict=True)
            self._print(
                f"a batch of {self.args.batch_size:,}: {', '.join(f'{share:.1%} {name}' for name, share in shares)}"
            )
        if len(self._named_data()) == len(self.dataset.members) == 1:
            return
        pairs = [*shared_episodes_of(*self._named_data())]
        self._data_facts["shared"] = [{"datasets": [*pair.names], "episodes": pair.shared} for pair in pairs]
        for pair in pairs:
            self._print(str(pair))

    def play(
        self, policy: Policy, *, number: int = 0, options: Mapping[str, Any] | None = None, max_steps: int | None = None
    ) -> Episodes:
        """Play an episode in each environment, with seeds that depend on the seed of the run, the step and `number`.

        Args:
            policy: The policy, as from `Learner.start_policy`.
            number: Number of this call in an evaluation.
            options: Options of `reset`.
            max_steps: Steps after which an episode is cut.
        """
        words = np.random.SeedSequence([self.args.seed, self.step, number]).generate_state(self.envs.num_envs)
        stop = self._is_interrupted
        return play(self.envs, policy, words.tolist(), options=options, max_steps=max_steps, stop=stop)

    def evaluate(self, learner: Learner, *, max_steps: int | None = None) -> dict[str, float]:
        """Return the numbers of an evaluation with an episode in each environment, empty without environments.

        Args:
            learner: The agent.
            max_steps: Steps after which an episode is cut.
        """
        if self.envs is None:
            return {}
        return summarize(self.args.dataset, self.play(learner.start_policy(), max_steps=max_steps))

    def train(
        self,
        learner: Learner,
        *,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
        source: Source | None = None,
    ) -> dict[str, Any]:
        """Train, evaluate, save, and print the result as a line of JSON.

        The run resumes at the checkpoint in the output folder. The first Ctrl-C or SIGTERM saves the run after the
        current step, and then acts. The same command continues the run, with the results of an uninterrupted run.

        Args:
            learner: The agent of the program.
            evaluate: Returns the numbers of an evaluation, by default `Run.evaluate`.
            source: The source of updates, by default batches of the dataset.

        Returns:
            The result: the program, the dataset, the seed, the choices of the learner, and the numbers of the last
            evaluation.

        Raises:
            InvalidArgumentError: If the checkpoint is of another run, or the training diverged.
            IntegrityError: If the checkpoint is damaged.
            DiskFullError: If a checkpoint cannot be written.
            KeyboardInterrupt: If the run was interrupted. The run is saved.
        """
        self._learner, self._source = learner, source or _Batches(self)
        self._evaluate_with = evaluate or partial(self.evaluate, learner)
        with self._threads(), self._interrupts:
            self._resume()
            self._write_lock()
            end = f"{self.args.steps:,}" if source is None else f"the end of the episode with step {self.args.steps:,}"
            self._print(
                f"{self.name} on {self.args.dataset}, from step {self.step:,} to {end}, with checkpoints in {self.args.out}"
            )
            if learner.choices:
                self._print("  ".join(f"{name} {_text(value)}" for name, value in learner.choices.items()))
            with self._open_log() as log, self._open_bar() as bar:
                while True:
                    if self._evaluation_is_due():
                        self._evaluate(log, bar)
                    if self.step >= self.args.steps:
                        break
                    self._advance(bar)
        facts = {"algorithm": self.name, "dataset": self.args.dataset, "seed": self.args.seed}
        result = {**facts, **self._data_facts, **learner.choices, **self._history[-1]}
        print(json.dumps(result), flush=True)  # noqa: T201 -- the output of a program
        return result

    def _advance(self, bar: progress.Report) -> None:
        """Train until the next evaluation."""
        target = min((self.step // self.args.eval_every + 1) * self.args.eval_every, self.args.steps)
        self._learner.train()
        began = time.perf_counter()
        for step, losses in self._source.updates(self.step, target):
            _check_losses(losses, step - len(losses))
            bar(step - self.step)
            self.step = step
            for row in losses:
                self._last.update(row)  # type: ignore[arg-type]  # numbers once the loop has ended
            if not bar.silent:
                bar.set_note("  ".join(f"{name} {float(value):.4g}" for name, value in self._last.items()))
            if self._is_interrupted():
                break
        self._seconds["train"] += time.perf_counter() - began
        self._last = {name: float(value) for name, value in self._last.items()}
        if self._is_interrupted():
            self._stop()

    def _evaluation_is_due(self) -> bool:
        reached = self.step >= self.args.steps or (self._history[-1]["step"] if self._history else 0) < (
            self.step // self.args.eval_every * self.args.eval_every
        )
        return reached and not (self._history and self._history[-1]["step"] == self.step)

    def _evaluate(self, log: Any, bar: progress.Report) -> None:
        self._learner.eval()
        try:
            results = {**self._validate(), **self._evaluate_with()}
        except StoppedError:
            self._stop()
            raise
        seconds = {f"{name}_seconds": round(value, 1) for name, value in self._seconds.items()}
        row = {"step": self.step, **self._last, **results, **seconds}
        self._history.append(row)
        if not self.args.quiet:
            bar.write_line("  ".join(f"{name} {value:,.5g}" for name, value in row.items()))
        self._save()
        with disk.disk_errors(self.args.out, hint=checkpoints.FULL):
            for name, value in row.items() if log else ():
                log.add_scalar(name, value, self.step)

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        """Return the mean losses of the same batches of held-out episodes, with the same noise, without updates."""
        if self.held_out is None:
            return {}
        learner = self._learner
        self.held_out.sampler.load_state_dict(self._validation_start)
        count = min(_VALIDATION_BATCHES, -(-len(self.held_out) // self.args.batch_size))
        with torch.random.fork_rng():
            torch.manual_seed(self.args.seed)
            learner.learning = False
            try:
                batches = self.held_out.batches(count, self.args.batch_size)
                rows = [learner.update(self._on_device(batch), 0) for batch in batches]
            finally:
                learner.learning = True
        names = rows[0].keys()
        return {f"validation_{name}": float(torch.stack([row[name] for row in rows]).mean()) for name in names}

    def _on_device(self, batch: Any) -> Any:
        return batch if self.args.device == "cpu" else batch.to(self.args.device)

    def _timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches, and add up the waiting times, except for the first batch of the process.

        The first batch waits for the start of readers, and for compilation.
        """
        began = time.perf_counter()
        for batch in batches:
            self._seconds["data"] += time.perf_counter() - began if self._has_started else 0
            self._has_started = True
            yield batch
            began = time.perf_counter()

    def _is_interrupted(self) -> bool:
        return self._interrupts.requested is not None

    def _stop(self) -> None:
        """Save the run, and let the signal act."""
        self._save()
        message = f"the checkpoint of step {self.step:,} is saved in {self.args.out}: the same command continues there"
        self._print(message)
        self._interrupts.act(message)

    def _save(self) -> None:
        state = {
            "settings": self._settings(),
            "environment": self._environment,
            "networks": self._learner.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self._learner.optimizers.items()},
            "source": self._source.state_dict(),
            "random": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],
            "step": self.step,
            "seconds": self._seconds,
            "losses": self._last,
            "history": self._history,
        }
        path = self.args.out / checkpoints.CHECKPOINT
        checkpoints.write_checkpoint(path, state, previous=path.with_name(checkpoints.PREVIOUS))
        loss = f"validation_{self._learner.selected_by}"
        values = [row[loss] for row in self._history if loss in row]
        if values and self._history[-1]["step"] == self.step and values[-1] <= min(values):
            checkpoints.write_checkpoint(path.with_name(checkpoints.BEST), state)

    def _write_lock(self) -> None:
        """Write which data the run trains on and validates with beside the checkpoints."""
        opened = lock_opened(
            self.args.out / LOCK_FILE,
            [data.named.name for data in self._named_data()],
            [
                (name, member.manifest, member.data_path)
                for data in self._named_data()
                for name, member in zip(data.names, data.members, strict=True)
            ],
        )
        with disk.disk_errors(self.args.out, hint=checkpoints.FULL):
            opened.write()

    def _named_data(self) -> list[TrainingData]:
        """Return the data of ``--dataset``, and of ``--validation`` if it names data."""
        named = self.held_out if isinstance(self.args.validation, str) else None
        return [self.dataset] if named is None else [self.dataset, named]

    def _settings(self) -> dict[str, Any]:
        settings = {name: value for name, value in vars(self.args).items() if name not in _CHANGEABLE}
        return {**settings, "program": self.name, **self._data_settings()}

    def _data_settings(self) -> dict[str, Any]:
        """Return what identifies the data: the digests, and the arguments of a mixture."""
        settings: dict[str, Any] = {}
        for what, data in zip(("data", "validation data"), self._named_data(), strict=False):
            if len(data.members) == 1:
                settings[what] = data.members[0].manifest.digest
                continue
            for number, (name, member) in enumerate(zip(data.names, data.members, strict=True)):
                settings[f"{what} of member {number}, {name}"] = member.manifest.digest
            settings[f"shares of {what}"] = " ".join(f"{share:.6g}" for share in data.shares)
            settings |= {f"{key} of {what}": value for key, value in data.named.settings.items()}
        return settings

    def _resume(self) -> None:
        path = checkpoints.latest_checkpoint(self.args.out)
        if path is None:
            return
        state, settings = checkpoints.read_checkpoint(path), self._settings()
        former = state["settings"]
        names = ["program"] if settings["program"] != former.get("program") else {**settings, **former}
        other = [name for name in names if settings.get(name) != former.get(name)]
        if other:
            differences = ", ".join(f"{name} {former.get(name)}, not {settings.get(name)}" for name in other)
            raise InvalidArgumentError(
                f"{path} is of another run: {differences}",
                hint=Remedy("give another {}, or delete the checkpoint", Argument("out")),
            )
        try:
            self._learner.load_state_dict(state["networks"])
            for name, optimizer in self._learner.optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
            self._source.load_state_dict(state["source"])
            torch.set_rng_state(state["random"][0])
            if len(state["random"]) == 1 + torch.cuda.device_count():
                torch.cuda.set_rng_state_all(state["random"][1:])
            self.step, self._seconds = state["step"], state["seconds"]
            self._last, self._history = state["losses"], state["history"]
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise InvalidArgumentError(
                f"{path} does not fit this version of {self.name}: {reason:.200}",
                hint=Remedy("give another {}, or delete the checkpoint", Argument("out")),
            ) from error

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        """Set the number of threads of torch, and restore the former number."""
        former, threads = torch.get_num_threads(), self.args.threads
        parameters = [*self._learner.parameters()]
        work = self.args.batch_size * sum(parameter.numel() for parameter in parameters)
        convolves = any(parameter.ndim > 2 for parameter in parameters)  # a convolution uses each weight many times
        if threads is None and self.args.device == "cpu" and work < _SMALL and not convolves:
            threads = 1
        torch.set_num_threads(threads or former)
        try:
            yield
        finally:
            torch.set_num_threads(former)

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[Any]:
        """Yield a writer of TensorBoard files, which W&B copies, or None if TensorBoard is not installed."""
        if self.args.wandb:
            import wandb

            settings = self._settings()
            wandb.init(project=self.args.wandb, name=str(self.args.out), config=settings, sync_tensorboard=True)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            if error.name != "tensorboard":
                raise
            yield None
            return
        with disk.disk_errors(self.args.out, hint=checkpoints.FULL):
            log = SummaryWriter(self.args.out, purge_step=self.step + 1)
        try:
            yield log
        finally:
            with disk.disk_errors(self.args.out, hint=checkpoints.FULL):
                log.close()

    def _open_bar(self) -> contextlib.AbstractContextManager[progress.Report]:
        show = sys.stderr.isatty() and not self.args.quiet and Settings.from_env().progress
        return progress.report(self.name, self.args.steps, unit=" steps", done=self.step, show=show)

    def _print(self, text: str) -> None:
        if not self.args.quiet:
            sys.stderr.write(f"{text}\n")


class _Batches:
    """Updates on the batches of the dataset."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def updates(self, step: int, target: int) -> Iterator[tuple[int, Sequence[Mapping[str, Tensor]]]]:
        """Yield after chunks of batches. At the end of a chunk, the sampler is not ahead of the updates."""
        run, chunk = self._run, 1
        learner = run._learner  # noqa: SLF001 - the two classes are one file
        while step < target:
            began, losses = time.perf_counter(), []
            batches = run.dataset.batches(min(chunk, target - step), run.args.batch_size)
            for batch in run._timed(batches):  # noqa: SLF001 - the same
                step += 1
                row = learner.update(run._on_device(batch), step)  # noqa: SLF001 - the same
                losses.append({name: loss.detach() for name, loss in row.items()})
            yield step, losses
            per_update = (time.perf_counter() - began) / len(losses)
            chunk = min(_MAX_CHUNK, 2 * chunk, max(1, int(_CHUNK_SECONDS / per_update)))

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._run.dataset.sampler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run.dataset.sampler.load_state_dict(state)


def _check_losses(losses: Sequence[Mapping[str, Tensor]], before: int) -> None:
    """Check that the losses of consecutive updates are finite, with one transfer from the device."""
    values = [(number, name, value) for number, row in enumerate(losses, 1) for name, value in row.items()]
    if not values or bool(torch.stack([value for *_, value in values]).isfinite().all()):
        return
    number, name, value = next(each for each in values if not bool(each[2].isfinite()))
    raise InvalidArgumentError(
        f"the training diverged at step {before + number:,}: the loss {name} is {float(value)}",
        hint=Remedy("take a smaller {}", Argument("lr")),
    )


def _action_space(dataset: Any) -> Any:
    """Return the action space of a dataset. Without stated bounds, the space has the extremes of the actions."""
    from gymnasium.spaces import Box, Discrete

    spec = dataset.specs["action"]
    if (count := getattr(spec.space, "n", None)) is not None:  # such actions may have no statistics
        return Discrete(int(count))
    statistics = dataset.statistics["action"]
    low, high = np.asarray(statistics["min"]), np.asarray(statistics["max"])
    if not spec.dtype.is_floating_point:
        return Discrete(int(np.max(high) + 1))
    bounds = [np.asarray(getattr(spec.space, name, np.inf), np.float64) for name in ("low", "high")]
    if has_bounds(*bounds):
        low, high = bounds
    return Box(np.float32(low), np.float32(high), tuple(spec.shape), np.float32)


def _text(value: Any) -> str:
    return f"{value:,.5g}" if isinstance(value, float) else str(value)
