"""As the command line does: threads that wait do not spin, so that tests can run side by side.

And each process of the tests has one thread: there is one process for each core.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")
