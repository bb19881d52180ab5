"""``python -m outlast`` and the ``outlast`` command."""

import sys


def main() -> None:
    """Run the command line; exit with its code."""
    from outlast.cli.main import run_command_line

    sys.exit(run_command_line(sys.argv[1:]))


if __name__ == "__main__":
    main()
