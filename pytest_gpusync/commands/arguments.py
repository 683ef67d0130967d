"""Types of arguments that several commands have."""

from __future__ import annotations

import argparse


def seconds(text: str) -> float:
    """A number of seconds above 0.

    Raises:
        argparse.ArgumentTypeError: the text is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number
