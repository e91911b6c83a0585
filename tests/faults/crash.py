"""Child processes that kill themselves with SIGKILL at their n-th file-system event.

A child is forked from a program that has imported every module. An event is an open, a rename, a removal, a link or a
new folder, so that the tests cover each moment between two changes of the disk, independently of timing.
"""

import os
import random
import signal
import sys
import time
import traceback

_EVENTS = {
    "open",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "shutil.rmtree",
}


def events_below(folder):
    """Return a function that checks whether an audit event concerns a path below a folder."""
    return lambda event, arguments: event in _EVENTS and any(str(folder) in str(one) for one in arguments)


def run_killed_at(fatal, work, counts):
    """Call `work` in a forked child that is killed at its event number `fatal` (0: never).

    Returns the number of events of the child, or None if it was killed.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child:
        os.close(writable)
        with os.fdopen(readable) as stream:
            seen = stream.read()
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) and not seen:
            raise SystemExit(f"the child to be killed at event {fatal} failed before it")
        return None if os.WIFSIGNALED(status) else int(seen)
    os.close(readable)
    count = 0

    def watch(event, arguments):
        nonlocal count
        if counts(event, arguments):
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    run_or_exit(work)
    os.write(writable, str(count).encode())
    os._exit(0)


def kills_at_random(number, work, restore):
    """Kill children that call `work` at random times, until `number` of them have died; yield whether each one did.

    A child that ends without a kill is followed by a child that is only timed, because other work of the machine varies.

    Args:
        number: The number of kills.
        work: What a child does.
        restore: Called after a child that ended without a kill, so that the next child has something to do.
    """
    dice, duration, killed = random.Random(0), 0.0, 0
    while killed < number:
        start = time.monotonic()
        child = os.fork()
        if not child:
            run_or_exit(work)
            os._exit(0)
        if duration:
            time.sleep(dice.uniform(0, duration))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        died = os.WIFSIGNALED(status)
        if not died and status:
            raise SystemExit("a child that was to be killed failed before it")
        elapsed = time.monotonic() - start
        killed += died
        yield died
        if not died:
            duration = 0.0 if duration else elapsed
            restore()


def run_or_exit(work):
    """Call `work` in a child process, and exit with 1 on an error, so that the child never continues as its parent."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - the child must exit after any error
        traceback.print_exc()
        os._exit(1)
