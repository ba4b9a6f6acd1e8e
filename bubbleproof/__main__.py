"""``python -m bubbleproof`` and the installed command: the command line."""

import sys


def main() -> int:
    """Run the command line and return its exit status.

    Ctrl-C ends it without a traceback also while its modules are still being imported.
    """
    try:
        from bubbleproof.cli import main as command_line

        return command_line()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
