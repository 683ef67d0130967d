"""Finds missing waits: which accesses of device and pinned memory are ordered, as CUDA orders them.

The simulated device does all work when it is issued, so no value is ever wrong there. This package keeps what a GPU
would be allowed to do: :mod:`.clocks` knows what each stream and the host have waited for, :mod:`.history` which bytes
were last read and written where. :mod:`.device_work`, :mod:`.pinned_memory` and :mod:`.freed_memory` bring both
together while a region is open; :mod:`.tracking` decides when, and :mod:`.reports` passes races on.
"""
