"""Which accesses of memory nothing orders, as far as one function shows.

The statements of a function are run in the order of the source, loops several times. A program has several lines of
execution: the host, the current stream, each side stream, and the collectives of `torch.distributed`. `clocks` says
what each of them has waited for, `memory` what each allocation was accessed by, `state` what names refer to.
`expressions` and `calls` perform the accesses of expressions, and `statements` follows the control flow.

For example, in

    h = x.to("cpu", non_blocking=True)
    print(h.sum())

the call of `.to` makes an allocation on the host that the current stream writes, and the call of `.sum` reads it on the
host. The host has not waited for the current stream since the write, so the two are a race.

What is not understood orders everything: an unknown function may wait. So does what runs on some paths only: a wait in
one branch counts after the branches have met.
"""
