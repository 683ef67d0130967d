"""Sizes as people write them."""

from __future__ import annotations

import pytest

from pytest_gpusync.model.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (0, 0),
        (1536, 1536),
        ("1536", 1536),
        ("512 B", 512),
        ("512 KiB", 512 * 1024),
        ("1 MiB", 1024**2),
        ("1MB", 10**6),
        ("10MB", 10**7),
        ("10 kB", 10**4),
        ("10 mib", 10 * 1024**2),
        (" 1.5 GiB ", 3 * 1024**3 // 2),
        ("0.1 GB", 10**8),
        ("9007199254740993 B", 2**53 + 1),
    ],
)
def test_a_size_is_read_as_bytes(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "MiB", "1 Mi", "1 MBit", "-1 MiB", "1e6", "1 000", "1,5 MiB", -1, 1.5, True, None]
)
def test_what_is_no_size_is_refused_in_one_line_that_shows_it(text):
    with pytest.raises(ValueError, match="a size is a number of bytes, or text such as") as refusal:
        parse_size(text)
    assert repr(text) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1024**2, "1 MiB"), (10**7, "9.5 MiB"), (-3 * 1024**3, "-3 GiB")],
)
def test_a_size_is_written_in_the_unit_a_person_would_choose(nbytes, text):
    assert format_size(nbytes) == text
