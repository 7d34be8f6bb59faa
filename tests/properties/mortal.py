"""A child that may kill itself between two lines of our code, and how many of them it ran.

Forks, so that a killed child costs milliseconds, which a process with threads must not do.
"""

import os
import signal
import sys
from collections.abc import Callable


def lines_run(work: Callable[[], object], is_ours: Callable[[str], bool], last_line: int | None) -> int:
    """Do `work` in a child that kills itself after so many lines of the files that are ours; 0 if it was killed."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        lines = 0

        def trace(frame, event, argument):
            nonlocal lines
            if not is_ours(frame.f_code.co_filename):
                return None
            lines += event == "line"
            if lines == last_line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        work()
        sys.settrace(None)
        os.write(send, str(lines).encode())
        os._exit(0)
    os.close(send)
    _, status = os.waitpid(child, 0)
    told = os.read(receive, 20)
    os.close(receive)
    assert os.WIFSIGNALED(status) == (not told), f"the child neither ended nor was killed: {status}"
    return int(told or 0)
