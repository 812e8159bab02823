"""Forks, spawned processes, interpreter exit and Ctrl-C, each in a real process of its own."""

from __future__ import annotations

import signal
from time import perf_counter

from trainer.client_help import run_script, start_script
from trainer.fault_server import FaultServer

UPDATE = """
import os, sys, time
import numpy as np
from triage_monitor import Monitor
update = dict(gap=np.linspace(-1, 1, 600, dtype=np.float32), advantages=np.ones(6), offsets=np.arange(0, 601, 100))
url = sys.argv[1]
"""

EXIT_WITHOUT_CLOSE = (
    UPDATE
    + """
monitor = Monitor(url, run="r", exit_flush_seconds=float(sys.argv[2]), timeout=60, call_timeout=60)
for step in range(5):
    assert monitor.submit(step=step, **update)
print("leaving", flush=True)
"""
)


def test_exit_without_close_delivers_what_was_submitted() -> None:
    with FaultServer() as server:
        run_script(EXIT_WITHOUT_CLOSE, server.url, "30")
        assert server.steps == list(range(5))


def test_exit_with_a_hung_server_is_over_within_its_bound() -> None:
    with FaultServer("hang") as server:
        process = start_script(EXIT_WITHOUT_CLOSE, server.url, "0.5")
        assert process.stdout is not None and process.stdout.readline() == "leaving\n"
        start = perf_counter()
        _, err = process.communicate(timeout=50)
        assert process.returncode == 0, err
        assert 0.3 < perf_counter() - start < 20.0, "timeouts are 60 s; the flush is 0.5 s"


def test_forked_child_starts_empty_and_the_parent_goes_on() -> None:
    script = (
        UPDATE
        + """
monitor = Monitor(url, run="parent", attempt=1, queue_updates=50, timeout=5)
for step in range(10):
    monitor.submit(step=step, **update)
child = os.fork()
if child == 0:
    stats = monitor.stats
    fresh = (stats["submitted"], stats["queue_depth"], stats["dropped"]) == (0, 0, {})
    monitor.submit(step=100, **update)
    done = monitor.close(20.0)
    os._exit(0 if fresh and done and monitor.stats["acknowledged"] == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
for step in range(10, 15):
    monitor.submit(step=step, **update)
assert monitor.close(20.0)
assert monitor.stats["acknowledged"] == 15, monitor.stats
"""
    )
    with FaultServer() as server:
        run_script(script, server.url)
        assert sorted(server.steps) == [*range(15), 100]


def test_fork_while_the_parent_is_sending_to_a_hung_server_harms_neither() -> None:
    script = (
        UPDATE
        + """
monitor = Monitor(url, run="r", attempt=1, timeout=60, call_timeout=60, exit_flush_seconds=0.2)
children = []
for step in range(20):
    monitor.submit(step=step, **update)
    child = os.fork()
    if child == 0:
        ok = monitor.stats["queue_depth"] == 0 and monitor.submit(step=1, **update) and not monitor.close(0.05)
        os._exit(0 if ok else 1)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
assert monitor.stats["queue_depth"] == 20
"""
    )
    with FaultServer("hang") as server:
        run_script(script, server.url)


def test_nothing_is_imported_behind_the_trainers_back() -> None:
    """A fork in the middle of a thread's import leaves half a module in the child for good."""
    script = (
        UPDATE
        + """
monitor = Monitor(url.replace("127.0.0.1", "localhost"), run="r")
before = set(sys.modules)
monitor.submit(step=0, **update, rewards=[0.5] * 6, groups=np.arange(6), mask=np.ones(600, bool))
monitor.apply(0)
assert monitor.close(20.0), monitor.stats
print(sorted(set(sys.modules) - before))
"""
    )
    with FaultServer() as server:
        assert run_script(script, server.url) == "[]\n"


def test_processes_of_multiprocessing_flush_when_they_end() -> None:
    script = (
        UPDATE
        + """
import multiprocessing
def work(step):
    monitor = Monitor(url, run="r", attempt=1, exit_flush_seconds=30)
    monitor.submit(step=step, **update)
for method in ("fork", "spawn"):
    process = multiprocessing.get_context(method).Process(target=work, args=(["fork", "spawn"].index(method),))
    process.start()
    process.join()
    assert process.exitcode == 0
"""
    )
    # spawn needs an importable main module, which -c gives only through the file system
    import tempfile
    from pathlib import Path

    with FaultServer() as server, tempfile.TemporaryDirectory() as folder:
        body = script.replace("\nfor method", "\nif __name__ == '__main__':\n  for method").replace(
            "\n    process", "\n      process"
        )
        body = body.replace("\n    assert process", "\n      assert process")
        Path(folder, "work.py").write_text(body, encoding="utf-8")
        run_script(
            f"import runpy, sys; runpy.run_path({str(Path(folder, 'work.py'))!r}, run_name='__main__')", server.url
        )
        assert sorted(server.steps) == [0, 1]


