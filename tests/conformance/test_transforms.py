"""Properties of every transform."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict, is_tensor_collection

from datasets_rl import LazyTensorStorage, RandomSampler, SliceSampler, TensorDictReplayBuffer, transforms
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs import (
    BoundedTensorSpec,
    CompositeSpec,
    DiscreteTensorSpec,
    UnboundedContinuousTensorSpec,
)
from datasets_rl.transforms import (
    GAE,
    ActionChunkTransform,
    ActionDiscretizer,
    ActionScaling,
    ActionTokenizerTransform,
    BinarizeReward,
    BurnInTransform,
    CatFrames,
    CatTensors,
    CenterCrop,
    ClipTransform,
    Compose,
    Crop,
    DecodeVideoTransform,
    DensifyReward,
    DeviceCastTransform,
    DiscreteActionProjection,
    DoubleToFloat,
    DTypeCastTransform,
    ExcludeTransform,
    ExpandAs,
    FiniteTensorDictCheck,
    FlattenAction,
    FlattenObservation,
    GrayScale,
    Hash,
    InitTracker,
    LineariseRewards,
    ModuleTransform,
    MultiStep,
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
    ObservationNorm,
    ObservationTransform,
    PermuteTransform,
    PinMemoryTransform,
    PolicyAgeFilter,
    QChunkTransform,
    RandomCropTensorDict,
    RandomShift,
    RemoveEmptySpecs,
    RenameTransform,
    Resize,
    ReturnsToGo,
    Reward2GoTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    RNDTransform,
    SelectTransform,
    SequenceTransform,
    SignTransform,
    SqueezeTransform,
    Stack,
    StepCounter,
    SuccessReward,
    TargetReturn,
    TDLambda,
    TimeMaxPool,
    Tokenizer,
    ToTensorImage,
    TrajCounter,
    Transform,
    UnaryTransform,
    UnsqueezeTransform,
    VecNorm,
    VecNormV2,
    WindowTransform,
)
from datasets_rl.transforms.base import get_entry

NEXT_REWARD = ("next", "reward")
BOTH = ["observation", ("next", "observation")]


def spec_of_steps(*batch: int) -> CompositeSpec:
    """Return the spec of the steps of an environment with a camera."""

    def bounded(low, high, *shape, dtype=torch.float32):
        return BoundedTensorSpec(low, high, (*batch, *shape), dtype=dtype)

    flag = DiscreteTensorSpec(2, (*batch, 1), dtype=torch.bool)
    return CompositeSpec(
        {
            "observation": bounded(-3, 2, 3),
            "free": UnboundedContinuousTensorSpec((*batch, 3)),
            "wide": bounded(-1, 1, 2, dtype=torch.float64),
            "action": bounded(-1, 1, 2),
            "single": bounded(0, 1, 1),
            "bytes": bounded(0, 255, 8, 6, 3, dtype=torch.uint8),
            "pixels": bounded(0, 255, 3, 8, 6, dtype=torch.uint8),
            "picture": bounded(0, 1, 3, 8, 6),
            "state_value": bounded(-9, 9, 1),
            "done": flag,
            "next": {
                "observation": bounded(-3, 4, 3),
                "state_value": bounded(-9, 9, 1),
                "reward": bounded(-5, 5, 1),
                "done": flag,
                "terminated": flag,
            },
        },
        shape=batch,
    )


def length_of(value: torch.Tensor) -> torch.Tensor:
    return value.norm(dim=-1, keepdim=True)


def length_of_observation(states: Any) -> torch.Tensor:
    return length_of(states["observation"])


def double(value: torch.Tensor) -> torch.Tensor:
    return value * 2


def half(value: torch.Tensor) -> torch.Tensor:
    return value / 2


def with_length(batch: Any) -> Any:
    return batch.set("length", length_of(batch["observation"]))


class Rounded:
    """A tokenizer that rounds to integers."""

    def encode(self, action: torch.Tensor) -> torch.Tensor:
        return action.round().long()

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.float()


class Length(torch.nn.Module):
    """A module that writes the length of the observation."""

    in_keys = ("observation",)
    out_keys = ("length",)

    def forward(self, batch: Any) -> Any:
        return batch.set("length", length_of(get_entry(batch, "observation")))


def frozen(norm: Any) -> Any:
    """Return a frozen norm with the statistics of some steps."""
    norm(spec_of_steps().rand([64]))
    return norm.freeze()


ACTION = BoundedTensorSpec(-1, 1, (2,))
METADATA = SimpleNamespace(
    action_key="action", action_mean=torch.tensor([0.5, 0.0]), action_std=torch.tensor([2.0, 1.0])
)


@dataclass(frozen=True)
class Case:
    """A transform and its properties."""

    make: Callable[[], Transform]
    over_time: bool = False
    """Whether it reads other steps."""
    inverts: tuple[Any, ...] = ()
    """Keys whose values `inv` restores."""
    missing: bool = True
    """Whether a missing key is an error."""
    axes: bool = False
    """Whether it changes the batch size, and needs [B, T]."""
    encodes: bool = False
    """Whether `inv` accepts only what the transform returns."""
    random: bool = False
    """Whether it draws random numbers."""
    writes: bool = False
    """Whether it changes written data and does not change sampled data."""


CASES = {
    "rename": Case(lambda: RenameTransform(["free", NEXT_REWARD], ["open", ("next", "r")])),
    "rename, copies": Case(lambda: RenameTransform(["free"], ["open"], create_copy=True)),
    "rename, exchanged": Case(lambda: RenameTransform(["free", "observation"], ["observation", "free"])),
    "rename, back": Case(
        lambda: RenameTransform(["free"], ["open"], ["free"], ["open"]), inverts=("free", "observation")
    ),
    "select": Case(lambda: SelectTransform("free", ("next", "observation")), missing=False),
    "select, nothing else": Case(
        lambda: SelectTransform("free", "next", keep_rewards=False, keep_dones=False), missing=False
    ),
    "exclude": Case(lambda: ExcludeTransform("free", NEXT_REWARD, "nothing"), missing=False),
    "exclude, inverse": Case(lambda: ExcludeTransform("free", inverse=True), missing=False),
    "cat": Case(lambda: CatTensors(["observation", "action"])),
    "cat, unsorted": Case(lambda: CatTensors(["observation", "action"], "all", sort=False, del_keys=False)),
    "cat, unbounded": Case(lambda: CatTensors(["observation", "free"], ("deep", "all"))),
    "unsqueeze": Case(lambda: UnsqueezeTransform(-2, in_keys=BOTH, in_keys_inv=BOTH), inverts=tuple(BOTH)),
    "unsqueeze, flags": Case(lambda: UnsqueezeTransform(-1, in_keys=["done"])),
    "squeeze": Case(
        lambda: SqueezeTransform(-1, in_keys=["single", "done"], in_keys_inv=["single", "done"]),
        inverts=("single", "done"),
    ),
    "permute": Case(
        lambda: PermuteTransform((-1, -3, -2), in_keys=["bytes"], in_keys_inv=["bytes"]), inverts=("bytes",)
    ),
    "flatten": Case(lambda: FlattenObservation(-3, -1, in_keys=["pixels"], out_keys=["flat"])),
    "cast": Case(lambda: DTypeCastTransform(torch.float32, torch.float64, BOTH, in_keys_inv=BOTH), inverts=tuple(BOTH)),
    "cast, all": Case(lambda: DTypeCastTransform(torch.float32, torch.float64), missing=False),
    "double to float": Case(DoubleToFloat, missing=False),
    "double to float, keys": Case(lambda: DoubleToFloat(["wide"], in_keys_inv=["wide"])),
    "device": Case(lambda: DeviceCastTransform("cpu", "cpu"), missing=False),
    "device, keys": Case(lambda: DeviceCastTransform("cpu", "cpu", in_keys=["free"], in_keys_inv=["free"])),
    "pin": Case(PinMemoryTransform, missing=False),
    "to tensor": Case(lambda: ToTensorImage(in_keys=["bytes"])),
    "to tensor, floats": Case(lambda: ToTensorImage(in_keys=["picture"], shape_tolerant=True, dtype=torch.float64)),
    "to tensor, whole": Case(lambda: ToTensorImage(from_int=False, in_keys=["bytes"], out_keys=["p"])),
    "resize": Case(lambda: Resize(4, 5, in_keys=["picture"])),
    "resize, bytes": Case(lambda: Resize((4, 5))),
    "resize, bytes, bicubic": Case(lambda: Resize(12, interpolation="bicubic")),
    "resize, nearest": Case(lambda: Resize(9, interpolation="nearest", in_keys=["picture"])),
    "center crop": Case(lambda: CenterCrop(4, 5)),
    "center crop, larger": Case(lambda: CenterCrop(11, in_keys=["picture"])),
    "crop": Case(lambda: Crop(4, 2, top=1, left=3)),
    "crop, outside": Case(lambda: Crop(6, top=-1, left=3, in_keys=["picture"])),
    "gray": Case(lambda: GrayScale(in_keys=["picture"])),
    "gray, bytes": Case(lambda: GrayScale(out_keys=["gray"])),
    "random crop": Case(lambda: RandomCropTensorDict(3), axes=True, missing=False),
    "observation norm": Case(
        lambda: ObservationNorm(1.5, torch.tensor([2.0, -1.0, 0.5]), BOTH, in_keys_inv=BOTH), inverts=tuple(BOTH)
    ),
    "observation norm, standard": Case(
        lambda: ObservationNorm(1.5, 3.0, ["pixels", "free"], ["normal", "free"], standard_normal=True)
    ),
    "vec norm": Case(lambda: VecNorm(["observation", "pixels"]).fit(spec_of_steps().rand([64]))),
    "reward scaling": Case(lambda: RewardScaling(-1.0, 0.1)),
    "reward clipping": Case(lambda: RewardClipping(-1, 1)),
    "reward clipping, one side": Case(lambda: RewardClipping(clamp_max=1, in_keys=["free"])),
    "binarize": Case(BinarizeReward),
    "sign": Case(lambda: SignTransform([NEXT_REWARD, "free"])),
    "reward to go": Case(lambda: Reward2GoTransform(0.9), over_time=True, missing=False, writes=True),
    "returns to go": Case(lambda: ReturnsToGo(0.9, scale=2.0), over_time=True),
    "target return": Case(lambda: TargetReturn(10.0), over_time=True),
    "target return, constant": Case(lambda: TargetReturn(10.0, "constant"), over_time=True),
    "reward sum": Case(RewardSum, over_time=True),
    "step counter": Case(lambda: StepCounter(max_steps=3), over_time=True, missing=False),
    "advantages": Case(lambda: GAE(gamma=0.9, lmbda=0.8), over_time=True),
    "advantages, network": Case(
        lambda: GAE(gamma=0.9, lmbda=0.8, value_network=length_of_observation, advantage_key=("deep", "advantage")),
        over_time=True,
        missing=False,
    ),
    "lambda-returns": Case(
        lambda: TDLambda(gamma=torch.tensor(0.9), lmbda=1.0, value_target_key="to_go"), over_time=True
    ),
    "frames": Case(lambda: CatFrames(3, -1, BOTH), over_time=True),
    "frames, constant": Case(
        lambda: CatFrames(3, -1, BOTH, padding="constant", padding_value=7, mask_key="padded"), over_time=True
    ),
    "frames, images": Case(lambda: CatFrames(2, -3), over_time=True),
    "frames, new axis": Case(lambda: CatFrames(2, -4, ["pixels"], ["stack"], padding="zeros"), over_time=True),
    "frames, future": Case(lambda: CatFrames(2, -2, BOTH, future=True), over_time=True),
    "frames, as inverse": Case(lambda: CatFrames(2, -3, as_inverse=True), over_time=True, missing=False),
    "multi step": Case(lambda: MultiStepTransform(3, 0.9), over_time=True),
    "multi step, collector": Case(lambda: MultiStep(0.9, 3), over_time=True),
    "chunks": Case(lambda: ActionChunkTransform(3), over_time=True),
    "windows": Case(
        lambda: WindowTransform({"observation": (1, 0), "action": (0, 2), NEXT_REWARD: (1, 1)}), over_time=True
    ),
    "windows, zeros": Case(
        lambda: WindowTransform({"pixels": (2, 1)}, "zero", "is_pad", out_keys=["stack"]), over_time=True
    ),
    "sequences": Case(lambda: SequenceTransform.dt_kzl(3, mean=torch.tensor([1.0, 2.0, 3.0]), std=2.0), over_time=True),
    "sequences, padding on the right": Case(lambda: SequenceTransform.dt_corl(2), over_time=True),
    "q chunks": Case(lambda: QChunkTransform(3, 0.9), over_time=True),
    "q chunks, one action": Case(lambda: QChunkTransform(1, 0.9, chunk_key=("deep", "chunk")), over_time=True),
    "random shift": Case(lambda: RandomShift(2, same_for=["pixels", "picture"]), random=True),
    "random shift, channels last": Case(lambda: RandomShift(1, ["bytes"], p=0.5, channels_last=True), random=True),
    "clip": Case(lambda: ClipTransform(["free", "observation"], low=-1.0, high=1)),
    "clip, one side": Case(lambda: ClipTransform(["free"], ["cut"], low=0.5)),
    "action scaling": Case(lambda: ActionScaling(loc=torch.tensor([0.5, -1.0]), scale=2.0), inverts=("action",)),
    "action scaling, 0 to 1": Case(
        lambda: ActionScaling.from_stats(low=[-1.0, -1.0], high=[1.0, 1.0], standard_normal=False), inverts=("action",)
    ),
    "flatten action": Case(
        lambda: FlattenAction(-3, -2, in_keys_inv=["pixels"], action_shape=(3, 8)), inverts=("pixels",)
    ),
    "discrete action": Case(lambda: DiscreteActionProjection(2, 5), encodes=True),
    "intervals": Case(lambda: ActionDiscretizer(5, out_action_key="number", action_spec=ACTION), encodes=True),
    "intervals, one-hot": Case(
        lambda: ActionDiscretizer(
            torch.tensor([3, 4]),
            sampling=ActionDiscretizer.SamplingStrategy.RANDOM,
            categorical=False,
            action_spec=ACTION,
        ),
        encodes=True,
    ),
    "action tokens": Case(lambda: ActionTokenizerTransform(Rounded())),
    "expand": Case(lambda: ExpandAs("single", "pixels", "mask")),
    "stack": Case(lambda: Stack(["observation", "free"], "both", dim=-2)),
    "stack, kept": Case(lambda: Stack(["observation", ("next", "observation")], ("deep", "both"), del_keys=False)),
    "weighted rewards": Case(lambda: LineariseRewards(["observation", "free"], weights=[1.0, -2.0, 0.5])),
    "summed rewards": Case(lambda: LineariseRewards(["observation"], ["sum"])),
    "success": Case(lambda: SuccessReward("done", ("next", "success"), scale=-2.0)),
    "dense rewards": Case(lambda: DensifyReward(discount=0.9, reward_key_out="dense"), over_time=True),
    "differences": Case(lambda: NextObservationDelta(["observation"]), missing=False, writes=True),
    "finite": Case(FiniteTensorDictCheck, missing=False),
    "policy age": Case(lambda: PolicyAgeFilter(0, 1, policy_version_key="single"), missing=False),
    "no empty groups": Case(RemoveEmptySpecs, missing=False),
    "module": Case(lambda: ModuleTransform(module=Length(), no_grad=True)),
    "distillation": Case(
        lambda: RNDTransform(*(torch.nn.Linear(3, 2, bias=False).requires_grad_(False) for _ in range(2))).eval()
    ),
    "first steps": Case(InitTracker, over_time=True, missing=False),
    "trajectory numbers": Case(TrajCounter, over_time=True, missing=False),
    "maximum over time": Case(lambda: TimeMaxPool(BOTH, T=2), over_time=True),
    "vec norm, moving averages": Case(lambda: frozen(VecNormV2(["observation"], decay=0.9, reduce_batch_dims=True))),
    "unary": Case(
        lambda: UnaryTransform(["free"], ["free"], ["free"], ["free"], fn=double, inv_fn=half), inverts=("free",)
    ),
    "unary, other shape": Case(lambda: UnaryTransform(["observation"], ["length"], fn=length_of)),
    "compose": Case(
        lambda: Compose(
            ToTensorImage(in_keys=["bytes"]),
            Resize(4, in_keys=["bytes"]),
            with_length,
            ObservationNorm(1.0, 2.0, in_keys_inv=BOTH),
            RenameTransform(["bytes"], ["image"]),
        ),
        inverts=tuple(BOTH),
    ),
    "compose, frames of frames": Case(
        lambda: Compose(RewardClipping(-1, 1), CatFrames(2, -1, BOTH), Compose(MultiStepTransform(2, 0.5))),
        over_time=True,
    ),
}
CASES |= {
    "preset, Diffusion Policy": Case(lambda: WindowTransform.diffusion_policy(3, 1, 1), over_time=True),
    "preset, ACT": Case(lambda: WindowTransform.act(3), over_time=True),
    "preset, LeRobot": Case(lambda: WindowTransform.lerobot(4, 2), over_time=True),
    "preset, robomimic": Case(lambda: WindowTransform.robomimic(3, 2), over_time=True),
    "preset, Octo": Case(lambda: WindowTransform.octo(2, 3), over_time=True),
    "preset, seconds": Case(
        lambda: WindowTransform.delta_timestamps(
            {"observation": [-0.3, 0], "action": [0, 0.1], NEXT_REWARD: [0.2]}, 10
        ),
        over_time=True,
    ),
    "preset, metadata": Case(
        lambda: ActionScaling.from_metadata(METADATA),
        inverts=("action",),
    ),
}
PRESETS = {
    "WindowTransform.diffusion_policy": "preset, Diffusion Policy",
    "WindowTransform.act": "preset, ACT",
    "WindowTransform.lerobot": "preset, LeRobot",
    "WindowTransform.robomimic": "preset, robomimic",
    "WindowTransform.octo": "preset, Octo",
    "WindowTransform.delta_timestamps": "preset, seconds",
    "SequenceTransform.dt_kzl": "sequences",
    "SequenceTransform.dt_corl": "sequences, padding on the right",
    "ActionScaling.from_stats": "action scaling, 0 to 1",
    "ActionScaling.from_metadata": "preset, metadata",
}
ELSEWHERE = {
    Transform,
    ObservationTransform,
    Hash,
    Tokenizer,
    BurnInTransform,
    DecodeVideoTransform,
    NextStateReconstructor,
}
"""Transforms without a case: abstract ones; text and videos, which have no draws; networks, which have no spec; and rows
of several trajectories."""


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def case(request):
    return request.param


def only(wanted):
    """Run a test with the cases for which `condition` is true."""
    chosen = {name: case for name, case in CASES.items() if wanted(case)}
    return pytest.mark.parametrize("case", chosen.values(), ids=list(chosen))


def drawn(spec: CompositeSpec, *batch: int) -> TensorDict:
    """Return steps drawn from a spec, with flags that are consistent at the ends of trajectories."""
    data = spec.rand(batch)
    data["next", "done"][..., -1, :] = True
    return data


def leaves(data: Any) -> dict[Any, torch.Tensor]:
    return dict(data.items(include_nested=True, leaves_only=True))


def alike(one: Any, other: Any) -> bool:
    ones, others = leaves(one), leaves(other)
    return ones.keys() == others.keys() and all(
        value.dtype == others[key].dtype and torch.equal(value, others[key]) for key, value in ones.items()
    )


def test_every_transform_has_a_case():
    classes = {one for one in vars(transforms).values() if inspect.isclass(one) and issubclass(one, Transform)}
    tried = {type(case.make()) for case in CASES.values()}

    assert classes - tried == ELSEWHERE, (
        f"add a case of {sorted(one.__name__ for one in classes - tried - ELSEWHERE)} to CASES, or the class to ELSEWHERE "
        f"with its own tests; remove {sorted(one.__name__ for one in ELSEWHERE - (classes - tried))} from ELSEWHERE"
    )


@pytest.mark.parametrize(
    ("axes", "batch"),
    [
        pytest.param(0, (5,), id="spec of a step-steps"),
        pytest.param(2, (2, 4), id="spec of the batch-trajectories"),
        pytest.param(0, (2, 4), id="spec of a step-trajectories", marks=pytest.mark.slow),
        pytest.param(2, (5,), id="spec of the batch-steps", marks=pytest.mark.slow),
    ],
)
def test_the_output_is_in_the_transformed_spec(case, batch, axes):
    """Networks and buffers are built from the spec."""
    if case.axes and (axes or len(batch) == 1):
        batch, axes = (2, 4), 2
    spec = spec_of_steps(*batch) if axes else spec_of_steps()
    out = case.make().transform_spec(spec)
    for _ in range(3):
        transform, data = case.make(), drawn(spec, *(() if axes else batch))
        made = transform(transform.inv(data) if case.writes else data)
        specs = dict(out.items(include_nested=True, leaves_only=True))

        assert specs.keys() == leaves(made).keys()
        assert out.is_in(made), out.problems(made)
        assert made.shape[len(made.shape) - out.ndim :] == out.shape


def test_the_given_spec_does_not_change(case):
    spec = spec_of_steps(2, 4)
    case.make().transform_spec(spec)

    assert spec == spec_of_steps(2, 4)


@pytest.mark.parametrize("batch", [(5,), (2, 4)], ids=["steps", "trajectories"])
def test_the_input_does_not_change(case, batch):
    """Sampling must not change the entries of a buffer."""
    if case.axes:
        batch = (2, 4)
    data = drawn(spec_of_steps(), *batch)
    before, copies = leaves(data), data.clone()
    case.make()(data)
    case.make().inv(data) if not (case.inverts or case.encodes) else None

    assert alike(data, copies)
    assert all(data.get(key) is value for key, value in before.items())


@only(lambda case: not case.axes)
def test_other_entries_are_unchanged(case):
    transform = case.make()
    data = spec_of_steps().rand([2, 4]).set("other", torch.randint(9, (2, 4, 7)))
    made = transform(data)

    assert "select" in repr(transform).lower() or made.get("other") is data.get("other")


def test_a_pickled_transform_gives_the_same_output(case):
    """Buffers go to other processes."""
    transform = case.make()
    data = spec_of_steps().rand([2, 4])
    other = pickle.loads(pickle.dumps(transform))
    torch.manual_seed(0)
    expected = transform(data)
    torch.manual_seed(0)

    assert alike(other(data), expected)
    assert repr(other) == repr(transform)


@only(lambda case: case.inverts)
def test_its_inverse_undoes_it(case):
    transform, data = case.make(), spec_of_steps().rand([2, 4])
    back = transform.inv(transform(data))

    for key in case.inverts:
        torch.testing.assert_close(back[key], data[key], atol=1e-5, rtol=1e-5)


def test_a_state_loads_into_another_transform(case):
    transform, other = case.make(), case.make()
    torch.manual_seed(1)
    data = spec_of_steps().rand([2, 4])
    other.load_state_dict(transform.state_dict())
    torch.manual_seed(0)
    expected = transform(data)
    torch.manual_seed(0)

    assert alike(other(data), expected)


@only(lambda case: not case.axes and not case.random and case.make is not TrajCounter)
def test_part_of_a_batch_is_transformed_as_in_the_whole(case):
    """Single steps do not depend on other steps, and trajectories do not depend on other trajectories."""
    transform, data = case.make(), spec_of_steps().rand([4, 3])
    whole, part = transform(data), transform(data[1:3])
    close = {
        key: torch.allclose(value.double(), leaves(whole[1:3])[key].double()) for key, value in leaves(part).items()
    }

    assert close == dict.fromkeys(leaves(whole), True)
    if not case.over_time:
        flat = transform(data.reshape(-1)).reshape(4, 3)
        assert all(torch.allclose(flat[key].double(), value.double()) for key, value in leaves(whole).items())


@only(lambda case: case.missing)
def test_a_missing_key_is_named(case):
    with pytest.raises(UnknownKeyError, match="among something"):
        case.make()(TensorDict({"something": torch.zeros(2, 3)}, [2, 3]))


def rows_of_a_buffer(transform: Transform, data: TensorDict, rows: list[int]) -> Any:
    """Return the steps of a buffer at rows, as batches that a sampler draws."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)))
    buffer.extend(transform.inv(data) if isinstance(transform, (Reward2GoTransform, NextObservationDelta)) else data)
    buffer.append_transform(transform)
    return buffer.sample(rows=rows)


