"""As the command line does: threads that wait do not spin, so that tests can run side by side.

And each process of the tests has one thread: there is one process for each core.
"""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from disk import do_not_wait

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What training notes of itself outside of its folder stays among the tests.
# Processes that run tests side by side share it, as they share what they have trained.
if "TRANSDUCE_TESTS_STATE" not in os.environ:
    os.environ["TRANSDUCE_TESTS_STATE"] = tempfile.mkdtemp(prefix="transduce-tests-")
os.environ["XDG_STATE_HOME"] = os.environ["TRANSDUCE_TESTS_STATE"]
# A shell that starts tests in the background has them, and all that they start, ignore SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup has them ignore SIGHUP. A handler keeps them alive as well, and programs that they start
# begin with the usual one.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

do_not_wait()

# Properties (hypothesis): no time limit, which a busy machine would not keep, and the same examples
# in every run, so that a failure comes from a change. `--hypothesis-profile default` draws others.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


def warn_of_a_missing_library() -> None:
    """Where there is no C library, that is said here, and by no program that a test starts."""
    loaded = sys.modules.get("transduce.runtime.c_library")  # not in a process without tests
    if loaded is not None and loaded.library() is None:
        os.environ["TRANSDUCE_NATIVE"] = "0"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """One process of the tests collects them before the others do.

    It writes the bytecode of tests and package, which would otherwise be compiled in each of them.
    """
    with ExitStack() as until_collected:
        if "PYTEST_XDIST_WORKER" in os.environ:
            from transduce.storage.locks import lock_file

            path = Path(os.environ["TRANSDUCE_TESTS_STATE"]) / "collecting"
            file = until_collected.enter_context(path.open("a"))
            if lock_file(file.fileno(), wait=False) is False:
                lock_file(file.fileno(), wait=True)
                until_collected.close()  # the others collect at the same time
        # Modules and tests stay to the end: the garbage collector need not look through them.
        gc.disable()
        try:
            collected = yield
            warn_of_a_missing_library()
            return collected
        finally:
            gc.enable()
            gc.freeze()
            # Tests make many objects that live on, and few circles of them.
            gc.set_threshold(10_000, 10, 10)
