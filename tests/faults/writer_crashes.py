"""Kill the writer of a shared buffer at random times while two processes sample, and report each trial.

writer_crashes.py '{"trials": 60, "seed": 0}'  ->  a JSON object for each trial
"""

import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing import get_context
from pathlib import Path

import torch
from tensordict import TensorDict

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from datasets_rl.samplers import PrioritizedSliceSampler

SLOTS, CHUNK, WIDTH, SLICE, BATCH = 300, 60, 4_000, 6, 12
FORK = get_context("fork")

SAMPLERS = {
    "uniform": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=SLICE, strict_length=False),
    "prioritized": None,
    "prioritized slices": lambda: PrioritizedSliceSampler(2 * SLOTS, 0.7, 0.5, slice_len=SLICE, strict_length=False),
}
WRITES = ["extend", "add", "scatter", "slice", "field"]
STORAGES = ["memmap", "tensor", "lanes", "compressed"]


def steps(first, count, lanes):
    """Return steps with fields that all derive from a single number, in episodes of 20, [lanes, count] with several lanes."""
    number = torch.arange(first, first + count)
    if lanes > 1:
        number = number + 10_000_000 * torch.arange(lanes).unsqueeze(-1)
    stamp = number.double() + 1
    done = (number % 20 == 19).unsqueeze(-1)
    return TensorDict(
        {
            "stamp": stamp,
            "image": stamp.unsqueeze(-1).expand(*number.shape, 512).contiguous().view(torch.uint8),
            "wide": stamp.unsqueeze(-1).expand(*number.shape, WIDTH).clone(),
            "free": stamp.unsqueeze(-1).expand(*number.shape, 16).clone(),
            "next": {"copy": stamp.clone(), "done": done, "reward": done.double()},
        },
        number.shape,
    )


def torn_in(batch, *, free=False):
    """Return the number of torn records, with fields from two writes.

    `free` includes the field that is written separately.
    """
    stamp = batch["stamp"]
    whole = (batch["wide"] == stamp.unsqueeze(-1)).all(-1) & (batch["next", "copy"] == stamp)
    whole &= (batch["image"].contiguous().view(torch.float64) == stamp.unsqueeze(-1)).all(-1)
    if free:
        whole &= (batch["free"] == stamp.unsqueeze(-1)).all(-1)
    return int((~whole).sum())


def gaps_in(batch):
    """Return the number of steps of slices that do not follow the step before them."""
    same = batch["slice_id"][1:] == batch["slice_id"][:-1]
    return int((batch["stamp"].diff()[same] != 1).sum())


def write(buffer, how, first, started):
    """Write to the buffer in the given way until the process is killed."""
    lanes = buffer.storage.envs
    # The data is prepared first, because the kill must happen during a write. Every chunk begins an episode.
    chunks = [steps(first + place * CHUNK, CHUNK, lanes) for place in range(4)]
    started.value = 1
    for number in itertools.count():
        data = chunks[number % len(chunks)]
        if how == "extend":
            buffer.extend(data)
        elif how == "add":
            for place in range(CHUNK):
                buffer.add(data[..., place])
        elif how == "scatter":
            buffer[torch.randperm(SLOTS)[:CHUNK]] = data.transpose(0, 1) if lanes > 1 else data
        elif how == "slice":
            start = random.randrange(SLOTS - CHUNK)
            buffer[start : start + CHUNK] = data.transpose(0, 1) if lanes > 1 else data
        else:
            buffer["free"] = torch.full((16,), float(number))


def read(buffer, sampled, how, counts, stop, place):
    """Sample until `stop` is set, and count batches, torn records, gaps and failures."""
    try:
        while not stop.value:
            batch = buffer.sample()
            counts[4 * place] += 1
            counts[4 * place + 1] += torn_in(batch, free=how != "field") + int((batch["stamp"] == 0).sum())
            if sampled == "slices" and how == "extend":
                counts[4 * place + 2] += gaps_in(batch)
    except BaseException:
        counts[4 * place + 3] = 1
        traceback.print_exc()
        raise


