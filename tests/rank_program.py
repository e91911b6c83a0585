"""One rank of a training job that logs what it draws. The tests start it with torchrun, kill a rank, and start it again.

argv[1]   JSON: dataset (a folder, or an address to stream), out (a folder), epochs, batch_size, every (the number of steps
          between checkpoints), kill (the rank and the step at which it is
          killed with SIGKILL, or null), start (how often the job was started before), slice_len (of slices, or null)
out       checkpoint.json; start-<start>-<rank>.jsonl: the number of the first step, and for each step the epoch and the steps
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed

from datasets_rl import EpisodeSampler, EpisodeSliceSampler, load


def opened(task):
    dataset, slices = task["dataset"], task["slice_len"]
    if dataset.startswith("http"):
        return load(dataset, batch_size=task["batch_size"], streaming=True, seed=0, buffer_steps=300, slice_len=slices)
    sampler = (
        EpisodeSampler(seed=0, pool_steps=300) if slices is None else EpisodeSliceSampler(seed=0, slice_len=slices)
    )
    return load(dataset, batch_size=task["batch_size"], sampler=sampler)


def train(task):
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    out = Path(task["out"])
    dataset, step = opened(task), 0
    checkpoint = out / "checkpoint.json"
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        step = saved["step"]
        dataset.load_state_dict(saved["dataset"])
    log = (out / f"start-{task['start']}-{rank}.jsonl").open("x", buffering=1)
    print(json.dumps([ranks, step]), file=log)
    for epoch in range(dataset.sampler.epoch, task["epochs"]):
        batches = iter(dataset)
        while True:
            batch = next(batches, None)
            if batch is not None:
                rows = torch.stack([batch["episode"], batch["index"]], 1).tolist()
                print(json.dumps([step, epoch, rows]), file=log)
            having = torch.tensor(int(batch is not None))
            torch.distributed.all_reduce(having)  # as a backward pass does
            if not having:
                break
            step += 1
            if task["kill"] == [rank, step]:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % task["every"] == 0 and having == ranks and rank == 0:
                state = {"step": step, "dataset": dataset.state_dict()}
                (out / "new").write_text(json.dumps(state))
                (out / "new").replace(checkpoint)


def main(task):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    train(task)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
