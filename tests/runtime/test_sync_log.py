"""How the syncs of an open region are kept."""

from __future__ import annotations

import threading

import pytest

from pytest_gpusync.measure.rows import Rows
from pytest_gpusync.measure.sync_log import SyncLog, SyncMoment, SyncOrigin
from pytest_gpusync.model.measurement import MemorySample, Site


def origin(line):
    site = Site("train.py", line, "train")
    return SyncOrigin("stream", site, "D2H", 4, None, 1, "MainThread", 0, None, None, ())


def test_syncs_come_back_in_their_order_with_what_is_not_known():
    log = SyncLog()
    made = [
        (origin(1), SyncMoment(0, 250, 1000, None)),
        (origin(2), SyncMoment(1, None, None, 7)),
        (origin(1), SyncMoment(0, 0, 0, 0)),
    ]
    for where, (_, blocked, began, sequence) in made:
        log.append(where, blocked_ns=blocked, began_ns=began, sequence=sequence)
    assert (len(log), list(log)) == (3, made)


def test_threads_that_meet_new_lines_at_once_mix_nothing_up():
    log = SyncLog()
    begin = threading.Barrier(4)

    def add(first):
        begin.wait()
        for line in range(first, first + 2000):
            log.append(origin(line), blocked_ns=None, began_ns=line, sequence=None)

    threads = [threading.Thread(target=add, args=(2000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(moment.began_ns for _, moment in log) == list(range(8000))
    assert all(found.site.line == moment.began_ns for found, moment in log)


def test_rows_are_read_as_a_list_is():
    rows, expected = Rows(MemorySample), []
    for number in range(5):
        sample = MemorySample(number, None, 2**40 + number, None if number % 2 else 0, process=number)
        rows.append(sample)
        expected.append(sample)
    assert (list(rows), len(rows), rows[1], rows[-2], rows[-3:], rows[::2]) == (
        expected,
        5,
        expected[1],
        expected[-2],
        expected[-3:],
        expected[::2],
    )
    with pytest.raises(IndexError):
        rows[5]
    rows.clear()
    assert list(rows) == []
