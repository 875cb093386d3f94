"""As the command line does: threads that wait do not spin, so that tests can run side by side.

And each process of the tests has one thread: there is one process for each core.
"""

import os
import signal
import tempfile

from hypothesis import HealthCheck, settings

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

# Properties (hypothesis): no time limit, which a busy machine would not keep, and the same examples
# in every run, so that a failure comes from a change. `--hypothesis-profile default` draws others.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