@only(lambda case: case.over_time and not isinstance(case.make(), (GAE, TDLambda)))
def test_random_steps_of_a_buffer_are_transformed_as_in_order_or_refused(case):
    """Advantages of single steps are one-step ones, which `tests/transforms/test_advantages.py` tests."""
    data = spec_of_steps().rand([12])
    data["next", "done"] = data["next", "terminated"] = torch.isin(torch.arange(12), torch.tensor([3, 8, 11]))[:, None]
    ordered = leaves(rows_of_a_buffer(case.make(), data, list(range(12))))
    order = [7, 3, 0, 11, 8, 2, 6, 7]
    if isinstance(case.make(), DensifyReward):
        with pytest.raises(
            InvalidArgumentError, match="step 0 of the batch is not followed by the next one of its traj"
        ):
            rows_of_a_buffer(case.make(), data, order)
        return
    mixed = leaves(rows_of_a_buffer(case.make(), data, order))

    assert mixed.keys() == ordered.keys()
    assert all(torch.allclose(value.double(), ordered[key][order].double(), atol=1e-5) for key, value in mixed.items())


@only(lambda case: not isinstance(case.make(), Compose))
def test_only_tensordicts_are_accepted(case):
    """Plain functions can transform other pytrees."""
    with pytest.raises(InvalidArgumentError, match="is a dict; expected a TensorDict"):
        case.make()({"observation": torch.zeros(3)})


