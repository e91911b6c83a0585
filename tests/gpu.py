"""What batches on a device cost and return, as a script: ``python tests/gpu.py``, or with ``--device cpu`` for what needs none.

Each check prints a line, and a failed check does not end the others. The exit status is 1 if a check failed. What needs a GPU
is listed as not run without one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stored_data import FLAGS, Trajectory, write_dataset
from torch import Tensor, nn

from datasets_rl import GoalSampler, SamplerWithoutReplacement, SliceSampler, load
from datasets_rl.format.schema import Column
from datasets_rl.transforms import (
    ActionChunkTransform,
    CatFrames,
    MultiStepTransform,
    QChunkTransform,
    SequenceTransform,
)

EPISODE = 1000
BATCHES = (256, 1024, 4096, 16384)
WINDOWS: dict[str, Callable[[], Any]] = {
    "steps": lambda: None,
    "n-step 3": lambda: MultiStepTransform(3, 0.99),
    "chunks of 16": lambda: ActionChunkTransform(16),
    "stacks of 4": lambda: CatFrames(4, -1, ["observation"]),
    "sequences of 20": lambda: SequenceTransform.dt_corl(20),
    "Q-chunks of 5": lambda: QChunkTransform(5, 0.99),
}
SAMPLERS: dict[str, Callable[[], Any]] = {
    "any steps": lambda: None,
    "an epoch": lambda: SamplerWithoutReplacement(drop_last=True),
    "slices of 8": lambda: SliceSampler(slice_len=8),
}
TOLERANCE = 1e-5
"""Of sums, which a device computes in another order."""


class NeedsGpuError(Exception):
    """A check that needs a GPU, on a machine without one."""


@dataclass
class Run:
    """The dataset, the device, and what the checks have found."""

    folder: Path
    device: torch.device
    rounds: int
    failed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def files(self, batch: int, **options: Any) -> Any:
        """Return the dataset in its files."""
        return load(self.folder, batch_size=batch, **options)

    def moved(self, batch: int, **options: Any) -> Any:
        """Return the dataset on the device."""
        return self.files(batch, **options).to(self.device)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def needs_gpu(self) -> None:
        """End a check on a machine without a GPU."""
        if not self.on_gpu:
            raise NeedsGpuError

    def microseconds(self, call: Callable[[], Any], repeat: int = 64) -> tuple[float, float]:
        """Return the least microseconds of a call until it returns, and until the device is done.

        The number of calls is that of the batches that `batches` reads at once.
        """
        host, device = [], []
        for _ in range(self.rounds):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            host.append((time.perf_counter() - start) / repeat)
            self.synchronize()
            device.append((time.perf_counter() - start) / repeat)
        return min(host) * 1e6, min(device) * 1e6


def write(folder: Path, steps: int) -> None:
    """Write a dataset of HalfCheetah's shape."""
    rng = np.random.default_rng(0)
    last = (np.arange(EPISODE) == EPISODE - 1)[:, None]
    columns = [
        Column(("observation",), np.dtype(np.float32), (17,), shared=True),
        Column(("action",), np.dtype(np.float32), (6,)),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *FLAGS,
    ]
    episodes = [
        Trajectory(
            {
                ("action",): rng.standard_normal((EPISODE, 6), np.float32),
                ("next", "reward"): rng.standard_normal((EPISODE, 1), np.float32),
                ("next", "terminated"): np.zeros_like(last),
                ("next", "truncated"): last,
            },
            {("observation",): rng.standard_normal((EPISODE + 1, 17), np.float32)},
        )
        for _ in range(max(steps // EPISODE, 1))
    ]
    write_dataset(folder, episodes, columns)


def leaves_of(batch: Any) -> dict[Any, Tensor]:
    return dict(batch.items(True, True))


def differences(batch: Any, expected: Any) -> list[str]:
    """Return the keys whose values differ, or that one batch alone has."""
    ours, theirs = leaves_of(batch.to("cpu")), leaves_of(expected)
    alone = [str(key) for key in ours.keys() ^ theirs.keys()]
    return alone + [
        str(key)
        for key in ours.keys() & theirs.keys()
        if not torch.allclose(ours[key].double(), theirs[key].double(), rtol=TOLERANCE, atol=TOLERANCE)
    ]


def demand(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


# --- values


def check_values(run: Run) -> Iterator[str]:
    """Batches of the same rows, from the device and from the files."""
    for name, window in WINDOWS.items():
        files, moved = (opened(4096, transform=window()) for opened in (run.files, run.moved))
        rows = torch.randint(len(files), (4096,), generator=torch.Generator().manual_seed(0))
        rows[:2] = torch.tensor([0, len(files) - 1])
        wrong = differences(moved.sample(rows=rows), files.sample(rows=rows))
        demand(not wrong, f"{name}: {', '.join(wrong)} differ from the files")
        yield f"{name}: 4,096 rows equal the files"
    batch = run.moved(4096, sampler=GoalSampler(), transform=None).sample().to("cpu")
    is_reached = (batch["value_goal"] == batch["observation"]).all(-1, keepdim=True)
    demand(bool((is_reached == (batch["mask"] == 0)).all()), "goals: the mask is not 0 where the goal is the state")
    yield "goals: the mask is 0 where the goal is the state"


def check_alignment(run: Run) -> Iterator[str]:
    """The addresses of leaves, which decide whether compiled code copies them."""
    batch = run.moved(256).sample()
    wrong = [str(key) for key, leaf in leaves_of(batch).items() if leaf.is_floating_point() and leaf.data_ptr() % 16]
    demand(not wrong, f"{', '.join(wrong)} do not start at a multiple of 16 bytes")
    yield "floating point numbers start at a multiple of 16 bytes"


def check_compiled(run: Run) -> Iterator[str]:
    """Compiled functions that sample, without a graph break."""
    for mode in ("default", "reduce-overhead") if run.on_gpu else ("default",):
        for name, make in SAMPLERS.items():
            if mode != "default" and name != "any steps":
                continue  # rows that are chosen in main memory cannot be replayed
            torch.compiler.reset()
            dataset, files = run.moved(256, sampler=make()), run.files(256)
            compiled = torch.compile(dataset.sample, fullgraph=True, mode=mode)
            drawn = []
            for _ in range(5):
                batch = compiled().clone()
                drawn.append(batch["index"].tolist())
                expected = files.sample(rows=batch["index"].cpu())
                of_slices = ("slice_id", ("next", "truncated"), ("next", "done"))
                wrong = [key for key in differences(batch, expected) if key not in {str(key) for key in of_slices}]
                demand(not wrong, f"{name}, {mode}: {', '.join(wrong)} differ from the files")
            demand(len(set(map(tuple, drawn))) == 5, f"{name}, {mode}: batches repeat")
            yield f"{name}, {mode}: five batches equal the files, and differ from each other"
    for name, window in WINDOWS.items():
        torch.compiler.reset()
        dataset, files = run.moved(256, transform=window()), run.files(256, transform=window())
        batch = torch.compile(dataset.sample, fullgraph=True)()
        wrong = differences(batch, files.sample(rows=batch["index"].cpu()))
        demand(not wrong, f"compiled {name}: {', '.join(wrong)} differ from the files")
        yield f"compiled {name} equal the files"


# --- costs


def check_waits(run: Run) -> Iterator[str]:
    """Whether a batch waits for the device. Sequences do, whose starts are found in main memory."""
    run.needs_gpu()
    for name in ("steps", "n-step 3", "chunks of 16", "stacks of 4"):
        window = WINDOWS[name]
        dataset = run.moved(256, transform=window())
        dataset.sample()
        run.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            dataset.sample()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        yield f"{name}: no wait"


def check_kernels(run: Run) -> Iterator[str]:
    """Kernels and copies of a batch."""
    run.needs_gpu()
    for name, window in WINDOWS.items():
        for kind in ("eager", "compiled"):
            torch.compiler.reset()
            dataset = run.moved(256, transform=window())
            call = dataset.sample if kind == "eager" else torch.compile(dataset.sample, fullgraph=True)
            for _ in range(3):
                call()
            run.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for _ in range(10):
                    call()
                run.synchronize()
            names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
            copies = sum(one.startswith("Memcpy") for one in names)
            yield f"{name}, {kind}: {(len(names) - copies) / 10:.1f} kernels and {copies / 10:.1f} copies a batch"


def check_microseconds(run: Run) -> Iterator[str]:
    """Microseconds of a batch until the call returns, and until the device is done."""
    for batch in BATCHES:
        torch.compiler.reset()
        moved, files = run.moved(batch), run.files(batch)
        runs = moved.batches()
        calls = {
            "sample": moved.sample,
            "batches": lambda runs=runs: next(runs),
            "compiled": torch.compile(moved.sample, fullgraph=True),
            "files": files.sample,
        }
        for name, call in calls.items():
            call()
            host, device = run.microseconds(call)
            yield f"batch {batch:,}, {name}: {host:,.0f} us until the call returns, {device:,.0f} us in all"


def check_cuda_graph(run: Run) -> Iterator[str]:
    """Sampling as a captured CUDA graph."""
    run.needs_gpu()
    dataset, files = run.moved(256), run.files(256)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            dataset.sample()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = dataset.sample()
    drawn = []
    for _ in range(20):
        graph.replay()
        drawn.append(batch["index"].tolist())
        wrong = differences(batch, files.sample(rows=batch["index"].cpu()))
        demand(not wrong, f"{', '.join(wrong)} differ from the files")
    demand(len(set(map(tuple, drawn))) == 20, "replays repeat a batch")
    host, device = run.microseconds(graph.replay)
    yield f"20 replays equal the files, and differ: {host:,.0f} us until the call returns, {device:,.0f} us in all"


def _update(device: torch.device) -> Callable[[Any], None]:
    """Return an update of a network that takes about as long as that of TD3+BC."""
    network = nn.Sequential(nn.Linear(23, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), capturable=device.type == "cuda")

    def update(batch: Any) -> None:
        value = network(torch.cat([batch["observation"], batch["action"]], -1))
        loss = (value - batch["next", "reward"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return update


def check_training(run: Run) -> Iterator[str]:
    """The share of data in a training loop."""
    update, moved, files = _update(run.device), run.moved(256), run.files(256)
    kept = moved.sample()
    _, alone = run.microseconds(lambda: update(kept))
    _, on_device = run.microseconds(lambda: update(moved.sample()))
    _, from_files = run.microseconds(lambda: update(files.sample().to(run.device)))
    yield f"an update alone: {alone:,.0f} us"
    yield f"with batches on the device: {on_device:,.0f} us, {1 - alone / on_device:.0%} for data"
    yield f"with batches of the files: {from_files:,.0f} us, {1 - alone / from_files:.0%} for data"


def check_side_stream(run: Run) -> Iterator[str]:
    """Batches of the files in page-locked memory, copied by a side stream while an update runs."""
    run.needs_gpu()
    update, files, expected = _update(run.device), run.files(4096, pin_memory=True), run.files(4096)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    kept = files.sample().to(run.device)
    _, alone = run.microseconds(lambda: update(kept))

    def copied() -> Any:
        with torch.cuda.stream(side):
            return files.sample().to(run.device, non_blocking=True)

    waiting = [copied()]

    def overlapped() -> None:
        current = torch.cuda.current_stream()
        current.wait_stream(side)
        batch = waiting.pop()
        for leaf in leaves_of(batch).values():
            leaf.record_stream(current)
        update(batch)
        waiting.append(copied())

    _, beside = run.microseconds(overlapped)
    _, serial = run.microseconds(lambda: update(files.sample().to(run.device)))
    torch.cuda.current_stream().wait_stream(side)
    batch = waiting.pop()
    wrong = differences(batch, expected.sample(rows=batch["index"].cpu()))
    demand(not wrong, f"{', '.join(wrong)} differ from the files")
    yield f"an update alone {alone:,.0f} us, with copies beside it {beside:,.0f} us, after a copy {serial:,.0f} us"


CHECKS = {
    "values": check_values,
    "alignment": check_alignment,
    "compiled": check_compiled,
    "waits": check_waits,
    "kernels": check_kernels,
    "microseconds": check_microseconds,
    "CUDA graph": check_cuda_graph,
    "training": check_training,
    "side stream": check_side_stream,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the checks, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=1_000_000, help="number of steps of the dataset")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each measurement, of which the least counts")
    parser.add_argument("--only", nargs="*", choices=CHECKS, default=[*CHECKS], help="the checks to run")
    given = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    try:
        return _run(given)
    finally:
        torch.set_num_threads(threads)


def _run(given: argparse.Namespace) -> int:
    device = torch.device(given.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # on a busy machine, torch waits for its other threads
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "main memory"
    print(f"torch {torch.__version__}, {device}: {name}, {given.steps:,} steps")
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "dataset", device, given.rounds)
        write(run.folder, given.steps)
        for title in given.only:
            try:
                for line in CHECKS[title](run):
                    print(f"ok       {title}: {line}", flush=True)
            except NeedsGpuError:
                run.not_run.append(title)
                print(f"not run  {title}: needs a GPU", flush=True)
            except Exception:  # noqa: BLE001 - the other checks run, too
                run.failed.append(title)
                print(f"FAILED   {title}: {traceback.format_exc()}", flush=True)
    print(f"{len(given.only) - len(run.failed) - len(run.not_run)} ok, failed: {run.failed}, not run: {run.not_run}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
