"""A terminal that keeps what it was shown."""

import io
import re


class Terminal(io.StringIO):
    """Where standard error is a terminal."""

    def isatty(self) -> bool:
        return True


def shown_on(terminal: Terminal) -> list[str]:
    """Return what stood on its rows, one after another, without the codes that move and colour."""
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    return [row.rpartition("\r")[2].strip() for row in shown.split("\n")]
