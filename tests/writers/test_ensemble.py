"""An ensemble of writers refuses ambiguous writes, and saves the state of all members."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages import LazyTensorStorage
from datasets_rl.writers import RoundRobinWriter, TensorDictMaxValueWriter, WriterEnsemble


@pytest.fixture
def ensemble():
    writers = RoundRobinWriter(), TensorDictMaxValueWriter("rank")
    for writer in writers:
        writer.register_storage(LazyTensorStorage(3))
    return WriterEnsemble(*writers)


def ranked(values):
    return TensorDict({"rank": torch.tensor(values, dtype=torch.float64)}, [len(values)])


@pytest.mark.parametrize("verb", ["add", "extend"])
def test_a_write_is_refused_with_the_way_to_select_a_member(ensemble, verb):
    with pytest.raises(InvalidArgumentError, match=f"cannot {verb} dict") as caught:
        getattr(ensemble, verb)({})
    assert f"rb[i].{verb}(data)" in caught.value.hint


def test_members_are_indexed_by_number(ensemble):
    assert len(ensemble) == 2
    assert ensemble[1] is ensemble.writers[1]
    assert ensemble[:1].writers == (ensemble[0],)
    assert repr(ensemble) == (
        "WriterEnsemble(RoundRobinWriter(), TensorDictMaxValueWriter(rank_key=('rank',), reduction='sum'))"
    )


def test_the_states_of_the_members_are_its_state(ensemble):
    ensemble[1].extend(ranked([1, 2]))
    other = WriterEnsemble(RoundRobinWriter(), TensorDictMaxValueWriter("rank"))
    other.load_state_dict(ensemble.state_dict())

    assert other[1].state_dict()["ranks"].tolist() == [1, 2]
    ensemble.empty()
    assert ensemble[1].state_dict()["ranks"].tolist() == []


def test_if_one_state_does_not_fit_no_state_is_loaded(ensemble):
    ensemble[1].extend(ranked([1, 2]))
    state = ensemble.state_dict()
    other = WriterEnsemble(TensorDictMaxValueWriter("rank"), TensorDictMaxValueWriter("other"))

    with pytest.raises(InvalidArgumentError, match=r"writer 0: .*; writer 1: rank_key is"):
        other.load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="the state has 2 writers, expected 1"):
        other[:1].load_state_dict(state)
    assert other[1].state_dict()["ranks"].tolist() == []
    for states in (None, 3, [3, 4]):
        with pytest.raises(InvalidArgumentError, match="writers are not a list of states"):
            other.load_state_dict({"writers": states})
