"""``python -m bubbleproof`` and the installed command: the command line."""

import os
import sys
import threading
from contextlib import suppress


def main() -> int:
    """Run the command line and return its exit status.

    Ctrl-C ends it without a traceback also while its modules are still being imported. A search
    that was cut short may still be inside compiled code, which the end of the interpreter would
    wait for or pull away from under it; then the process ends at once, all output being written.
    """
    try:
        from bubbleproof.cli import main as command_line

        status = command_line()
    except KeyboardInterrupt:
        status = 130
    if threading.active_count() > 1:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
