"""Names with dots: those of entries of groups, and those of entries of which the name has a dot."""

from __future__ import annotations

import pickle

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import (
    LazyTensorStorage,
    ListStorage,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    traj,
)
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs.infer import spec_from_data
from datasets_rl.transforms import (
    CatFrames,
    CatTensors,
    ExcludeTransform,
    MultiStepTransform,
    NextObservationDelta,
    ObservationNorm,
    RandomShift,
    RenameTransform,
    SelectTransform,
    SequenceTransform,
    StepCounter,
    Transform,
    VecNorm,
    WindowTransform,
    split_trajectories,
    step_mdp,
)

LENGTHS = (3, 4)
FORMS = ["nested", "dotted"]


def steps(form):
    """Return the steps of two episodes with the state in a group, or under a name with a dot."""
    count = sum(LENGTHS)
    states = torch.arange(count + 1.0).unsqueeze(-1)
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[torch.tensor(LENGTHS).cumsum(0) - 1] = True
    key = ("observation", "state") if form == "nested" else "observation.state"
    data = TensorDict({"action": states[:-1] * 10, "next": {"done": done, "reward": torch.ones(count, 1)}}, [count])
    data["next", "terminated"] = done.clone()
    data.set(key, states[:-1])
    return data.set(("next", *key) if form == "nested" else ("next", key), states[1:])


def entry(batch, form, name="observation.state"):
    path = tuple(name.split(".")) if form == "nested" else (name,)
    if form == "dotted" and name.startswith("next."):
        path = ("next", name.removeprefix("next."))
    return batch.get(path if len(path) > 1 else path[0])


def buffer(form, transform=None, **options):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=transform, **options)
    rb.extend(steps(form))
    return rb


