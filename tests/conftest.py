"""Process-wide settings of the test suite: hypothesis, Ctrl-C, compiled modules, syncs, and which tests share a worker."""

from __future__ import annotations

import _signal
import faulthandler
import gc
import multiprocessing.spawn
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from slow_parts import selected
from warm_python import WarmPython

multiprocessing.get_start_method()  # is fixed by this call, because the import of torchrl sets another way

# The time to draw and to run an example depends on the machine, not on the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A shell starts background processes with SIGINT ignored; tests send SIGINT to the programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The settings of the developer must not reach the tests.
os.environ["RLDS_CONFIG"] = os.devnull

# Many tests start Python: the package is compiled once, and not by each of these processes.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Workers have a core each: a second thread of torch in one of them would wait, spinning, for the core of another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


SLOW_SECONDS = 1200
"""The timeout of slow tests: twice what one may take alone, and the length of a part."""
MEMORY = Path("/dev/shm")  # on Linux
_HANDLERS = {int(number): _signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    """Restore the handlers that a command has set which ran in a fixture: processes that the test starts inherit them.

    They are those of the start. A fixture of every test would do the same in five times the time.
    """
    _restore_handlers()


def _restore_handlers():
    for number, handler in _HANDLERS.items():
        if _signal.getsignal(number) is not handler:
            _signal.signal(number, handler)


def pytest_configure(config):
    config.stash[_STDERR] = os.dup(2)  # before pytest captures what is written to it
    # A killed process loses nothing that it wrote. Only a power cut does, and no test cuts the power.
    if "bench" not in config.option.markexpr:
        os.fsync = lambda handle: None  # noqa: ARG005 - the name of the argument is that of os.fsync
    # The default tests make 85,000 files with 1.5 GB, which memory takes and forgets at a fraction of a disk's cost.
    if config.option.markexpr == "not slow" and _free_bytes(MEMORY) > 8 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def _free_bytes(folder):
    return shutil.disk_usage(folder).free if os.access(folder, os.W_OK) else 0


_STDERR = pytest.StashKey[int]()
_WATCHED = {"seconds": 0.0, "since": 0.0}
"""The timeout for which the timer was set last, and when."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """End a process whose test does not stop at its timeout: compiled code that waits lets no signal through.

    The tests of the process that have not run go to a new worker. Tests that begin within ten seconds share a setting of
    the timer, which starts a thread and waits for the end of the one before.
    """
    mark = item.get_closest_marker("timeout")
    seconds = mark.args[0] if mark else float(item.config.getini("timeout"))
    now = time.monotonic()
    if seconds != _WATCHED["seconds"] or now > _WATCHED["since"] + 10:
        faulthandler.dump_traceback_later(seconds + 60, exit=True, file=item.config.stash[_STDERR])
        _WATCHED.update(seconds=seconds, since=now)
    result = yield
    if nextitem is None:
        faulthandler.cancel_dump_traceback_later()
        _WATCHED.update(seconds=0.0)
    _restore_handlers()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave what 11,000 collected tests consist of out of every garbage collection, which would take a second."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    if "torch" in sys.modules:
        _seed_only_the_devices_that_exist(sys.modules["torch"])
    return collected


def _seed_only_the_devices_that_exist(torch):
    """Let `torch.manual_seed` keep nothing for devices that this machine lacks: it formats the stack for each of them."""
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None  # noqa: ARG005 - the name of the argument is that of torch


def pytest_addoption(parser):
    parser.addoption("--all-examples", action="store_true", help="draw all examples of properties, and not a third")
    parser.addoption("--part", help="of the selected tests, run a part that takes as long as the others, such as 3/9")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before and after the tests that `-m` excludes are dropped
def pytest_collection_modifyitems(config, items):
    """Mark the slow cases of tests, and select the tests of a part."""
    _mark_slow_cases(items)
    yield
    if config.option.markexpr == "not slow" and not config.getoption("all_examples"):
        _draw_a_third_of_the_examples(items)
    if part := config.getoption("part"):
        try:
            chosen = selected(items, part)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        config.hook.pytest_deselected(items=[item for item, here in zip(items, chosen, strict=True) if not here])
        items[:] = [item for item, here in zip(items, chosen, strict=True) if here]


def _mark_slow_cases(items):
    """Mark every case of a test as slow that is beyond those which its marker ``first(n, of=...)`` leaves.

    A marker on an inherited test would hold for all classes of a contract. A class of these tests has the attribute
    `first` instead, with the markers of inherited tests by their names. A slow test takes longer than the timeout of
    the default tests.
    """
    taken = Counter()
    for item in items:
        mark = getattr(item.cls, "first", {}).get(item.originalname) or item.get_closest_marker("first")
        if mark is None or item.get_closest_marker("slow"):
            continue
        (count,), of = mark.args, mark.kwargs.get("of", ())
        values = (item.callspec.params[name] for name in ([of] if isinstance(of, str) else of))
        group = (item.parent.nodeid, item.originalname, *(value if _hashable(value) else id(value) for value in values))
        taken[group] += 1
        if taken[group] > count:
            item.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


def _draw_a_third_of_the_examples(items):
    """Let the properties of the default run draw a third of their examples; the nightly run draws all of them."""
    for test in {item.function for item in items if getattr(item, "function", None)}:
        # No public attribute has them; without this one, all examples are drawn.
        if drawn := getattr(test, "_hypothesis_internal_use_settings", None):
            test._hypothesis_internal_use_settings = settings(drawn, max_examples=max(3, drawn.max_examples // 3))


def _hashable(value):
    try:
        hash(value)
    except TypeError:
        return False
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a worker all tests of a module, so that their fixtures are made once, and start with the first folder.

    Of the suite of sources it is all tests of a case: the module alone takes a quarter of the time. The modules of Ray
    share its processes.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from scheduling import ByModuleOrCase

    config.option.loadscopereorder = False
    return ByModuleOrCase(config, log)


_WARM = pytest.StashKey[WarmPython]()


def _may_fork():
    """Return whether processes may start warm; coverage measures those that start as usual."""
    return sys.platform == "linux" and not any(name.startswith("COVERAGE_PROCESS") for name in os.environ)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Start one Python for all workers, while they collect the tests."""
    if _WARM not in node.config.stash and _may_fork():
        node.config.stash[_WARM] = made = WarmPython()
        node.config.add_cleanup(made.close)
    if _WARM in node.config.stash:
        node.workerinput["warm"] = node.config.stash[_WARM].path


@pytest.fixture(scope="session")
def warm_executable(request):
    """The path of a Python that has imported everything; see `warm_python.py`."""
    if not _may_fork():
        yield sys.executable
    elif "warm" in getattr(request.config, "workerinput", {}):
        yield request.config.workerinput["warm"]
    else:
        made = WarmPython()
        yield made.path
        made.close()


@pytest.fixture
def warm_python(warm_executable, monkeypatch):
    """Start programs and spawned processes with `warm_executable`."""
    monkeypatch.setattr(sys, "executable", warm_executable)
    before = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(warm_executable)
    yield
    multiprocessing.set_executable(before)


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="session")
def _ray_processes():
    """End the processes of Ray with the tests."""
    yield
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="module")
def ray_node(_ray_processes):
    """A cluster with this machine as its only node, for all tests that do not start their own."""
    ray = pytest.importorskip("ray", reason="pip install 'datasets-rl[ray]'")
    if not ray.is_initialized():
        ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