def made(storage, sampler, folder):
    """Return a buffer with the storage and the sampler, and its number of lanes."""
    lanes = 2 if storage == "lanes" else 1
    kinds = {
        "memmap": lambda: LazyMemmapStorage(SLOTS, scratch_dir=folder, existsok=True),
        "tensor": lambda: LazyTensorStorage(SLOTS),
        "compressed": lambda: LazyMemmapStorage(SLOTS, scratch_dir=folder, existsok=True, compress="image"),
        "lanes": lambda: LazyMemmapStorage(SLOTS * lanes, ndim=2, scratch_dir=folder, existsok=True),
    }
    if SAMPLERS[sampler] is None:
        return TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=kinds[storage](), batch_size=BATCH), lanes
    return TensorDictReplayBuffer(storage=kinds[storage](), sampler=SAMPLERS[sampler](), batch_size=BATCH), lanes


def state_of(buffer, how):
    """Return the numbers of marked, empty and torn steps of the buffer."""
    held = buffer[:]
    empty = int((held["stamp"] == 0).sum())
    return {"torn": buffer.torn_count, "zeros": empty, "mixed": torn_in(held, free=how != "field")}


def wait_until(condition):
    """Poll a condition for at most a second."""
    end = time.monotonic() + 1
    while not condition() and time.monotonic() < end:
        pass


def trial(storage, sampler, how, delay, *, within):
    """Run a trial: fill a buffer, kill its writer after `delay` seconds, and return the results.

    `within` kills during a write, whose mark every process sees.
    """
    with tempfile.TemporaryDirectory() as folder:
        buffer, lanes = made(storage, sampler, folder)
        for first in range(0, SLOTS, CHUNK):
            buffer.extend(steps(first, CHUNK, lanes))
        if not buffer.storage.shared:
            buffer.share()
        counts, stop = FORK.Array("l", 8), FORK.Value("b", 0)
        sampled = sampler.split()[-1]
        readers = [FORK.Process(target=read, args=(buffer, sampled, how, counts, stop, place)) for place in range(2)]
        started = FORK.Value("b", 0)
        writer = FORK.Process(target=write, args=(buffer, how, SLOTS, started))
        for process in (*readers, writer):
            process.start()
        while not started.value:
            time.sleep(0.001)
        time.sleep(delay)
        if within:
            wait_until(lambda: buffer.storage._ledger.unfinished)
            time.sleep(delay / 50)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        again = {"torn": 0, "zeros": 0, "mixed": 0}
        if storage != "tensor":  # open the folder as a later process would, before this process detects the torn steps
            later, _ = made(storage, sampler, folder)
            torn_in(later.sample())
            again = state_of(later, how)
        time.sleep(0.02)
        found = state_of(buffer, how)
        for _ in range(SLOTS // CHUNK):
            buffer.extend(steps(10 * SLOTS, CHUNK, lanes))
        stop.value = 1
        for process in readers:
            process.join(60)
        return {
            "how": f"{storage}, {sampler}, {how}",
            "batches": counts[0] + counts[4],
            "torn_in_batches": counts[1] + counts[5],
            "gaps": counts[2] + counts[6],
            "readers_failed": counts[3] + counts[7],
            "exit": [process.exitcode for process in readers],
            "found": found,
            "reopened": again,
            "healed": buffer.torn_count == 0 and state_of(buffer, how)["zeros"] == 0,
        }


def main():
    """Run the trials of the plan in the argument, over all combinations of storage, sampler and way to write."""
    plan = json.loads(sys.argv[1])
    random.seed(plan["seed"])
    # Most kills hit writes of whole steps, so the ways to write are shuffled.
    kinds = [*itertools.product(STORAGES, SAMPLERS, WRITES)]
    random.shuffle(kinds)
    for number, (storage, sampler, how) in enumerate(itertools.islice(itertools.cycle(kinds), plan["trials"])):
        delay = random.uniform(0.001, 0.03)
        print(json.dumps(trial(storage, sampler, how, delay, within=number % 2 == 0)), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    torch.set_num_threads(1)
    main()
