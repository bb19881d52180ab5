"""The page of the public names says what the docstrings say, and so pins names and signatures."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "scripts" / "python_reference.py"


def test_the_page_of_public_names_is_that_of_the_code() -> None:
    made = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=60
    )
    page = (CHECKOUT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert page == made.stdout, (
        "do: python scripts/python_reference.py > docs/reference/python.md; a name or argument that is gone "
        "belongs in CHANGELOG.md"
    )