def test_its_repr_names_it(case):
    transform = case.make()

    assert repr(transform).startswith(f"{type(transform).__name__}(")
    assert "object at" not in repr(transform).replace("function", "")


def test_it_has_the_modes_and_devices_of_a_module(case):
    """Programs written for TorchRL call them."""
    transform = case.make()

    assert transform.eval() is transform
    assert transform.train() is transform
    assert transform.to("cpu") is transform


LENGTHS = (5, 4, 3)
WHICH = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
INFO = {("next", "done"), ("next", "terminated"), ("next", "truncated")}
"""Flags that a slice sampler sets at the ends of slices."""
OF_SLICES = (GAE, TDLambda, DensifyReward)
"""Transforms of the steps of a batch, whose results change where a slice ends."""


def episodes() -> TensorDict:
    """Return three episodes, one after the other."""
    torch.manual_seed(0)
    return drawn_episodes().clone()


@cache
def drawn_episodes() -> TensorDict:
    data = spec_of_steps().rand([sum(LENGTHS)])
    data["next", "done"] = torch.cat([torch.arange(length) == length - 1 for length in LENGTHS]).unsqueeze(-1)
    data["next", "terminated"] = data["next", "done"] & (WHICH == 1).unsqueeze(-1)
    data["row"] = torch.arange(sum(LENGTHS))
    return data


