"""Threads and processes enter the lock one at a time; no write happens between the choice of a batch and its reads."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time

import pytest
import torch

from datasets_rl.buffers.lock import BufferLock, BufferLocks


def test_a_writer_waits_until_announced_reads_are_done():
    gate, order = BufferLock(), []

    def write():
        with gate:
            gate.wait_for_reads()
            order.append("written")

    with gate:
        gate.begin_read()
    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.05)
    order.append("read")
    gate.end_read()
    writer.join(10)

    assert order == ["read", "written"]


def test_the_lock_is_reentrant_and_opens_with_the_last_exit():
    gate, entered = BufferLock(), threading.Event()

    def enter():
        with gate:
            entered.set()

    other = threading.Thread(target=enter)
    with gate:
        with gate:
            other.start()
        assert not entered.wait(0.05)
    other.join(10)

    assert entered.is_set()


def count_up(gate, path, times):
    for _ in range(times):
        with gate:
            number = int(path.read_text())
            time.sleep(0)
            path.write_text(str(number + 1))


# A spawned process needs seconds to import torch; test_sharing.py tests one.
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_and_threads_exclude_each_other(tmp_path, method):
    gate, path = BufferLock(), tmp_path / "number"
    gate.share()
    path.write_text("0")
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=count_up, args=(gate, path, 200)) for _ in range(2)]
    workers += [threading.Thread(target=count_up, args=(gate, path, 200)) for _ in range(2)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(60)

    assert int(path.read_text()) == 800


def die_in_lock(gate):
    with gate:
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_lock_opens_when_its_process_dies():
    gate = BufferLock()
    gate.share()
    process = multiprocessing.get_context("fork").Process(target=die_in_lock, args=(gate,))
    process.start()
    process.join(30)

    assert process.exitcode == -signal.SIGKILL
    with gate:
        pass


def test_a_process_forked_while_a_thread_holds_the_lock_has_an_open_lock():
    gate, leave = BufferLock(), threading.Event()
    inside = threading.Event()

    def stay():
        with gate:
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(10)
    process = multiprocessing.get_context("fork").Process(target=gate.__enter__)
    process.start()
    process.join(30)
    leave.set()
    thread.join(10)

    assert process.exitcode == 0


def copy_much(gate, queue):
    with gate:
        queue.put(int(torch.ones(1_000_000).clone().sum()))


def test_a_forked_process_can_copy_large_tensors_after_its_parent_used_threads():
    """Torch would wait forever for the threads of the parent."""
    gate, context = BufferLock(), multiprocessing.get_context("fork")
    torch.rand(4_000_000).add(1)
    queue = context.SimpleQueue()
    process = context.Process(target=copy_much, args=(gate, queue))
    process.start()
    process.join(20)
    process.kill()
    process.join(10)

    assert process.exitcode == 0
    assert queue.get() == 1_000_000


def enter_later(gate, go):
    go.wait(20)
    with gate:
        pass


@pytest.mark.slow
def test_a_forked_process_keeps_the_lock_when_its_parent_drops_it():
    context = multiprocessing.get_context("fork")
    gate, go = BufferLock(), context.Event()
    gate.share()
    path = gate._path
    processes = [context.Process(target=enter_later, args=(gate, go)) for _ in range(2)]
    for process in processes:
        process.start()
    time.sleep(0.2)
    del gate
    assert not path.exists()
    go.set()
    for process in processes:
        process.join(20)

    assert [process.exitcode for process in processes] == [0, 0]


def test_several_locks_are_entered_in_one_order_in_every_process():
    """An order by memory address would let two processes wait for each other."""
    gates = [BufferLock() for _ in range(6)]
    copies = pickle.loads(pickle.dumps(gates[::-1]))

    assert [gate.name for gate in BufferLocks(gates)._locks] == [gate.name for gate in BufferLocks(copies)._locks]


def test_the_file_of_a_shared_lock_is_deleted_with_it():
    gate = BufferLock()
    gate.share()
    path = gate._path
    copy = pickle.loads(pickle.dumps(gate))

    assert path.exists()
    assert copy.shared
    del copy
    assert path.exists()
    del gate
    assert not path.exists()


def interrupted(gate, order, times=1):
    with gate, gate:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        order.append("whole")


@pytest.mark.parametrize("gate", [BufferLock(), BufferLocks([BufferLock(), BufferLock()])], ids=["one", "several"])
def test_an_interrupt_in_the_lock_is_raised_at_the_exit(gate):
    order = []

    with pytest.raises(KeyboardInterrupt):
        interrupted(gate, order)

    assert order == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_reading_excludes_writers_and_leaves_the_handler_of_interrupts_alone():
    gate, entered = BufferLock(), threading.Event()

    def enter():
        with gate:
            entered.set()

    writer = threading.Thread(target=enter)
    with gate.reading:
        handler = signal.getsignal(signal.SIGINT)
        writer.start()
        assert not entered.wait(0.05)
    writer.join(10)

    assert entered.is_set()
    assert handler is signal.default_int_handler


def test_reading_enters_a_lock_that_processes_share_as_a_whole():
    gate = BufferLock()
    gate.share()

    assert gate.reading is gate
    assert BufferLocks([gate]).reading is not gate


def test_a_second_interrupt_in_the_lock_is_raised_at_once():
    gate, order = BufferLock(), []

    with pytest.raises(KeyboardInterrupt):
        interrupted(gate, order, times=2)

    assert not order
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_leave_the_handler_of_interrupts_alone():
    gate, seen = BufferLock(), []

    def enter():
        with gate:
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(10)

    assert seen == [signal.default_int_handler]


def wait_and_enter(gate, entered):
    with gate:
        entered.set()


def enter_fork_and_exit(gate, entered):
    """Exit while holding the lock; a child process has inherited the open lock file."""
    with gate:
        multiprocessing.get_context("fork").Process(target=wait_and_enter, args=(gate, entered)).start()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_the_lock_opens_for_the_children_of_a_dead_process():
    context = multiprocessing.get_context("fork")
    gate, entered = BufferLock(), context.Event()
    gate.share()
    process = context.Process(target=enter_fork_and_exit, args=(gate, entered))
    process.start()
    process.join(30)

    assert process.exitcode == -signal.SIGKILL
    assert entered.wait(20)
