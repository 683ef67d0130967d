"""The order of locks that can hang a training job, without a GPU: usage: hazard.py SECONDS [--into-python]

torch's allocator frees memory while it holds its own lock, and a thread that drops a tensor holds the GIL and wants
that lock. Here a mutex is the allocator's, and CUPTI's callbacks are made by hand: threads call cudaFree and
cudaEventSynchronize under the mutex without the GIL; others take the mutex while they hold the GIL; others synchronize
without the mutex; and so does the main thread, which reads the notes as at the end of a region. It prints what was
counted; it ends with status 1 if a count is wrong, and with the stacks of all threads when nothing moves for a while.
With --into-python the callbacks under the mutex enter Python, which must hang.
"""

from __future__ import annotations

import ctypes
import faulthandler
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from test_cupti_calls import IDS, Cupti, both_sites

from pytest_gpusync.recorders import gate as gates
from pytest_gpusync.recorders.cupti import CuptiRecorder

SOURCE = """
#include <pthread.h>
static pthread_mutex_t allocator = PTHREAD_MUTEX_INITIALIZER;
void call_under_lock(void (*gate)(void *, unsigned, unsigned, void *), void *context, unsigned id, void *in, void *out)
{
    pthread_mutex_lock(&allocator);
    gate(context, 2, id, in);
    gate(context, 2, id, out);
    pthread_mutex_unlock(&allocator);
}
void take_lock(void)
{
    pthread_mutex_lock(&allocator);
    pthread_mutex_unlock(&allocator);
}
"""
PATIENCE_S = 10
REGION_S = 0.05
BURST, PAUSE_S = 20, 0.004
RING = 1 << 15
"""Records that the log of gate.c holds."""
NAMES = ("cudaFree", "cudaEventSynchronize")


def main() -> int:
    seconds, into_python = float(sys.argv[1]), "--into-python" in sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "allocator.c"), Path(folder, "allocator.so")
        source.write_text(SOURCE)
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-lpthread"], check=True)
        without_gil, with_gil = ctypes.CDLL(str(library)), ctypes.PyDLL(str(library))
    seen = []
    recorder = CuptiRecorder(Cupti())
    recorder.start(lambda raw: seen.append(raw.kind))
    gate = recorder._gate
    if into_python:
        for name in NAMES:
            gate.set_action(gates.RUNTIME, IDS[name], gates.PYTHON)
    address = ctypes.cast(gate.function, ctypes.c_void_p)
    made = dict.fromkeys((*NAMES, "cudaStreamSynchronize"), 0)
    counting = threading.Lock()
    until = time.monotonic() + seconds

    def under_lock(name):
        entry, left = (data for _, data in both_sites(name))
        calls = 0
        while time.monotonic() < until:
            for _ in range(BURST):
                without_gil.call_under_lock(
                    address, ctypes.c_void_p(gate.user_data), IDS[name], ctypes.byref(entry), ctypes.byref(left)
                )
            calls += BURST
            # The ring holds what is logged between two drains of the main thread, which may be kept waiting for long.
            time.sleep(0.0 if into_python else PAUSE_S)
            while gate.logged.value - gate.drained > RING // 4 and time.monotonic() < until:
                time.sleep(PAUSE_S)
        with counting:
            made[name] += calls

    def drop_tensors():
        while time.monotonic() < until:
            for _ in range(100):
                with_gil.take_lock()
            time.sleep(0)

    def synchronize():
        entry, left = (data for _, data in both_sites("cudaStreamSynchronize"))
        calls = 0
        while time.monotonic() < until:
            gate.function(gate.user_data, gates.RUNTIME, IDS["cudaStreamSynchronize"], ctypes.addressof(entry))
            gate.function(gate.user_data, gates.RUNTIME, IDS["cudaStreamSynchronize"], ctypes.addressof(left))
            calls += 1
            time.sleep(0.0005)
        with counting:
            made["cudaStreamSynchronize"] += calls

    works = [(under_lock, (name,)) for name in NAMES for _ in range(2)]
    works += [(drop_tensors, ()), (drop_tensors, ()), (synchronize, ()), (synchronize, ())]
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    threads = [threading.Thread(target=work, args=arguments, daemon=True) for work, arguments in works]
    for thread in threads:
        thread.start()
    entry, left = (data for _, data in both_sites("cudaStreamSynchronize"))
    calls = 0
    while any(thread.is_alive() for thread in threads):
        began = time.monotonic()
        while time.monotonic() - began < REGION_S:
            gate.function(gate.user_data, gates.RUNTIME, IDS["cudaStreamSynchronize"], ctypes.addressof(entry))
            gate.function(gate.user_data, gates.RUNTIME, IDS["cudaStreamSynchronize"], ctypes.addressof(left))
            calls += 1
            time.sleep(0.0002)
        recorder.flush()
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    faulthandler.cancel_dump_traceback_later()
    made["cudaStreamSynchronize"] += calls
    recorder.flush()
    recorder.stop()
    found = {kind: seen.count(kind) for kind in ("free", "event", "stream")}
    print(f"{seconds:g} s: made {made}, counted {found}")
    return 0 if list(found.values()) == list(made.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
