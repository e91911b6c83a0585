"""Tasks in other processes of this machine: their results, their order, and the loss of a process."""

from __future__ import annotations

import os
import threading

import pytest

from datasets_rl.build.engines import WorkerDiedError
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.errors import ConversionError
from datasets_rl.progress import Report


def answer(task, report):
    """Do what the task requests; other processes import this module for it."""
    if "exit" in task:
        os._exit(task["exit"])
    if "problems" in task:
        raise ConversionError("toy/data", task["problems"], hint="give another file")
    print("a library prints")
    for steps in task.get("steps", []):
        report._last_sent = 0.0  # simulate a pause since the last report
        report(steps)
    return {"process": os.getpid(), "task": task}


class Counting(Report):
    def __init__(self):
        self.heard = []

    def __call__(self, units):
        self.heard.append(units)


def test_results_are_returned_despite_printing_and_progress_is_reported_earlier():
    report = Counting()
    with LocalEngine(1) as engine:
        said = engine.submit(answer, {"steps": [3, 4], "name": "ö\n"}, report)()

    assert said["task"] == {"steps": [3, 4], "name": "ö\n"}
    assert said["process"] != os.getpid()
    assert report.heard == [3, 4]


def test_an_error_is_returned_completely_and_its_process_continues():
    with LocalEngine(1) as engine:
        waits = [engine.submit(answer, task, Report()) for task in ({}, {"problems": ["a", "b"]}, {})]
        first = waits[0]()
        with pytest.raises(ConversionError) as raised:
            waits[1]()
        assert waits[2]()["process"] == first["process"]

    assert (raised.value.name, raised.value.problems) == ("toy/data", ("a", "b"))
    assert raised.value.hint == "give another file"


def test_a_process_that_dies_loses_only_its_task():
    with LocalEngine(1) as engine:
        waits = [engine.submit(answer, task, Report()) for task in ({"exit": 3}, {})]
        with pytest.raises(WorkerDiedError, match="ended with 3"):
            waits[0]()
        assert waits[1]()["task"] == {}


def test_a_process_is_replaced_after_some_tasks():
    with LocalEngine(1, max_tasks_per_child=2) as engine:
        waits = [engine.submit(answer, {}, Report()) for _ in range(4)]
        processes = [wait()["process"] for wait in waits]

    assert processes[0] == processes[1] != processes[2] == processes[3]


def test_running_tasks_end_with_the_engine():
    with LocalEngine(2) as engine:
        for _ in range(4):
            engine.submit(answer, {}, Report())

    assert [worker._process.poll() is None for worker in engine._workers] == [False] * len(engine._workers)
    assert not [one for one in threading.enumerate() if one.name.startswith("rlds-partial")]
