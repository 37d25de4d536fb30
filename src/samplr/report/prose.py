"""Sentences on the page."""

import re
from html import escape


def prose(text: str) -> str:
    """A sentence as HTML; what stands `so` in it is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
