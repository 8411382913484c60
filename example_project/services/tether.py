"""Run a command that ends with its parent, even where the parent is killed and can end nothing any more.

    python tether.py COMMAND [ARGUMENT...]

The command takes this process's place. On Linux the kernel sends it SIGKILL at its parent's death; elsewhere it is only
run.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was told
            sys.exit(1)
    os.execv(sys.argv[1], sys.argv[1:])
