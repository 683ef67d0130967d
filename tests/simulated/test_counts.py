"""Statements and the syncs they make, by kind, as an H200 makes them with torch 2.11."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

STREAM = "stream"

WAITING = {
    # reading values
    "s.item()": {STREAM: 1},
    "float(s)": {STREAM: 1},
    "x.tolist()": {STREAM: 1},
    "x.cpu()": {STREAM: 1},
    "[e.item() for e in v[:3]]": {STREAM: 3},
    "repr(s)": {STREAM: 8},
    "f'{s:.3f}'": {STREAM: 1},
    "lst[si]": {STREAM: 1},
    "x[:si]": {STREAM: 1},
    "x[si, si]": {STREAM: 2},
    # control flow
    "if_(s)": {STREAM: 1},
    "max(s, s + 1)": {STREAM: 1},
    "torch.allclose(x, x)": {STREAM: 1},
    "torch.equal(x, x.clone())": {STREAM: 1},
    # shapes that depend on values
    "m.nonzero()": {STREAM: 1},
    "x[m]": {STREAM: 1},
    "x[m] = s": {STREAM: 1},
    "x.masked_select(m)": {STREAM: 1},
    "x.unique()": {STREAM: 1},
    "x.unique(dim=0)": {STREAM: 3},
    "idx.bincount()": {STREAM: 2},
    "v.histc(10)": {STREAM: 2},
    "torch.repeat_interleave(idx)": {STREAM: 2},
    "x[[0, 1]]": {STREAM: 1},
    "x[cidx]": {STREAM: 1},
    "x[c > 0] = 0.0": {STREAM: 1},
    "x.index_put_((c > 0,), s, accumulate=True)": {STREAM: 2},
    "x[(c > 0).byte()] = 0.0": {STREAM: 1},
    # tensors read by kernels
    "x.masked_fill(m, s)": {STREAM: 1},
    "x.index_fill_(0, idx, s)": {STREAM: 1},
    "torch.normal(v, v.abs())": {STREAM: 2},
    "torch.isin(many, many)": {STREAM: 3},
    # linear algebra
    "torch.linalg.inv(spd)": {STREAM: 1},
    "torch.linalg.svd(spd)": {STREAM: 2},
    "torch.linalg.svd(spd[None].repeat(4, 1, 1))": {STREAM: 2},
    "torch.linalg.eigh(spd)": {STREAM: 2},
    "torch.linalg.lstsq(spd, x)": {STREAM: 1},
    # copies and construction
    "c.to('cuda')": {STREAM: 1},
    "p.to('cuda')": {STREAM: 1},
    "torch.tensor([1, 2], device='cuda')": {STREAM: 1},
    "x.copy_(c)": {STREAM: 1},
    "x[0] = c[0]": {STREAM: 1},
    "c.copy_(x, non_blocking=True)": {"pageable": 1},
    "big.to('cuda', non_blocking=True)": {"pageable": 1},
    "model.load_state_dict(cpu_state)": {STREAM: 2},
    # explicit
    "torch.cuda.synchronize()": {"device": 1},
    "torch.accelerator.synchronize()": {"device": 1},
    "side.synchronize()": {STREAM: 1},
    "event.synchronize()": {"event": 1},
    # hidden in libraries
    "torch.distributions.Normal(v, v.abs() + 1)": {STREAM: 2},
    "torch.distributions.Categorical(v.abs()).sample()": {STREAM: 1},
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)": {STREAM: 1},
    "scaler_step()": {STREAM: 1},
    "F.ctc_loss(lp, ct, cil.to('cuda'), ctl.to('cuda'))": {STREAM: 10},
}

NOT_WAITING = [
    "x.shape",
    "list(v[:3])",
    "x + c[0, 0]",
    "x[idx]",
    "x[m] = 0.0",
    "x[0] = 1.0",
    "x[c > 0]",
    "x[c > 0] = x[c > 0]",
    "x[c[:, 0] > 0] += 1",
    "torch.equal(x, x)",
    "torch.equal(x, v)",
    "x.masked_fill_(m, 0.0)",
    "x.index_fill_(0, idx, 1.0)",
    "x.masked_scatter_(m, x)",
    "torch.isin(many, many[:4])",
    "torch.where(m, x, 0.0)",
    "v.histc(10, min=-3, max=3)",
    "v.abs().multinomial(10)",
    "x.sum()",
    "sum([s, s])",
    "F.dropout(x, 0.5)",
    "F.cross_entropy(x, tgt)",
    "F.one_hot(tgt, 8)",
    "torch.linalg.qr(spd)",
    "torch.linalg.inv_ex(spd)",
    "torch.zeros(4, device='cuda')",
    "c.to('cuda', non_blocking=True)",
    "p.to('cuda', non_blocking=True)",
    "p.copy_(x, non_blocking=True)",
    "x.to('cpu', non_blocking=True)",
    "x.to(torch.float16)",
    "model(x).sum().backward()",
    "adamw.step()",
    "fused.step()",
    "sgd.step()",
    "model.state_dict()",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "event.record(); event.query()",
    "torch.cuda.current_stream().wait_stream(side)",
    "torch.cuda.memory_allocated()",
    "torch.manual_seed(0)",
]


@pytest.fixture
def names(cuda) -> dict[str, object]:
    def make_optimizer(cls, **options):
        model = torch.nn.Linear(8, 8).to("cuda")
        optimizer = cls(model.parameters(), lr=1e-3, **options)
        model(torch.randn(8, 8, device="cuda")).sum().backward()
        optimizer.step()
        return optimizer

    def if_(tensor):
        if tensor:
            return 1
        return 0

    torch.manual_seed(0)
    x = torch.randn(8, 8, device="cuda")
    model = torch.nn.Linear(8, 8).to("cuda")
    model(x).sum().backward()
    scaler = torch.amp.GradScaler("cuda")
    scaled = torch.optim.SGD(model.parameters(), lr=1e-6)

    def scaler_step():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x.detach()).float().mean()
        scaler.scale(loss).backward()
        scaler.step(scaled)
        scaler.update()

    c = torch.randn(8, 8)
    idx = torch.randperm(8, device="cuda")
    event = torch.cuda.Event()
    event.record()
    return {
        "torch": torch,
        "F": F,
        "x": x,
        "v": torch.randn(50, device="cuda"),
        "s": torch.tensor(0.5, device="cuda"),
        "si": torch.tensor(3, device="cuda"),
        "m": torch.eye(8, device="cuda") > 0,
        "idx": idx,
        "cidx": idx.cpu(),
        "many": torch.arange(64, device="cuda"),
        "c": c,
        "p": c.pin_memory(),
        "big": torch.randn(1024, 1024),
        "lst": list(range(10)),
        "tgt": torch.randint(0, 8, (8,), device="cuda"),
        "spd": torch.eye(8, device="cuda") * 3,
        "if_": if_,
        "model": model,
        "cpu_state": {key: value.cpu() for key, value in model.state_dict().items()},
        "sgd": make_optimizer(torch.optim.SGD, momentum=0.9),
        "adamw": make_optimizer(torch.optim.AdamW),
        "fused": make_optimizer(torch.optim.AdamW, fused=True),
        "scaler_step": scaler_step,
        "side": torch.cuda.Stream(),
        "event": event,
        "lp": torch.randn(50, 4, 20, device="cuda").log_softmax(2),
        "ct": torch.randint(1, 20, (4, 10), device="cuda"),
        "cil": torch.full((4,), 50),
        "ctl": torch.full((4,), 10),
    }


# torch 2.15 looks the elements up in another way, with one sync fewer.
CHANGED_IN_2_15 = {"torch.isin(many, many)": {STREAM: 2}}


@pytest.mark.parametrize("statement", WAITING)
def test_counts_of_a_statement_that_waits(statement, names, kinds):
    expected = WAITING[statement]
    if torch.__version__ >= "2.15":
        expected = CHANGED_IN_2_15.get(statement, expected)
    with kinds() as counted:
        exec(statement, names)
    assert dict(counted) == expected


@pytest.mark.parametrize("statement", NOT_WAITING)
def test_a_statement_that_does_not_wait_counts_nothing(statement, names, kinds):
    with kinds() as counted:
        exec(statement, names)
    assert not counted
