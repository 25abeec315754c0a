"""A launcher for a command that ends when its parent ends, for whatever reason.

    python -I -S tether.py PARENT_PID USER COMMAND [ARGUMENT …]

It runs as a script between fork and exec. `preexec_fn` would run Python in a forked, possibly
multi-threaded process, which may deadlock. It has an effect on Linux only; elsewhere the command
just runs.

The script changes to USER (`-`: none), not the command, because the kernel clears the parent-death
signal when a process changes its user.
"""

import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, user, *command = sys.argv[1:]
    if user != "-":
        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        # The parent may have ended before the line above took effect.
        if os.getppid() != int(parent_pid):
            sys.exit("the parent is gone")
    os.execvp(command[0], command)  # noqa: S606 - replacing this process is the point


if __name__ == "__main__":
    main()
