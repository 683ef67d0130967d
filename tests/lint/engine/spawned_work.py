"""Work for new processes, which import it."""

from __future__ import annotations

import os
import time

from gpusync_lint.run import schedule


def square(task):
    print("what is printed is no result")
    return task * task


def large(task):
    return bytes(3_000_000)


def die_at_3(task):
    if task == 3:
        os._exit(7)
    return task


def die(task):
    os._exit(7)


def sleep(task):
    os.write(2, b"%d\n" % os.getpid())
    time.sleep(60)


class Deadly(schedule.Given):
    """Files of which some end the process that reads them, unless it is the one that made this object."""

    def __init__(self, sources):
        super().__init__(sources)
        self.parent = os.getpid()

    def source(self, place):
        found = super().source(place)
        if "deadly" in found.text and os.getpid() != self.parent:
            os._exit(7)
        return found