def padded(data: Any) -> Any:
    """Return the episodes as [E, T], padded with zeros, with a mask."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)

    def in_rows(leaf):
        rows = leaf.new_zeros(*mask.shape, *leaf.shape[1:])
        rows[mask] = leaf
        return rows

    return data.apply(in_rows, batch_size=mask.shape).set("mask", mask)


def transformed(case: Case, transform: Any, data: Any) -> Any:
    return transform(transform.inv(data) if case.writes else data)


def check_rows(batch: Any, expected: Any, *, without: Any = ()) -> None:
    """Compare the steps of a batch with those of the same rows of the transformed episodes."""
    if "row" not in expected:
        return  # selected entries only
    rows = batch["row"]
    for key, value in leaves(expected).items():
        if key not in without:
            torch.testing.assert_close(batch[key], value[rows], msg=lambda text, key=key: f"{key}: {text}")


@only(lambda case: not case.axes and not case.random)
class TestEveryWay:
    """Whatever way steps arrive, a transform has the same results, or raises an error that names it."""

    def whole(self, case):
        transform, data = case.make(), episodes()
        return transform, transformed(case, transform, data)

    def buffer(self, case, transform, sampler):
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(12), sampler=sampler, batch_size=24)
        if case.writes:
            rb.append_transform(transform)
            rb.extend(episodes())
        else:
            rb.extend(episodes())
            rb.append_transform(transform)
        return rb

    def test_random_steps(self, case):
        transform, expected = self.whole(case)
        rb = self.buffer(case, transform, RandomSampler())
        if isinstance(transform, DensifyReward):
            with pytest.raises(InvalidArgumentError, match="DensifyReward"):
                rb.sample()
        elif isinstance(transform, OF_SLICES):
            assert leaves(expected).keys() <= leaves(rb.sample()).keys()
        else:
            check_rows(rb.sample(), expected)

    def test_slices(self, case):
        transform, expected = self.whole(case)
        batch = self.buffer(case, transform, SliceSampler(slice_len=3)).sample()

        assert batch.shape == (24,)
        if not isinstance(transform, OF_SLICES):
            check_rows(batch, expected, without=INFO)

    def test_padded_episodes(self, case):
        transform, expected = self.whole(case)
        batch = transformed(case, transform, padded(episodes()))

        assert batch.shape == (3, 5)
        check_rows(batch[padded(episodes())["mask"]], expected)

    def test_groups_of_entries(self, case):
        """Each entry that the transform names is a group of two: itself, and the same again."""
        if isinstance(case.make(), (UnaryTransform, ModuleTransform)):
            return  # functions of users receive the group
        transform, expected = self.whole(case)
        named = {key for key in (*transform.in_keys, *transform.in_keys_inv) if isinstance(key, str)} - {"done"}
        data = episodes()
        for key in named:
            data[key] = TensorDict({"a": data[key], "b": data[key].clone()}, data.shape)
        try:
            batch = transformed(case, transform, data)
        except InvalidArgumentError as error:
            assert any(name.__name__ in str(error) for name in (*type(transform).__mro__[:-3], type(transform)))  # noqa: PT017
            return
        for key in transform.out_keys if named else ():
            if is_tensor_collection(batch.get(key)):
                torch.testing.assert_close(batch.get(key)["a"], expected.get(key))
                torch.testing.assert_close(batch.get(key)["b"], expected.get(key))

    def test_images_of_the_other_layout(self, case):
        transform, expected = self.whole(case)
        data = episodes()
        names = {"bytes": (0, 3, 1, 2), "pixels": (0, 2, 3, 1), "picture": (0, 2, 3, 1)}
        for name, order in names.items():
            data[name] = data[name].permute(order).contiguous()
        try:
            batch = transformed(case, transform, data)
        except InvalidArgumentError as error:
            assert "image" in str(error) or type(transform).__name__ in str(error)  # noqa: PT017
            return
        for name, order in names.items():
            if name in transform.out_keys and batch[name].ndim == len(order):
                converted = batch[name].shape == expected[name].shape  # to the layout that the transform returns
                torch.testing.assert_close(batch[name], expected[name] if converted else expected[name].permute(order))


def key_attributes(transform: Transform) -> list[str]:
    """Return the attributes that hold the keys of the constructor's arguments."""
    kinds = {name for kind in type(transform).__mro__ for name, text in annotations_of(kind) if "Key" in str(text)}
    properties = {name for name in kinds if isinstance(getattr(type(transform), name, None), property)}
    return [name for name in sorted(kinds - properties) if getattr(transform, name, None)]


