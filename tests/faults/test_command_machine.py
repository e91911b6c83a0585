"""Random sequences of commands, some of them killed, compared with a model: lists of reward factors."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from command_server import Server
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from stored_data import columns, store_dataset, trajectory

from datasets_rl import store
from datasets_rl.format.reader import StoredDataset
from datasets_rl.store.find import derived_paths

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL")

ID, OWN = "demo/pendulum", "local/own"
FACTORS = st.sampled_from([2, 3])
NAMES = st.sampled_from(["x", "y"])
FATAL = st.one_of(st.just(0), st.integers(1, 70))
"""The change of the disk before which a command is killed; a command with fewer changes completes."""


class Commands(RuleBasedStateMachine):
    """A state machine of commands.

    A version is named by the reward factors that made it, in order: the same factors make the same version. What was
    appended is named by the product of its factors, of which each is appended once.
    """

    server: Server

    def __init__(self):
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self.home = Path(self.folder.name) / "home"
        self.state = ((), frozenset(), {})
        self.own, self.recorded = set(), set()
        """What was appended, and what a killed command may have recorded, which any later command that appends adds."""

    def teardown(self):
        self.folder.cleanup()

    @initialize()
    def store_a_dataset(self):
        given = [trajectory(2 + number % 5, seed=number) for number in range(6)]
        stored = store_dataset(self.home / "demo" / "pendulum", given, columns(), id=ID)
        self.rows, self.unit = len(stored), self.sum_of(stored.folder)
        self.state = ((), frozenset([()]), {})

    def sum_of(self, folder):
        return float(StoredDataset(folder).column(("next", "reward")).astype("f8").sum())

    def factors(self, folder):
        """Return the factors of a version, after comparing its rewards with them."""
        history = StoredDataset(folder).manifest.history
        found = tuple(int(run["recipe"]["name"].rpartition(":")[2]) for run in history)
        assert round(self.sum_of(folder) / self.unit, 3) == math.prod(found)
        return found

    def found(self):
        """Return the current version, all versions, and the derived datasets, in the terms of the model."""
        paths = store.dataset_paths(ID, root=self.home / "demo")
        versions = [self.factors(version.folder) for version in store.versions_of(paths)]
        assert len(versions) == len(set(versions))
        derived = {one.name.partition("@")[2]: self.factors(one.folder) for one in derived_paths(paths)}
        return self.factors(paths.folder), frozenset(versions), derived

    def appended(self):
        """Return the products of the datasets that were appended, after checking that none is there twice."""
        paths = store.dataset_paths(OWN, root=self.home / "local")
        if not paths.exists:
            return set()
        reward = StoredDataset(paths.folder).column(("next", "reward")).astype("f8").reshape(-1, self.rows)
        found = [round(product, 3) for product in (reward.sum(1) / self.unit).tolist()]
        assert len(found) == len(set(found))
        return set(found)

    def do(self, argv, fatal, *expected, code=0):
        """Run a command and check its result; a killed command must have its full effect or none, and is run again.

        Returns:
            Whether the command has completed.
        """
        answer = self.server.run(argv, self.home, fatal)
        again = True
        if answer["died"]:
            again = bool(fatal % 2)
            answer = self.server.run(argv if again else ["cache", "prune"], self.home)
            if again:
                assert answer["code"] in {code, *([2] if "--undo" in argv else [])}, answer
            else:
                assert answer["code"] == 0, answer
                # What was published and not pointed at is there until it is pruned.
                expected = (*expected, self.state, (self.state[0], expected[0][1] | self.state[1], self.state[2]))
                expected = (*expected, (expected[0][0], expected[0][1] | self.state[1], expected[0][2]))
        else:
            assert answer["code"] == code, answer
        self.state = self.found()
        assert self.state in expected
        return again

    @invariant()
    def what_was_appended_stays(self):
        assert self.appended() == self.own

    @rule(fatal=FATAL)
    def append(self, fatal):
        product = math.prod(self.state[0])
        possible = self.own | self.recorded | {product}
        complete = self.do(["append", OWN, ID], fatal, self.state)
        found = self.appended()
        assert self.own | ({product} if complete else set()) <= found <= possible
        self.own, self.recorded = found, possible - found

    @rule(factor=FACTORS, fatal=FATAL, force=st.booleans())
    def preprocess_in_place(self, factor, fatal, force):
        argv = ["preprocess", ID, "-t", f"reward_scaling:scale={factor}", "--in-place", *(["--force"] if force else [])]
        current, versions, derived = self.state
        if current[-1:] == (factor,):
            is_lost = force and current[:-1] not in versions
            self.do(argv, fatal, self.state, code=2 if is_lost else 0)
            return
        made = (*current, factor)
        self.do(argv, fatal, (made, versions | {made}, derived))

    @rule(factor=FACTORS, name=NAMES, fatal=FATAL)
    def derive(self, factor, name, fatal):
        argv = ["preprocess", ID, "-t", f"reward_scaling:scale={factor}", "--as", name]
        current, versions, derived = self.state
        made, here = (*current, factor), derived.get(name)
        refused = (here is not None and here != made) or (here is None and current[-1:] == (factor,))
        self.do(
            argv,
            fatal,
            self.state if refused else (current, versions, {**derived, name: made}),
            code=2 if refused else 0,
        )

    @rule(fatal=FATAL)
    def undo(self, fatal):
        current, versions, derived = self.state
        expected = [(current[:stop], versions, derived) for stop in range(len(current)) if current[:stop] in versions]
        if not current or current[:-1] not in versions:
            self.do(["use", ID, "--undo"], fatal, self.state, code=2)
        else:
            # A command that is repeated after it was killed may go back twice.
            self.do(["use", ID, "--undo"], fatal, *reversed(expected[-2:]))

    @rule(number=st.integers(1, 4), fatal=FATAL)
    def use(self, number, fatal):
        versions = store.versions_of(store.dataset_paths(ID, root=self.home / "demo"))
        named = [self.factors(version.folder) for version in versions if version.number == number]
        current = named[0] if named else self.state[0]
        self.do(["use", ID, str(number)], fatal, (current, *self.state[1:]), code=0 if named else 2)

    @rule(fatal=FATAL)
    def prune(self, fatal):
        current, versions, derived = self.state
        kept = [frozenset([current]), *[versions - {other} for other in versions if other != current]]
        self.do(["cache", "prune", "--versions", "--yes"], fatal, *[(current, some, derived) for some in kept])

    @rule(name=NAMES, fatal=FATAL)
    def remove_a_derived_dataset(self, name, fatal):
        current, versions, derived = self.state
        left = {key: value for key, value in derived.items() if key != name}
        self.do(["remove", f"{ID}@{name}", "--yes"], fatal, (current, versions, left))


@pytest.fixture(scope="module", params=["locks", "locks that lie"])
def machine(request, warm_executable):
    Commands.server = Server(warm_executable, lying=request.param == "locks that lie")
    yield Commands
    Commands.server.close()


@pytest.mark.slow
def test_sequences_of_killed_commands_lead_to_the_state_that_the_model_predicts(machine):
    checks = list(HealthCheck)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=2, stateful_step_count=4, deadline=None, suppress_health_check=checks)
    )


@pytest.mark.slow
def test_long_sequences_of_killed_commands_lead_to_the_state_that_the_model_predicts(machine):
    checks = list(HealthCheck)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=12, deadline=None, suppress_health_check=checks)
    )
