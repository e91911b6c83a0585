"""A checkpoint with a damaged or edited state.json is refused with the documented error; the buffer does not change."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import IntegrityError, InvalidArgumentError

SLOTS = 12


def steps(count, envs=None):
    shape = (count,) if envs is None else (envs, count)
    number = torch.arange(count).expand(shape).clone()
    done = (number % 4 == 3).unsqueeze(-1)
    return TensorDict(
        {"observation": number.float(), "next": {"reward": number.unsqueeze(-1).float(), "done": done}}, shape
    )


def generator():
    return torch.Generator().manual_seed(0)


BUFFERS = {
    "list": lambda: ReplayBuffer(
        storage=ListStorage(SLOTS), sampler=PrioritizedSampler(SLOTS, 0.7, 0.5), batch_size=3, collate_fn=list
    ),
    "memmap": lambda: TensorDictReplayBuffer(
        storage=LazyMemmapStorage(SLOTS), sampler=SamplerWithoutReplacement(generator=generator()), batch_size=3
    ),
    "highest": lambda: TensorDictReplayBuffer(
        storage=LazyTensorStorage(SLOTS), writer=TensorDictMaxValueWriter(), batch_size=3, prefetch=2
    ),
    "lanes": lambda: TensorDictReplayBuffer(
        storage=LazyTensorStorage(2 * SLOTS, ndim=2),
        sampler=SliceSamplerWithoutReplacement(slice_len=2, generator=generator()),
        batch_size=4,
    ),
    "ensemble": lambda: ReplayBufferEnsemble(
        *(TensorDictReplayBuffer(storage=LazyTensorStorage(SLOTS)) for _ in range(2)), batch_size=4
    ),
}


def filled(kind):
    torch.manual_seed(0)  # hypothesis replays failures, which must have the same data
    buffer = BUFFERS[kind]()
    for member in [buffer] if kind != "ensemble" else [buffer[0], buffer[1]]:
        data = steps(SLOTS + 3, 2 if kind == "lanes" else None)
        member.extend([1.5, (2, "x"), {"a": torch.ones(2)}] * 5 if kind == "list" else data)
    buffer.sample()
    return buffer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of each kind, and the text of its state.json."""
    folders = {kind: tmp_path_factory.mktemp("saved") for kind in BUFFERS}
    for kind, folder in folders.items():
        filled(kind).dumps(folder)
    return folders


def places(tree, path=()):
    """Yield the path of every value in a document."""
    yield path
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield from places(tree[key], (*path, key))


OTHER_KINDS = [None, True, 3, -1, 2**70, 1.5, "x", "", [], [1], {}, {"a": 1}]


@st.composite
def edits(draw, document):
    """A document in which one to three values are deleted, replaced by None or replaced by another type."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([*places(document)][1:] or [()]))
        if not path:
            break
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        other = [value for value in OTHER_KINDS if type(value) is not type(parent[path[-1]])]
        if draw(st.booleans()):
            del parent[path[-1]]
        else:
            parent[path[-1]] = copy.deepcopy(draw(st.sampled_from(other)))
    return document


def load_edited(folder, kind, document):
    """Load an edited copy of a checkpoint, and return the error."""
    changed = Path(tempfile.mkdtemp())
    try:
        shutil.copytree(folder, changed, dirs_exist_ok=True)
        (changed / "state.json").write_text(json.dumps(document))
        BUFFERS[kind]().loads(changed)
    except Exception as error:  # noqa: BLE001 - the test checks its type
        return error
    finally:
        shutil.rmtree(changed)
    return None


def with_digest(document):
    """Return an edited checkpoint with the digest of what it states now."""
    content = {key: value for key, value in document.items() if key != "digest"}
    return {**content, "digest": hashlib.sha256(json.dumps(content).encode()).hexdigest()}


def is_newer(document):
    """Return whether a checkpoint states a later version of its format, which is read before the digest."""
    version = document.get("version")
    is_ours = document.get("format") == "datasets-rl checkpoint"
    return is_ours and isinstance(version, int) and not isinstance(version, bool) and version > 1


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", BUFFERS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_an_edited_checkpoint_is_refused_as_damaged(saved, kind, data):
    document = json.loads((saved[kind] / "state.json").read_text())
    edited = data.draw(edits(document))
    error = load_edited(saved[kind], kind, edited)

    if json.dumps(edited) == json.dumps(document):  # in Python, True == 1
        assert error is None
    elif is_newer(edited):
        assert type(error) is InvalidArgumentError, repr(error)
        assert "this release reads version 1" in error.message
    elif {"kind", "state"} <= edited.keys():
        assert type(error) is IntegrityError, repr(error)
        assert error.hint
    else:
        assert error is None or type(error) in {IntegrityError, InvalidArgumentError}, repr(error)


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", BUFFERS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_an_edited_checkpoint_with_the_digest_of_the_edit_is_refused_or_fits(saved, kind, data):
    document = json.loads((saved[kind] / "state.json").read_text())
    document["state"] = data.draw(edits(document["state"]))
    error = load_edited(saved[kind], kind, with_digest(document))

    assert error is None or type(error) in {IntegrityError, InvalidArgumentError}, repr(error)


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_checkpoint_that_was_reformatted_but_not_edited_is_loaded(saved, kind):
    document = json.loads((saved[kind] / "state.json").read_text())

    assert load_edited(saved[kind], kind, document) is None


@pytest.mark.parametrize("index", [True, 1.5, [True], [10**6], -1, "x", None, {"buffer_ids": True}])
def test_a_batch_sampled_ahead_of_time_without_an_index_is_refused(index):
    state = {**filled("highest").state_dict(), "ahead": [{"index": index, "info": [], "last": False}]}

    with pytest.raises(InvalidArgumentError, match="ahead"):
        filled("highest").load_state_dict(state)