def annotations_of(kind: type) -> Any:
    return getattr(vars(kind).get("__init__"), "__annotations__", {}).items()


def respelled(keys: Any, spell: Any) -> Any:
    if isinstance(keys, list):
        return [spell(key) for key in keys]
    return {spell(key): spell(name) for key, name in keys.items()} if isinstance(keys, dict) else spell(keys)


NOT_RESPELLED = (Compose, ModuleTransform, VecNorm, VecNormV2, RNDTransform)
"""Transforms whose parts or modules have keys of their own, or whose statistics are stored by key."""
SPELLINGS = {
    "dots": lambda key: ".".join(["next", "g", *key[1:]] if key[0] == "next" else ["g", *key]),
    "tuple": lambda key: ("next", "g", *key[1:]) if key[0] == "next" else ("g", *key),
    "dots in the name": lambda key: ".".join(["next", "g", *key[1:]] if key[0] == "next" else ["g", *key]),
}


@pytest.mark.parametrize(
    "spelling", [pytest.param(name, marks=[pytest.mark.slow] * (name == "tuple")) for name in SPELLINGS]
)
@only(lambda case: not case.axes and not case.random and not isinstance(case.make(), NOT_RESPELLED))
def test_keys_are_accepted_in_every_spelling(case, spelling):
    """All entries are also in a group, and all keys of the transform name those."""

    def moved(key):
        path = (key,) if isinstance(key, str) else key
        return SPELLINGS["tuple"](path) if spelling != "dots in the name" else flat(path)

    def spelled(key):
        return SPELLINGS[spelling]((key,) if isinstance(key, str) else key)

    def flat(path):
        return ("next", f"g.{'.'.join(path[1:])}") if path[0] == "next" else f"g.{'.'.join(path)}"

    transform, other = case.make(), case.make()
    expected = transformed(case, transform, episodes())
    if isinstance(other, (NextObservationDelta, SelectTransform)):
        return  # by tests/transforms/test_dotted.py: they remove the entries that are compared
    for name in key_attributes(other):
        setattr(other, name, respelled(getattr(other, name), spelled))
    data = episodes()
    for key, value in list(leaves(data).items()):
        data.set(moved(key), value)
    batch = transformed(case, other, data)

    compared = 0
    for key in transform.out_keys:
        value = batch.get(moved(key), None)
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, expected.get(key))
            compared += 1
    assert compared == sum(isinstance(expected.get(key, None), torch.Tensor) for key in transform.out_keys)


def test_every_preset_has_a_case():
    """A preset is a class method that returns the transform."""
    presets = {
        f"{kind.__name__}.{name}"
        for kind in vars(transforms).values()
        if inspect.isclass(kind) and issubclass(kind, Transform)
        for name, value in vars(kind).items()
        if isinstance(value, classmethod) and not name.startswith("_")
    }

    assert presets == set(PRESETS), (
        f"add {sorted(presets - set(PRESETS))} to PRESETS, each with the name of its case in CASES; "
        f"remove {sorted(set(PRESETS) - presets)}"
    )
    assert set(PRESETS.values()) <= CASES.keys(), (
        f"add cases named {sorted(set(PRESETS.values()) - CASES.keys())} to CASES"
    )
