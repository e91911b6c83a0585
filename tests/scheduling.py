"""Which tests share a worker, and what happens to the tests of a worker that ended."""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling


class Places(list):
    """The tests of a worker; the scheduler looks each of them up."""

    def __init__(self, tests):
        super().__init__(tests)
        self.index = {test: place for place, test in enumerate(tests)}.__getitem__


class ByModuleOrCase(LoadFileScheduling):
    def _split_scope(self, nodeid):
        case = re.match(r"tests/conformance/test_sources.py::.*?\[[a-z0-9_]+", nodeid)
        if nodeid.partition("::")[0].endswith("/test_ray.py"):
            return "ray"
        return case[0].partition("[")[2] if case else super()._split_scope(nodeid)

    def add_node_collection(self, node, collection):
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = Places(collection)

    def remove_node(self, node):
        """Return the test that ended a worker, and queue the tests that the worker left, without that test."""
        units = self.assigned_work.pop(node)
        left = [(tests, test) for tests in units.values() for test, done in tests.items() if not done]
        if not left:
            return None
        tests, ended = left[0]
        tests[ended] = True
        self.workqueue.update((scope, tests) for scope, tests in units.items() if not all(tests.values()))
        for other in self.assigned_work:
            self._reschedule(other)
        return ended

    def _assign_work_unit(self, node):
        """Forget what is done, which the scheduler would count again after each test."""
        if node not in self.registered_collections:
            return  # a new worker, which gets work once its collection is there
        units = self.assigned_work[node]
        for done in [scope for scope, tests in units.items() if all(tests.values())]:
            del units[done]
        super()._assign_work_unit(node)
