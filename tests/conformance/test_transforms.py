"""The contract of transforms, for every transform."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from contract_classes import contract_classes

from datasets_rl import transforms
from datasets_rl.specs import BoundedTensorSpec
from datasets_rl.testing import TransformCase as Case
from datasets_rl.testing import TransformContract, spec_of_steps
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


CASES = {
    "rename": Case(lambda: RenameTransform(["free", NEXT_REWARD], ["open", ("next", "r")])),
    "rename, copies": Case(lambda: RenameTransform(["free"], ["open"], create_copy=True)),
    "rename, exchanged": Case(lambda: RenameTransform(["free", "observation"], ["observation", "free"])),
    "rename, back": Case(
        lambda: RenameTransform(["free"], ["open"], ["free"], ["open"]), inverts=("free", "observation")
    ),
    "select": Case(lambda: SelectTransform("free", ("next", "observation")), missing=False, removes=True),
    "select, nothing else": Case(
        lambda: SelectTransform("free", "next", keep_rewards=False, keep_dones=False), missing=False, removes=True
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
    "vec norm": Case(lambda: VecNorm(["observation", "pixels"]).fit(spec_of_steps().rand([64])), own_keys=True),
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
    "advantages": Case(lambda: GAE(gamma=0.9, lmbda=0.8), over_time=True, of_slices=True),
    "advantages, network": Case(
        lambda: GAE(gamma=0.9, lmbda=0.8, value_network=length_of_observation, advantage_key=("deep", "advantage")),
        over_time=True,
        missing=False,
        of_slices=True,
    ),
    "lambda-returns": Case(
        lambda: TDLambda(gamma=torch.tensor(0.9), lmbda=1.0, value_target_key="to_go"), over_time=True, of_slices=True
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
    "dense rewards": Case(
        lambda: DensifyReward(discount=0.9, reward_key_out="dense"), over_time=True, of_slices=True, in_order=True
    ),
    "differences": Case(lambda: NextObservationDelta(["observation"]), missing=False, writes=True, own_keys=True),
    "finite": Case(FiniteTensorDictCheck, missing=False),
    "policy age": Case(lambda: PolicyAgeFilter(0, 1, policy_version_key="single"), missing=False),
    "no empty groups": Case(RemoveEmptySpecs, missing=False),
    "module": Case(lambda: ModuleTransform(module=Length(), no_grad=True), own_keys=True, whole_groups=True),
    "distillation": Case(
        lambda: RNDTransform(*(torch.nn.Linear(3, 2, bias=False).requires_grad_(False) for _ in range(2))).eval(),
        own_keys=True,
    ),
    "first steps": Case(InitTracker, over_time=True, missing=False),
    "trajectory numbers": Case(TrajCounter, over_time=True, missing=False, counts=True),
    "maximum over time": Case(lambda: TimeMaxPool(BOTH, T=2), over_time=True),
    "vec norm, moving averages": Case(
        lambda: frozen(VecNormV2(["observation"], decay=0.9, reduce_batch_dims=True)), own_keys=True
    ),
    "unary": Case(
        lambda: UnaryTransform(["free"], ["free"], ["free"], ["free"], fn=double, inv_fn=half),
        inverts=("free",),
        whole_groups=True,
    ),
    "unary, other shape": Case(lambda: UnaryTransform(["observation"], ["length"], fn=length_of), whole_groups=True),
    "compose": Case(
        lambda: Compose(
            ToTensorImage(in_keys=["bytes"]),
            Resize(4, in_keys=["bytes"]),
            with_length,
            ObservationNorm(1.0, 2.0, in_keys_inv=BOTH),
            RenameTransform(["bytes"], ["image"]),
        ),
        inverts=tuple(BOTH),
        accepts_pytrees=True,
        own_keys=True,
    ),
    "compose, frames of frames": Case(
        lambda: Compose(RewardClipping(-1, 1), CatFrames(2, -1, BOTH), Compose(MultiStepTransform(2, 0.5))),
        over_time=True,
        accepts_pytrees=True,
        own_keys=True,
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
ELSEWHERE = {
    Transform: "abstract",
    ObservationTransform: "abstract",
    Hash: "of texts, which a spec does not draw",
    Tokenizer: "of texts, which a spec does not draw",
    DecodeVideoTransform: "of videos, which a spec does not draw",
    BurnInTransform: "of networks, which have no spec",
    NextStateReconstructor: "of rows of several trajectories",
}
"""Transforms without a case, with the reason."""


ONCE = pytest.mark.first(1, of="case")


class TestTransforms(TransformContract):
    cases = CASES
    first: ClassVar = {
        "test_the_output_is_in_the_transformed_spec": ONCE,
        "test_the_input_does_not_change": ONCE,
        "test_rewards_of_every_dtype_give_the_results_of_float64": ONCE,
        "test_keys_are_accepted_in_every_spelling": ONCE,
        # What the base class of all transforms does:
        "test_only_tensordicts_are_accepted": pytest.mark.first(20),
        "test_its_repr_names_it": pytest.mark.first(20),
        "test_it_has_the_modes_and_devices_of_a_module": pytest.mark.first(20),
    }

    @pytest.mark.slow
    @pytest.mark.parametrize(("axes", "batch"), [(0, (2, 4)), (2, (5,))], ids=["trajectories", "spec of the batch"])
    def test_the_output_is_in_the_transformed_spec_of_other_axes(self, case, axes, batch):
        self.test_the_output_is_in_the_transformed_spec(case, axes, batch)


HOW = (
    "write a class derived from TransformContract of datasets_rl.testing in the module of the transform's own tests in "
    "tests/transforms/, with a case that makes {}"
)


def test_every_transform_has_a_case():
    classes = {one for one in vars(transforms).values() if inspect.isclass(one) and issubclass(one, Transform)}
    tried = {type(case.make()) for case in CASES.values()} | ELSEWHERE.keys()
    others = " ".join(contract_classes("TransformContract").values())
    missing = sorted(one.__name__ for one in classes - tried if not re.search(rf"\b{one.__name__}\(", others))

    assert not missing, HOW.format(" and one that makes ".join(missing))


def test_every_preset_has_a_case():
    """A preset is a class method that returns the transform."""
    texts = " ".join([Path(__file__).read_text("utf-8"), *contract_classes("TransformContract").values()])
    missing = [
        f"{kind.__name__}.{name}"
        for kind in vars(transforms).values()
        if inspect.isclass(kind) and issubclass(kind, Transform)
        for name, value in vars(kind).items()
        if isinstance(value, classmethod) and not name.startswith("_") and f"{kind.__name__}.{name}(" not in texts
    ]

    assert not missing, HOW.format(" and one that makes ".join(missing))