NAME, NEXT_NAME = "observation.state", "next.observation.state"
CASES = {
    "windows": (lambda name: WindowTransform({name(NAME): (1, 0)}), [NAME, "observation.state_valid"]),
    "mask of windows": (
        lambda name: WindowTransform({name(NAME): (0, 1)}, mask_keys={name(NAME): name("observation.mask")}),
        [NAME, "observation.mask"],
    ),
    "preset": (lambda name: WindowTransform.lerobot(2, 2, [name(NAME)]), [NAME, "observation.state_is_pad"]),
    "frames": (lambda name: CatFrames(2, -1, [name(NAME), name(NEXT_NAME)]), [NAME, NEXT_NAME]),
    "new name": (lambda name: RenameTransform([name(NAME)], [name("observation.s")]), ["observation.s"]),
    "selection": (lambda name: SelectTransform(name(NAME), "next"), [NAME]),
    "exclusion": (lambda name: ExcludeTransform(name(NAME)), ["action"]),
    "sequences": (lambda name: SequenceTransform(2, observation_key=name(NAME)), [NAME, "returns_to_go"]),
    "norm": (lambda name: ObservationNorm(1.0, 2.0, [name(NAME)]), [NAME]),
    "running norm": (lambda name: VecNorm([name(NAME)]), [NAME]),
    "differences": (lambda name: NextObservationDelta([name(NAME)]), [NAME, NEXT_NAME]),
    "concatenation": (lambda name: CatTensors([name(NAME), "action"], "all"), ["all"]),
    "inverse": (lambda name: ObservationNorm(1.0, 2.0, [name(NAME)], in_keys_inv=[name(NAME)]), [NAME]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_a_name_with_dots_gives_the_same_as_the_key_of_the_data(case, form):
    make, results = CASES[case]

    def exact(name):
        names = name.split(".")
        if form == "nested":
            return tuple(names)
        return ("next", ".".join(names[1:])) if names[0] == "next" else name

    rows = torch.arange(sum(LENGTHS))
    expected, batch = (buffer(form, make(spell))[rows] for spell in (exact, lambda name: name))
    for name in results:
        assert torch.equal(entry(batch, form, name), entry(expected, form, name))
    assert set(batch.keys(True, True)) == set(expected.keys(True, True))
    # Directly, through a pickle and of a spec; of a transform that has met no data yet.
    assert (make(str)(steps(form)) == make(exact)(steps(form))).all()
    assert (pickle.loads(pickle.dumps(make(str)))(steps(form)) == make(exact)(steps(form))).all()
    spec = spec_from_data(steps(form))
    assert make(str).transform_spec(spec) == make(exact).transform_spec(spec)


def test_the_forms_have_the_same_values():
    nested, dotted = (buffer(form, WindowTransform({NAME: (1, 0)}))[:] for form in FORMS)

    assert nested["observation", "state"].squeeze(-1).tolist()[:4] == [[0, 0], [0, 1], [1, 2], [3, 3]]
    assert torch.equal(nested["observation", "state"], dotted["observation.state"])


def test_a_name_with_dots_is_preferred_to_a_group_of_the_same_names():
    both = TensorDict({"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}}, [2])
    made = ObservationNorm(1.0, 1.0, ["a.b"])(both)

    assert made["a.b"].tolist() == [2, 2]
    assert made["a", "b"].tolist() == [0, 0]
    assert ObservationNorm(1.0, 1.0, [("a", "b")])(both)["a", "b"].tolist() == [1, 1]


def test_one_transform_follows_the_data_that_it_meets():
    transform = ObservationNorm(1.0, 1.0, [NAME])
    assert transform.in_keys == [("observation", "state")]
    for form in (*FORMS, *FORMS):
        assert entry(transform(steps(form)), form).tolist() == (steps("nested")["observation", "state"] + 1).tolist()


def test_other_key_arguments_accept_dots():
    counted = StepCounter(step_count_key="info.count")(steps("nested"))
    assert counted["info", "count"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert counted["next", "info", "count"].flatten().tolist() == [1, 2, 3, 1, 2, 3, 4]
    data = steps("nested").set(("next", "info"), TensorDict({"r": torch.ones(7, 1)}, [7]))
    summed = MultiStepTransform(2, 0.5, reward_keys=["info.r"])(data)
    assert summed["next", "info", "r"].flatten().tolist() == [1.5, 1.5, 1, 1.5, 1.5, 1.5, 1]
    assert summed["next", "info", "original_r"].flatten().tolist() == [1] * 7
    images = TensorDict({"camera": {"top": torch.rand(2, 3, 9, 9)}}, [2])
    assert RandomShift(1, same_for=["camera.top"])(images)["camera", "top"].shape == (2, 3, 9, 9)


def test_hooks_of_a_subclass_get_the_resolved_keys():
    class Double(Transform):
        def _call(self, tensordict):
            return tensordict.set(self.out_keys[0], 2 * tensordict.get(self.in_keys[0]))

    for form in FORMS:
        made = Double([NAME], ["observation.twice"])(steps(form))
        assert torch.equal(entry(made, form, "observation.twice"), 2 * entry(made, form))


@pytest.mark.parametrize("form", FORMS)
class TestElsewhere:
    def test_fields_and_samples_by_name(self, form):
        rb = buffer(form, batch_size=5)
        expected = steps("nested")["observation", "state"]

        assert torch.equal(rb[NAME], expected)
        assert entry(rb.sample(keys=[NAME]), form).shape == (5, 1)
        assert set(rb.sample(keys=[NAME]).keys(True, True)) >= {"index"}
        assert "action" not in rb.sample(keys=[NAME]).keys()  # noqa: SIM118 - a TensorDict iterates over its steps

    def test_queries(self, form):
        rb = buffer(form)
        rb.extend(steps(form))

        with pytest.warns(UserWarning, match="no trajectory id"):
            assert len(rb.query(traj[NAME].first() == 3)) == 2
        with pytest.warns(UserWarning, match="no trajectory id"):
            assert rb.query()[0].get(NAME).flatten().tolist() == [0, 1, 2]

    def test_samplers_and_priorities(self, form):
        ids = torch.repeat_interleave(torch.arange(2), torch.tensor(LENGTHS))
        data = steps(form).set(("meta", "id") if form == "nested" else "meta.id", ids)
        rb = TensorDictReplayBuffer(
            storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=3, traj_key="meta.id"), batch_size=60
        )
        rb.extend(data)
        slices = entry(rb.sample(), form, "meta.id").reshape(20, 3)
        assert (slices == slices[:, :1]).all()

        data = data.set(("info", "td") if form == "nested" else "info.td", torch.tensor([0.0] * 6 + [1]))
        options = {"alpha": 1.0, "beta": 1.0, "eps": 1e-9, "priority_key": "info.td", "batch_size": 50}
        rb = TensorDictPrioritizedReplayBuffer(storage=LazyTensorStorage(20), **options)
        rb.extend(data)
        assert set(rb.sample()["index"].tolist()) == {6}

    def test_functions(self, form):
        ids = torch.repeat_interleave(torch.arange(2), torch.tensor(LENGTHS))
        data = steps(form).set(("meta", "id") if form == "nested" else "meta.id", ids)

        assert split_trajectories(data, trajectory_key="meta.id").shape == (2, 4)
        after = step_mdp(data, exclude_action=True, action_keys=NAME)
        assert entry(after, form) is None

    def test_lists(self, form):
        rb = TensorDictReplayBuffer(storage=ListStorage(20), transform=ObservationNorm(1.0, 1.0, [NAME]), batch_size=4)
        rb.extend(list(steps(form)))

        assert entry(rb[:], form).flatten().tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("form", FORMS)
def test_a_missing_key_with_the_same_dots_is_reported_without_a_contradiction(form):
    other = {"nested": ("observation.state",), "dotted": ("observation", "state")}[form]
    batch = steps(form)

    with pytest.raises(UnknownKeyError) as raised:
        RenameTransform(["absent.key"], ["x"])(batch)
    assert "'absent.key'" in str(raised.value)
    with pytest.raises(UnknownKeyError, match=r"where observation\.state is spelled in another way") as raised:
        raise UnknownKeyError(".".join(other), [NAME])
    assert isinstance(raised.value, InvalidArgumentError)
