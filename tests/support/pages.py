"""Markdown pages as GitHub shows them."""

import re


def anchor(heading: str) -> str:
    """Return the name under which GitHub lets one link to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
