"""How the syncs of an open region are kept."""

from __future__ import annotations

import threading

from pytest_gpusync.measure.sync_log import SyncLog, SyncMoment, SyncOrigin
from pytest_gpusync.model.measurement import Site


def origin(line):
    site = Site("train.py", line, "train")
    return SyncOrigin("stream", site, "D2H", 4, None, 1, "MainThread", 0, None, None, ())


def test_syncs_come_back_in_their_order_with_what_is_not_known():
    log = SyncLog()
    made = [
        (origin(1), SyncMoment(250, 1000, None)),
        (origin(2), SyncMoment(None, None, 7)),
        (origin(1), SyncMoment(0, 0, 0)),
    ]
    for sync in made:
        log.append(*sync)
    assert (len(log), list(log)) == (3, made)


def test_threads_that_meet_new_lines_at_once_mix_nothing_up():
    log = SyncLog()
    begin = threading.Barrier(4)

    def add(first):
        begin.wait()
        for line in range(first, first + 2000):
            log.append(origin(line), SyncMoment(None, line, None))

    threads = [threading.Thread(target=add, args=(2000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(moment.began_ns for _, moment in log) == list(range(8000))
    assert all(found.site.line == moment.began_ns for found, moment in log)
