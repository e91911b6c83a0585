"""Programs that use TorchRL's environments, collectors and losses with the specs and buffers of this library."""

from __future__ import annotations

import math
import os
import warnings

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

import datasets_rl as rl
from datasets_rl.errors import InvalidArgumentError

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torchrl", reason="pip install --no-deps torchrl hoptorch")
    from torchrl.collectors import Collector, MultiSyncCollector
    from torchrl.envs import EnvBase
    from torchrl.envs.utils import check_env_specs
    from torchrl.modules import MLP, Actor, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
    from torchrl.modules.distributions import NormalParamExtractor
    from torchrl.objectives import DQNLoss, IQLLoss, TD3BCLoss

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of TorchRL

DISCRETE = rl.Categorical(3)
CONTINUOUS = rl.Bounded(-2.0, 2.0, (1,))


class Pendulum(EnvBase):
    """A pendulum that is swung up, without limits of time; its specs are of this library."""

    def __init__(self, action=CONTINUOUS):
        super().__init__(device="cpu")
        self.turns = action.domain == "discrete"
        self.action_spec = rl.to_torchrl(action)
        self.observation_spec = rl.to_torchrl(rl.Composite(observation=rl.Bounded([-1.0, -1.0, -8.0], [1.0, 1.0, 8.0])))
        self.reward_spec = rl.to_torchrl(rl.Unbounded((1,)))
        self.done_spec = rl.to_torchrl(rl.Categorical(2, (1,), dtype=torch.bool))

    def _observation(self):
        return torch.stack([self.angle.cos(), self.angle.sin(), self.speed])

    def _reset(self, tensordict=None):
        del tensordict
        self.angle, self.speed, self.count = torch.rand(()) * math.tau, torch.zeros(()), 0
        return TensorDict({"observation": self._observation()})

    def _step(self, tensordict):
        torque = tensordict["action"]
        torque = torque - 1.0 if self.turns else torque[0]
        self.speed = (self.speed + 0.05 * (15 * self.angle.sin() + 3 * torque)).clamp(-8, 8)
        self.angle, self.count = self.angle + 0.05 * self.speed, self.count + 1
        reward, done = -(self.angle.sin() ** 2).reshape(1), torch.tensor([self.count % 20 == 0])
        observation = self._observation()
        return TensorDict({"observation": observation, "reward": reward, "done": done, "terminated": done.clone()})

    def _set_seed(self, seed):
        torch.manual_seed(seed)


@pytest.fixture(params=[CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
def environment(request):
    torch.manual_seed(0)
    return Pendulum(request.param)


def test_an_environment_with_specs_of_this_library_passes_the_check(environment):
    check_env_specs(environment, break_when_any_done="both")
    rl.check_env_specs(environment, seed=3)


def collected(environment, **options):
    """Return a buffer that TorchRL's collector has filled with 60 steps."""
    buffer = rl.TensorDictReplayBuffer(storage=rl.LazyTensorStorage(100), batch_size=16, **options)
    collector = Collector(environment, None, frames_per_batch=20, total_frames=60, replay_buffer=buffer)
    for nothing in collector:
        assert nothing is None
    collector.shutdown()
    return buffer


@pytest.mark.slow  # two processes import both libraries
def test_the_processes_of_a_collector_write_to_one_buffer():
    """The collector reads the storage as `_storage`."""
    buffer = rl.TensorDictReplayBuffer(storage=rl.LazyMemmapStorage(100), batch_size=16)
    collector = MultiSyncCollector([Pendulum] * 2, None, frames_per_batch=20, total_frames=60, replay_buffer=buffer)
    for nothing in collector:
        assert nothing is None
    collector.shutdown()

    assert len(buffer) == 60
    assert buffer._storage is buffer.storage
    assert buffer._sampler is buffer.sampler
    assert buffer._writer is buffer.writer


def test_a_collector_writes_to_a_buffer(environment):
    buffer = collected(environment)

    assert len(buffer) == buffer.write_count == 60
    assert environment.observation_spec.is_in(buffer[:].select("observation"))
    assert buffer["next", "done"].sum() == 3
    assert torch.equal(buffer["next", "observation"][:19], buffer["observation"][1:20])


def test_a_collector_writes_to_a_buffer_of_trajectories(environment):
    sampler = rl.SliceSampler(slice_len=5, end_key=("next", "done"))
    buffer = collected(environment, sampler=sampler)
    batch = buffer.sample(20).reshape(4, 5)

    assert torch.equal(batch["next", "observation"][:, :-1], batch["observation"][:, 1:])


def test_the_steps_of_a_collector_match_their_spec():
    spec = rl.from_torchrl(Pendulum().observation_spec)
    buffer = collected(Pendulum(), writer=rl.TensorDictRoundRobinWriter(spec=spec))

    assert len(buffer) == 60


def test_a_writer_takes_a_spec_of_torchrl():
    buffer = rl.TensorDictReplayBuffer(
        storage=rl.LazyTensorStorage(10), writer=rl.TensorDictRoundRobinWriter(spec=Pendulum().observation_spec)
    )

    with pytest.raises(InvalidArgumentError, match=r"observation is 2\.0 at"):
        buffer.extend(TensorDict({"observation": torch.full((4, 3), 2.0)}, [4]))


def loss_of(loss, batch):
    """Return the gradients of the sum of all losses."""
    losses = loss(batch)
    total = losses.select(*[key for key in losses.keys() if key.startswith("loss")]).sum(reduce=True)  # noqa: SIM118  # a TensorDict
    total.backward()
    return [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]


def test_dqn_trains_on_batches():
    batch = collected(Pendulum(DISCRETE)).sample()
    actor = QValueActor(
        MLP(in_features=3, out_features=3, num_cells=[8]), spec=rl.to_torchrl(rl.Composite(action=DISCRETE))
    )
    loss = DQNLoss(actor, action_space=rl.to_torchrl(DISCRETE), delay_value=True)
    loss.make_value_estimator(gamma=0.9)

    gradients = loss_of(loss, batch)

    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def value_net():
    """Return a network of states and actions."""
    return ValueOperator(MLP(in_features=4, out_features=1, num_cells=[8]), in_keys=["observation", "action"])


def test_iql_trains_on_prioritized_batches():
    buffer = rl.TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=rl.LazyTensorStorage(100), batch_size=16, priority_key="td_error"
    )
    buffer.extend(collected(Pendulum())[:])
    net = torch.nn.Sequential(MLP(in_features=3, out_features=2, num_cells=[8]), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=rl.to_torchrl(CONTINUOUS),
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
    )
    value = ValueOperator(MLP(in_features=3, out_features=1, num_cells=[8]), in_keys=["observation"])
    batch = buffer.sample()

    gradients = loss_of(IQLLoss(actor, value_net(), value), batch)

    assert all(gradient.isfinite().all() for gradient in gradients)
    buffer.update_tensordict_priority(batch)
    assert "td_error" in batch


def test_td3_bc_trains_on_batches():
    batch = collected(Pendulum()).sample()
    actor = Actor(
        MLP(in_features=3, out_features=1, num_cells=[8]), spec=rl.to_torchrl(rl.Composite(action=CONTINUOUS))
    )
    loss = TD3BCLoss(actor, value_net(), action_spec=rl.to_torchrl(CONTINUOUS))

    value_loss, _ = loss.qvalue_loss(batch)
    actor_loss, _ = loss.actor_loss(batch)

    assert torch.isfinite(value_loss + actor_loss)
