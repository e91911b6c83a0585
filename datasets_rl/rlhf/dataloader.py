"""Batches of tokenized datasets, by a replay buffer without replacement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from datasets_rl.buffers import ReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.rlhf.stored import pad_rows
from datasets_rl.rlhf.tokenizers import load_tokenizer
from datasets_rl.samplers import SamplerWithoutReplacement
from datasets_rl.storages import TensorStorage

T = TypeVar("T")


def create_infinite_iterator(iterator: Iterable[T]) -> Iterator[T]:
    """Iterate over an iterable again and again.

    Args:
        iterator: An iterable, such as a list or a replay buffer.

    Yields:
        The items in order, without an end.

    Raises:
        InvalidArgumentError: If a pass yields no item. Otherwise, the iteration would never return.
    """
    while True:
        empty = True
        for item in iterator:
            empty = False
            yield item
        if empty:
            raise InvalidArgumentError(
                f"{type(iterator).__name__} yields no item, so an infinite iterator would wait forever",
                hint="pass an iterable that can be iterated several times, and a batch size of at most its rows",
            )


def get_dataloader(
    batch_size: int,
    block_size: int,
    tensorclass_type: Any,
    device: torch.device | str | None,
    dataset_name: str | None = None,
    infinite: bool = True,
    prefetch: int = 0,
    split: str = "train",
    root_dir: str | Path | None = None,
    from_disk: bool = False,
    num_workers: int | None = None,
    *,
    tokenizer_class: Any = None,
    tokenizer_model_name: str | Path | None = None,
    ragged: bool = False,
) -> Any:
    """Tokenize a dataset, unless it is stored, and return batches of the dataset in random order.

    Args:
        batch_size: Number of rows of a batch, B. Rows that do not fill a batch are left out of a pass.
        block_size: Maximum number of tokens of a sequence, L.
        tensorclass_type: `PromptData`, `PairwiseDataset`, or another tensorclass with a class method `from_dataset`
            that accepts the arguments `split`, `dataset_name`, `max_length`, `root_dir`, `from_disk` and `num_workers`,
            and, if given here, `tokenizer_class`, `tokenizer_model_name` and `ragged`.
        device: Device of the batches.
        infinite: Whether the iteration continues with another pass at the end.
        prefetch: Number of batches to read in advance, in a thread.
        ragged: Whether sequences are stored without padding. The sequences of a batch are then padded to the longest
            sequence of the batch, instead of to L.
        dataset_name: See `TokenizedDatasetLoader`, also for the following. By default the name in the tensorclass.
        split: Name of the split.
        root_dir: Folder of the tokenized datasets.
        from_disk: Whether `datasets.Dataset.save_to_disk` wrote the dataset.
        num_workers: Number of processes that tokenize.
        tokenizer_class: Class of the tokenizer.
        tokenizer_model_name: Name or folder of the tokenizer.

    Returns:
        An infinite iterator over batches [B] of the tensorclass; with `infinite=False`, the replay buffer. Its
        iteration is a single pass.

    Raises:
        InvalidArgumentError: If the dataset has fewer than `batch_size` rows.
        DatasetsRLError: See `TokenizedDatasetLoader.load`.
    """
    tokenizer = {"tokenizer_class": tokenizer_class, "tokenizer_model_name": tokenizer_model_name}
    tokenizer_arguments = {name: value for name, value in tokenizer.items() if value is not None}
    data = tensorclass_type.from_dataset(
        split=split,
        dataset_name=dataset_name,
        max_length=block_size,
        root_dir=root_dir,
        from_disk=from_disk,
        num_workers=num_workers,
        **tokenizer_arguments,
        **({"ragged": True} if ragged else {}),
    )
    count = data.batch_size[0]
    if count < batch_size:
        raise InvalidArgumentError(f"batch_size is {batch_size}, but the dataset has {count:,} rows")
    padding: int = load_tokenizer(**tokenizer).pad_token_id if ragged else 0

    def collate(batch: Any) -> Any:
        # A ragged dataset is sampled by the numbers of its rows.
        rows = pad_rows(data, batch, padding) if ragged else batch
        return rows if device is None else rows.to(device, non_blocking=True)

    buffer = ReplayBuffer(
        storage=TensorStorage(torch.arange(count) if ragged else data),
        collate_fn=collate,
        sampler=SamplerWithoutReplacement(drop_last=True),
        batch_size=batch_size,
        prefetch=prefetch or None,
    )
    return create_infinite_iterator(buffer) if infinite else buffer
