"""As the command line does: threads that wait do not spin, so that tests can run side by side."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
