"""Random sequences of commands, some of them killed, compared with a model: a list of reward factors."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from command_server import Server
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from stored_data import columns, trajectory, write_dataset

from datasets_rl import store
from datasets_rl.format.reader import StoredDataset

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL")

ID = "demo/pendulum"
FACTORS = st.sampled_from([2, 3])
NAMES = st.sampled_from(["x", "y"])
FATAL = st.one_of(st.just(0), st.integers(1, 45))
"""The change of the disk before which a command is killed; a command with fewer changes completes."""


class Commands(RuleBasedStateMachine):
    """A state machine of commands; `chain` has the reward factor and the recipe of each version, in order."""

    server: Server

    def __init__(self):
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self.home = Path(self.folder.name) / "home"
        self.chain: list[tuple[int, int | None]] = []
        self.derived: dict[str, tuple[int, int]] = {}

    def teardown(self):
        self.folder.cleanup()

    @initialize()
    def store_a_dataset(self):
        given = [trajectory(2 + number % 5, seed=number) for number in range(6)]
        folder = write_dataset(self.home / "demo" / "pendulum", given, columns(), id=ID).folder
        self.unit = self.sum_of(folder)
        self.chain = [(1, None)]

    def sum_of(self, folder):
        return float(StoredDataset(folder).column(("next", "reward")).astype("f8").sum())

    def found(self):
        """Return the state on disk in the terms of the model."""
        spot = store.dataset_paths(ID, root=self.home / "demo")
        folders = [*(one.folder for one in store.versions(spot)), *([spot.folder] if spot.exists else [])]
        chain = [round(self.sum_of(folder) / self.unit, 3) for folder in folders]
        derived = {
            one.name.partition("@")[2]: round(self.sum_of(one.folder) / self.unit, 3)
            for one in store.derived_paths(spot)
        }
        return chain, derived

    def expected(self, chain, derived):
        return [factor for factor, _ in chain], {name: factor for name, (factor, _) in derived.items()}

    def do(self, argv, fatal, chain, derived, code=0):
        """Run a command and check its result; a killed command must have its full effect or none, and is run again."""
        answer = self.server.run(argv, self.home, fatal)
        if answer["died"]:
            again = fatal % 2
            answer = self.server.run(argv if again else ["cache", "prune"], self.home)
            assert answer["code"] == (code if again else 0), answer
            if not again and self.found() == self.expected(self.chain, self.derived):
                return
        else:
            assert answer["code"] == code, answer
        assert self.found() == self.expected(chain, derived)
        self.chain, self.derived = chain, derived

    @rule(factor=FACTORS, fatal=FATAL, force=st.booleans())
    def preprocess_in_place(self, factor, fatal, force):
        argv = ["preprocess", ID, "-t", f"scale_rewards:{factor}", "--in-place", *(["--force"] if force else [])]
        if not self.chain:
            self.do(argv, fatal, self.chain, self.derived, code=3)
            return
        value, last = self.chain[-1]
        once = last == factor and not force
        self.do(argv, fatal, self.chain if once else [*self.chain, (value * factor, factor)], self.derived)

    @rule(factor=FACTORS, name=NAMES, fatal=FATAL)
    def derive(self, factor, name, fatal):
        argv = ["preprocess", ID, "-t", f"scale_rewards:{factor}", "--as", name]
        if not self.chain:
            self.do(argv, fatal, self.chain, self.derived, code=3)
            return
        value, last = self.chain[-1]
        made = (value * factor, hash((tuple(self.chain), factor)))
        # The recipes of a version determine its bytes.
        here = self.derived.get(name)
        refused = (here is not None and here != made) or (here is None and last == factor)
        derived = self.derived if refused else {**self.derived, name: made}
        self.do(argv, fatal, self.chain, derived, code=2 if refused else 0)

    @rule(fatal=FATAL)
    def undo(self, fatal):
        code = 3 if not self.chain else 2 if len(self.chain) == 1 else 0
        self.do(["preprocess", ID, "--undo"], fatal, self.chain if code else self.chain[:-1], self.derived, code=code)

    @rule(fatal=FATAL)
    def prune(self, fatal):
        self.do(["cache", "prune", "--versions", "--yes"], fatal, self.chain[-1:], self.derived)

    @rule(name=NAMES, fatal=FATAL)
    def remove_a_derived_dataset(self, name, fatal):
        derived = {key: value for key, value in self.derived.items() if key != name}
        self.do(["remove", f"{ID}@{name}", "--yes"], fatal, self.chain, derived)


@pytest.fixture(scope="module")
def machine(warm_executable):
    Commands.server = Server(warm_executable)
    yield Commands
    Commands.server.close()


def test_sequences_of_killed_commands_lead_to_the_state_that_a_list_predicts(machine):
    checks = list(HealthCheck)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=2, stateful_step_count=4, deadline=None, suppress_health_check=checks)
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_long_sequences_of_killed_commands_lead_to_the_state_that_a_list_predicts(machine):
    checks = list(HealthCheck)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=12, deadline=None, suppress_health_check=checks)
    )
