"""Thirty functions to be captured as CUDA graphs: half of them can be, the others have one to three offenders each.

A comment ``# offends N`` marks a line of the Nth offender of its function: a capture does not permit it, or a replay
does not do what it does. An offender on several lines (a counter: where it changes, where it is used) has the same
number on each. `captures.py` captures them, on a GPU and on the simulated device, and lints this file.
"""

import random

import numpy as np
import torch

x = torch.linspace(-1, 2, 64, device="cuda").reshape(8, 8)
counts = torch.full((8,), 2, device="cuda")
model = torch.nn.Linear(8, 8).cuda()
drop = torch.nn.Dropout(0.5).cuda()
sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
other = torch.nn.Linear(8, 8).cuda()
adam = torch.optim.AdamW(other.parameters(), lr=torch.tensor(0.01, device="cuda"), capturable=True)
pinned = torch.ones(8, 8).pin_memory()
device_steps = torch.zeros((), device="cuda")
steps = 0
side = torch.cuda.Stream()
outside = torch.cuda.Event()
outside.record()
generator = torch.Generator("cuda")
log = []


class Masked(torch.nn.Module):
    """Builds its mask in the first call."""

    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.tensor([[1.0, 0.0] * 4], device=x.device)
        return x * self.mask


masked = Masked()


# ---- what can be captured ----


def linear_and_relu(x):
    return torch.relu(model(x))


def train_with_momentum(x):
    sgd.zero_grad(set_to_none=False)
    loss = model(x).square().mean()
    loss.backward()
    sgd.step()
    return loss


def train_capturable_adam(x):
    adam.zero_grad(set_to_none=False)
    loss = other(x).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    adam.step()
    return loss


def dropout(x):
    return drop(x) * 2


def fork_and_join(x):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    z = x + 1
    torch.cuda.current_stream().wait_stream(side)
    return y + z


def where_instead_of_a_branch(x):
    return torch.where(x.sum() > 0, x * 2, x)


def weights_instead_of_a_mask(x):
    keep = (x > 0).float()
    return (x * keep).sum() / keep.sum().clamp(min=1)


def copy_from_a_static_buffer(x):
    return x + pinned.to("cuda", non_blocking=True)


def counter_on_the_device(x):
    device_steps.add_(1)
    return x * device_steps


def repeat_with_known_size(x):
    return x.repeat_interleave(counts, 0, output_size=16)


def largest_elements(x):
    values, places = x.topk(3, dim=1)
    return torch.gather(x, 1, places) + values


def branch_on_a_shape(x):
    if x.shape[0] > 4:
        x = x * 2
    return x + len(x)


def loop_of_constants(x):
    for i in range(4):
        x = x * (1 + i / 10) if i % 2 else x + i
    return x


def mask_of_the_first_call(x):
    return masked(x)


def read_outside_of_captures(x):
    y = x.square()
    if not torch.cuda.is_current_stream_capturing():
        log.append(y.sum().item())
    return y


# ---- what cannot ----


def read_a_scale(x):
    scale = x.abs().max().item()  # offends 1
    return x / scale


def branch_and_mask(x):
    y = model(x)
    if y.sum() > 0:  # offends 1
        y = y * 2
    return y[y > 0]  # offends 2


def _report(loss):
    log.append(float(loss))  # offends 1


def read_in_a_helper_and_synchronize(x):
    loss = model(x).mean()
    _report(loss)
    torch.cuda.synchronize()  # offends 2
    return loss


def indices_of_positive(x):
    rows = (x > 0).any(1).nonzero()  # offends 1
    log.append(rows.tolist())  # offends 2
    return x.sum(0)


def numbers_of_the_host(x):
    shift = torch.tensor([1.0] * 8, device="cuda")  # offends 1
    noise = torch.tensor([random.random()] * 8, pin_memory=True)  # offends 2
    return x + shift + noise.to("cuda", non_blocking=True)  # offends 2


def sizes_from_data(x):
    kinds = torch.unique(x.round())  # offends 1
    return x.repeat_interleave(counts, 0).sum() + kinds.sum()  # offends 2


def through_numpy(x):
    values = x.cpu().numpy()  # offends 1
    return x + torch.from_numpy(np.tanh(values)).cuda()  # offends 2


def ask_and_wait(x):
    y = x * 2
    outside.query()  # offends 1
    torch.cuda.current_stream().synchronize()  # offends 2
    return y


def fork_without_join(x):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # offends 1
        y = x * 2  # offends 1
    log.append(y)
    return x + 1


def stream_outside(x):
    with torch.cuda.stream(side):  # offends 1
        y = x * 2  # offends 1
    return y + 1


def wait_for_work_outside(x):
    torch.cuda.current_stream().wait_event(outside)  # offends 1
    return x * 2


def counter_of_python(x):
    global steps
    steps += 1  # offends 1
    y = x * steps  # offends 1
    if steps % 2:  # offends 2
        y = y + 1  # offends 2
    return y


def random_numbers_of_the_host(x):
    y = x * random.random()  # offends 1
    return y + float(np.random.rand())  # offends 2


def generator_and_seed(x):
    noise = torch.rand(8, device="cuda", generator=generator)  # offends 1
    torch.cuda.manual_seed(random.getrandbits(30))  # offends 2 3
    return x + noise


def check_select_and_read(x):
    if torch.isnan(x).any():  # offends 1
        raise ValueError("not a number")
    chosen = torch.masked_select(x, x > 1)  # offends 2
    return chosen.sum() / chosen.mean().item()  # offends 3


CAPTURABLE = (
    linear_and_relu, train_with_momentum, train_capturable_adam, dropout, fork_and_join, where_instead_of_a_branch,
    weights_instead_of_a_mask, copy_from_a_static_buffer, counter_on_the_device, repeat_with_known_size,
    largest_elements, branch_on_a_shape, loop_of_constants, mask_of_the_first_call, read_outside_of_captures,
)  # fmt: skip
OFFENDING = (
    read_a_scale, branch_and_mask, read_in_a_helper_and_synchronize, indices_of_positive, numbers_of_the_host,
    sizes_from_data, through_numpy, ask_and_wait, fork_without_join, stream_outside, wait_for_work_outside,
    counter_of_python, random_numbers_of_the_host, generator_and_seed, check_select_and_read,
)  # fmt: skip


def capture_all():
    """Capture each of them: what the linter follows. It is not called, as one capture that fails ends a process's."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        linear_and_relu(x)
        train_with_momentum(x)
        train_capturable_adam(x)
        dropout(x)
        fork_and_join(x)
        where_instead_of_a_branch(x)
        weights_instead_of_a_mask(x)
        copy_from_a_static_buffer(x)
        counter_on_the_device(x)
        repeat_with_known_size(x)
        largest_elements(x)
        branch_on_a_shape(x)
        loop_of_constants(x)
        mask_of_the_first_call(x)
        read_outside_of_captures(x)
        read_a_scale(x)
        branch_and_mask(x)
        read_in_a_helper_and_synchronize(x)
        indices_of_positive(x)
        numbers_of_the_host(x)
        sizes_from_data(x)
        through_numpy(x)
        ask_and_wait(x)
        fork_without_join(x)
        stream_outside(x)
        wait_for_work_outside(x)
        counter_of_python(x)
        random_numbers_of_the_host(x)
        generator_and_seed(x)
        check_select_and_read(x)