def test_interrupt_ends_the_trainer_at_once_and_quietly() -> None:
    script = (
        UPDATE
        + """
monitor = Monitor(url, run="r", timeout=60, call_timeout=60, exit_flush_seconds=0.3)
print("running", flush=True)
step = 0
while True:
    monitor.submit(step=step, **update)
    step += 1
"""
    )
    with FaultServer("hang") as server:
        process = start_script(script, server.url)
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        assert server.wait(lambda: server.calls["POST attempts"] > 0)
        start = perf_counter()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=50)
        assert perf_counter() - start < 20.0
        assert process.returncode == -signal.SIGINT
        assert err.count("Traceback") == 1 and "KeyboardInterrupt" in err
        assert "Exception in thread" not in err and "Exception ignored" not in err


def test_interrupts_in_submit_leave_nothing_locked_and_nothing_uncounted() -> None:
    """A trainer may catch Ctrl-C and go on. Here it comes at random moments, hundreds of times."""
    script = (
        UPDATE
        + """
import random, signal, threading
signal.signal(signal.SIGALRM, signal.default_int_handler)
monitor = Monitor(url, run="r", queue_updates=3, connect_timeout=0.2)
start = time.perf_counter()
for step in range(100):
    monitor.submit(step=step, **update)
usual = (time.perf_counter() - start) / 100
moments, hits = random.Random(1), 0
while hits < 500:
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + 4 * usual * moments.random())
        for step in range(100, 10_000):
            monitor.submit(step=step, **update)
    except KeyboardInterrupt:
        hits += 1
signal.setitimer(signal.ITIMER_REAL, 0)
told = []
reader = threading.Thread(target=lambda: told.append(monitor.stats), daemon=True)
reader.start()
reader.join(20)
assert told, "the queue stayed locked"
stats = told[0]
gone = sum(count for reason, count in stats["dropped"].items() if reason != "acknowledgement")
print(stats["submitted"] - stats["acknowledged"] - gone - stats["queue_depth"])
print(stats["queue_bytes"] <= 4 * sum(array.nbytes for array in update.values()) + 4096)
"""
    )
    with FaultServer() as server:
        server.stop()
        assert run_script(script, server.url) == "0\nTrue\n"


def test_interrupt_of_the_first_submit_makes_no_second_sender() -> None:
    script = (
        UPDATE
        + """
import random, signal, threading
signal.signal(signal.SIGALRM, signal.default_int_handler)
sampled = dict(sampler_logprobs=-np.ones(6), response_ids=["a", "b"], offsets=[0, 3, 6])
def first_submit(monitor, seconds):
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        monitor.submit(step=0, **sampled)
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
def uncounted(monitor):
    stats = monitor.stats
    gone = sum(count for reason, count in stats["dropped"].items() if reason != "acknowledgement")
    return stats["submitted"] - stats["acknowledged"] - gone - stats["queue_depth"]
moments, usual, monitors = random.Random(1), 0.0, []
for number in range(60):
    monitor = Monitor(url, run=f"r{number}", side="sampler", launch_id="l", timeout=60, call_timeout=60)
    start = time.perf_counter()
    if number < 5:
        monitor.submit(step=0, **sampled)
        usual = max(usual, time.perf_counter() - start)
    else:
        first_submit(monitor, 1e-6 + usual * moments.random())
        monitors.append(monitor)
    for step in (1, 2):
        monitor.submit(step=step, **sampled)
end = time.monotonic() + 2
while not any(map(uncounted, monitors)) and time.monotonic() < end:
    time.sleep(0.01)
print([uncounted(monitor) for monitor in monitors if uncounted(monitor)])
for monitor in monitors:
    monitor.close(0)
"""
    )
    with FaultServer("hang") as server:
        assert run_script(script, server.url) == "[]\n"


def test_exception_inside_the_with_block_passes_through_and_what_was_sent_is_flushed() -> None:
    script = (
        UPDATE
        + """
try:
    with Monitor(url, run="r") as monitor:
        monitor.submit(step=0, **update)
        raise ZeroDivisionError("the trainer's own")
except ZeroDivisionError:
    print(monitor.stats["acknowledged"])
"""
    )
    with FaultServer() as server:
        assert run_script(script, server.url) == "1\n"


def test_client_needs_neither_torch_nor_a_server_framework() -> None:
    script = (
        UPDATE
        + """
with Monitor(url, run="r") as monitor:
    monitor.submit(step=0, **update)
    monitor.apply(0)
loaded = {"torch", "fastapi", "uvicorn", "prometheus_client", "polars", "numba"} & set(sys.modules)
print(sorted(loaded))
"""
    )
    with FaultServer() as server:
        assert run_script(script, server.url) == "[]\n"
        assert server.steps == [0]
