"""Children that end themselves with SIGKILL at the n-th of their changes of the disk.

A child is forked from a program that has everything imported. An event is an open, a rename, a removal, a new folder: so
every moment between two changes of the disk is met, not only those that a clock happens to hit.
"""

import os
import signal
import sys
import traceback

_EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}


def inside(folder):
    """Return what tells whether an event is one below a folder."""
    return lambda event, arguments: event in _EVENTS and any(str(folder) in str(one) for one in arguments)


def life(fatal, work, counts):
    """Call `work` in a forked child that dies at its event number `fatal`; return the events it saw, or None."""
    readable, writable = os.pipe()
    child = os.fork()
    if child:
        os.close(writable)
        with os.fdopen(readable) as stream:
            seen = stream.read()
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) and not seen:
            raise SystemExit(f"the child that was to die at {fatal} failed by itself")
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
    only(work)
    os.write(writable, str(count).encode())
    os._exit(0)


def only(work):
    """Call `work` in a child; an error ends it, so that it does not go on as its parent would."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - whatever it is, this child must not live on
        traceback.print_exc()
        os._exit(1)
