"""Idioms of training code, each with what it needs: how values reach the line that waits, through Python.

Written by hand. The loop of a program repeats its statement; the wait may also be in a function of its set-up.
"""

from __future__ import annotations

SHARED = """\
x = torch.ones(4, 4, device=dev)
v = torch.ones(4, device=dev)
s = torch.tensor(1., device=dev)
m = torch.tensor([1,0,1,0], device=dev).bool()
crit = nn.CrossEntropyLoss()
y = torch.zeros(4, dtype=torch.long, device=dev)
"""
"""What all programs begin with."""
IDIOMS = [
    (
        """\
from dataclasses import dataclass
@dataclass
class Out:
    loss: torch.Tensor
    n: int
def fstep():
    return Out(loss=model(x).mean(), n=3)
""",
        """\
out = fstep()
print(out.loss.item())
""",
    ),
    (
        """\
from dataclasses import dataclass, field
@dataclass
class Meter:
    vals: list = field(default_factory=list)
    def add(self, t):
        self.vals.append(t)
    def mean(self):
        return sum(self.vals) / len(self.vals)
meter = Meter()
""",
        """\
meter.add(model(x).mean())
float(meter.mean())
""",
    ),
    (
        """\
Out = collections.namedtuple('Out', 'loss acc')
def fstep():
    return Out(model(x).mean(), 1)
""",
        """\
loss, acc = fstep()
loss.item()
""",
    ),
    (
        """\
from typing import NamedTuple
class Out(NamedTuple):
    loss: torch.Tensor
    acc: float
def fstep():
    return Out(model(x).mean(), 1)
""",
        """\
fstep().loss.item()
""",
    ),
    (
        "",
        """\
if (l := model(x).mean()) > 0: pass
""",
    ),
    (
        """\
def a():
    return {'loss': model(x).mean()}
""",
        """\
d = {**a(), 'lr': 1.0}
log.info('%s', d['loss'])
""",
    ),
    (
        """\
def a():
    return {'loss': model(x).mean()}
""",
        """\
d = a() | {'lr': 1.0}
print({k: float(w) for k, w in d.items()})
""",
    ),
    (
        """\
stats = {}
""",
        """\
stats.update(loss=model(x).mean())
print(stats['loss'].item())
""",
    ),
    (
        """\
h = collections.defaultdict(list)
""",
        """\
h['loss'].append(model(x).mean())
print(float(h['loss'][-1]))
""",
    ),
    (
        """\
def f(*losses):
    return sum(losses)
""",
        """\
f(model(x).mean(), s).item()
""",
    ),
    (
        """\
def f(**kw):
    return kw['loss']
""",
        """\
f(loss=model(x).mean()).item()
""",
    ),
    (
        """\
def g(loss, n):
    return loss.item()
def f(**kw):
    return g(**kw)
""",
        """\
f(loss=model(x).mean(), n=1)
""",
    ),
    (
        """\
def make():
    total = torch.zeros(1, device=dev)
    def add(t):
        nonlocal total
        total = total + t
        return total
    return add
add = make()
""",
        """\
add(s).item()
""",
    ),
    (
        """\
f = functools.partial(F.mse_loss, reduction='mean')
""",
        """\
f(model(x), x).item()
""",
    ),
    (
        """\
def timed(fn):
    @functools.wraps(fn)
    def inner(*a, **k):
        return fn(*a, **k)
    return inner
@timed
def fstep(y):
    return model(y).mean()
""",
        """\
fstep(x).item()
""",
    ),
    (
        """\
@torch.no_grad()
def fstep(y):
    return model(y).mean()
""",
        """\
fstep(x).item()
""",
    ),
    (
        """\
@torch.inference_mode()
def fstep(y):
    return model(y).argmax(-1)
""",
        """\
fstep(x).tolist()
""",
    ),
    (
        """\
class T:
    def __init__(self):
        self._l = model(x).mean()
    @property
    def loss(self):
        return self._l
t = T()
""",
        """\
t.loss.item()
""",
    ),
    (
        """\
class A:
    def fstep(self):
        out = self.compute(x)
        return out['loss'].item()
class B(A):
    def compute(self, y):
        return {'loss': model(y).mean()}
b = B()
""",
        """\
b.fstep()
""",
    ),
    (
        """\
import abc
class A(abc.ABC):
    @abc.abstractmethod
    def compute(self, y): ...
    def fstep(self):
        return self.compute(x).item()
class B(A):
    def compute(self, y):
        return model(y).mean()
b = B()
""",
        """\
b.fstep()
""",
    ),
    (
        """\
class N(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)
    def forward(self, y):
        return self.l(y)
class M(N):
    def forward(self, y):
        z = super().forward(y)
        return z.mean()
n = M().to(dev)
""",
        """\
n(x).item()
""",
    ),
    (
        """\
kind = 'a'
""",
        """\
match kind:
    case 'a': l = model(x).mean()
    case _: l = s
l.item()
""",
    ),
    (
        "",
        """\
try:
    l = model(x).mean()
except RuntimeError:
    l = None
l.item()
""",
    ),
    (
        """\
d = collections.deque(maxlen=10)
""",
        """\
d.append(model(x).mean())
sum(d).item()
""",
    ),
    (
        """\
d = collections.deque(maxlen=10)
""",
        """\
d.append(model(x).mean().detach())
torch.stack(list(d)).mean().item()
""",
    ),
    (
        "",
        """\
a, b = zip(*[(model(x).mean(), 1), (s, 2)])
float(a[0])
""",
    ),
    (
        "",
        """\
ls = [model(x).mean() for _ in range(2)]
print(max(ls))
""",
    ),
    (
        "",
        """\
sorted([s, v.sum()], key=lambda t: t.item())
""",
    ),
    (
        """\
f = lambda y: model(y).mean()
""",
        """\
f(x).item()
""",
    ),
    (
        """\
fs = {'a': lambda y: y.mean(), 'b': lambda y: y.sum()}
k = 'a'
""",
        """\
fs[k](model(x)).item()
""",
    ),
    (
        """\
name = 'mse_loss'
""",
        """\
getattr(F, name)(model(x), x).item()
""",
    ),
    (
        "",
        """\
'{:.3f}'.format(model(x).mean())
""",
    ),
    (
        "",
        """\
'%.3f' % model(x).mean()
""",
    ),
    (
        "",
        """\
d = {'l': model(x).mean()}
' '.join(f'{k}={w:.3f}' for k, w in d.items())
""",
    ),
    (
        "",
        """\
np.mean([model(x).mean().item()])
""",
    ),
    (
        "",
        """\
np.array(model(x).detach().cpu())
""",
    ),
    (
        "",
        """\
np.concatenate([t.cpu().numpy() for t in [v, v]])
""",
    ),
    (
        """\
total = 0
""",
        """\
total = 0.0
total += float(model(x).mean())
""",
    ),
    (
        """\
total = torch.zeros((), device=dev)
""",
        """\
total += model(x).mean().detach()
if total > 5: pass
""",
    ),
    (
        """\
y = torch.zeros(4, dtype=torch.long, device=dev)
""",
        """\
pred = model(x).argmax(1)
correct = (pred == y).sum().item()
""",
    ),
    (
        "",
        """\
_, pred = torch.max(model(x), 1)
int(pred[0])
""",
    ),
    (
        "",
        """\
vals, idx = model(x).topk(2)
idx.cpu()
""",
    ),
    (
        """\
def conv(t):
    return t.abs().max() < 1e-3
""",
        """\
if not conv(model(x)): pass
""",
    ),
    (
        "",
        """\
if torch.isnan(model(x)).any(): pass
""",
    ),
    (
        "",
        """\
assert torch.isfinite(model(x)).all()
""",
    ),
    (
        "",
        """\
n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
log.info(f'{n:.2f}')
""",
    ),
    (
        "",
        """\
for q in model.parameters():
    if q.grad is not None and q.grad.isnan().any(): pass
""",
    ),
    (
        "",
        """\
sum(q.norm().item() for q in model.parameters())
""",
    ),
    (
        "",
        """\
for n, q in model.named_parameters():
    log.info('%s %f', n, q.grad.norm())
""",
    ),
    (
        "",
        """\
{k: w.cpu() for k, w in model.state_dict().items()}
""",
    ),
    (
        "",
        """\
copy.deepcopy(model.state_dict())
""",
    ),
    (
        """\
n = torch.tensor(3, device=dev)
""",
        """\
for i in range(n): pass
""",
    ),
    (
        """\
names = ['a','b','c','d']
""",
        """\
names[model(x).argmax(1)[0]]
""",
    ),
    (
        "",
        """\
y = x.clone()
y[y > 0] = 0.5
""",
    ),
    (
        "",
        """\
idx = torch.where(v > 0)[0]
""",
    ),
    (
        "",
        """\
len(torch.nonzero(v))
""",
    ),
    (
        "",
        """\
a, b, c, d = v
float(a)
""",
    ),
    (
        "",
        """\
for t in v: t.item()
""",
    ),
    (
        "",
        """\
for i, t in enumerate(model(x)): print(t.sum().item())
""",
    ),
    (
        "",
        """\
for a, b in zip(model(x), x): (a - b).sum().item()
""",
    ),
    (
        "",
        """\
for c in x.chunk(2): c.sum().item()
""",
    ),
    (
        """\
c = torch.ones(4)
""",
        """\
c.to(dev)
""",
    ),
    (
        """\
c = torch.ones(4)
""",
        """\
c.to(x)
""",
    ),
    (
        "",
        """\
x.new_tensor([1.0, 2.0])
""",
    ),
    (
        "",
        """\
torch.tensor([1, 2], device=x.device)
""",
    ),
    (
        """\
c = torch.ones(4)
""",
        """\
c.type_as(x)
""",
    ),
    (
        """\
i = [0, 2]
""",
        """\
x[i]
""",
    ),
    (
        """\
i = np.array([0, 2])
""",
        """\
x[i]
""",
    ),
    (
        """\
i = torch.tensor([0, 2])
""",
        """\
x[i]
""",
    ),
    (
        "",
        """\
p_ = torch.randperm(4)
x[p_]
""",
    ),
    (
        "",
        """\
i = torch.multinomial(v.abs() + 1, 1)
i.item()
""",
    ),
    (
        """\
class Tr:
    def __init__(self):
        self.loss = None
    def fit(self):
        self.loss = model(x).mean()
        self.report()
    def report(self):
        print(self.loss.item())
tr = Tr()
""",
        """\
tr.fit()
""",
    ),
    (
        """\
class Tr:
    def __init__(self):
        self.metrics = {}
    def fit(self):
        self.metrics['loss'] = model(x).mean()
        for k, w in self.metrics.items():
            print(k, w.item())
tr = Tr()
""",
        """\
tr.fit()
""",
    ),
    (
        """\
class Cb:
    def on_step(self, logs):
        print(float(logs['loss']))
class Tr:
    def __init__(self, cbs):
        self.cbs = cbs
    def fit(self):
        logs = {'loss': model(x).mean()}
        for cb in self.cbs:
            cb.on_step(logs)
tr = Tr([Cb()])
""",
        """\
tr.fit()
""",
    ),
    (
        """\
class Cb:
    def on_step(self, loss=None, **k):
        print(float(loss))
class Tr:
    def __init__(self, cbs):
        self.cbs = cbs
    def call(self, name, **kw):
        for cb in self.cbs:
            getattr(cb, name)(**kw)
    def fit(self):
        self.call('on_step', loss=model(x).mean())
tr = Tr([Cb()])
""",
        """\
tr.fit()
""",
    ),
    (
        """\
class AverageMeter:
    def __init__(self):
        self.sum = 0
        self.n = 0
    def update(self, val, n=1):
        self.sum += val * n
        self.n += n
        self.avg = self.sum / self.n
    def __str__(self):
        return f'{self.avg:.3f}'
am = AverageMeter()
""",
        """\
am.update(model(x).mean().detach())
print(str(am))
""",
    ),
    (
        """\
class AverageMeter:
    def __init__(self):
        self.sum = 0
    def update(self, val, n=1):
        if isinstance(val, torch.Tensor):
            val = val.item()
        self.sum += val * n
am = AverageMeter()
""",
        """\
am.update(model(x).mean())
""",
    ),
    (
        """\
def to_item(t):
    return t.item() if torch.is_tensor(t) else t
""",
        """\
to_item(model(x).mean())
""",
    ),
    (
        """\
def to_np(t):
    return t.detach().cpu().numpy()
""",
        """\
to_np(model(x))
""",
    ),
    (
        """\
def move(o):
    if isinstance(o, dict):
        return {k: move(w) for k, w in o.items()}
    if isinstance(o, (list, tuple)):
        return type(o)(move(w) for w in o)
    return o.to(dev)
b = {'a': torch.ones(3), 'b': [torch.ones(2)]}
""",
        """\
move(b)
""",
    ),
    (
        """\
def batches():
    for i in range(2):
        yield torch.ones(4, 4), i
""",
        """\
for b, i in batches():
    b.to(dev)
""",
    ),
    (
        """\
class B:
    def __iter__(self):
        for i in range(2):
            yield torch.ones(4, 4)
bb = B()
""",
        """\
for b in bb: b.to(dev)
""",
    ),
    (
        """\
class B:
    def __init__(self):
        self.i = 0
    def __iter__(self):
        return self
    def __next__(self):
        return torch.ones(4, 4)
it = iter(B())
""",
        """\
b = next(it)
b.to(dev)
""",
    ),
    (
        """\
class C:
    def __enter__(self):
        return self
    def __exit__(self, *a):
        torch.cuda.synchronize()
""",
        """\
with C(): model(x)
""",
    ),
    (
        """\
import contextlib
@contextlib.contextmanager
def C():
    yield model(x)
    torch.cuda.synchronize()
""",
        """\
with C() as l: pass
""",
    ),
    (
        """\
import contextlib
@contextlib.contextmanager
def C():
    yield model(x).mean()
""",
        """\
with C() as l: l.item()
""",
    ),
    (
        """\
best = None
""",
        """\
cur = model(x).mean()
if best is None or cur < best: best = cur
""",
    ),
    (
        """\
best = torch.tensor(9., device=dev)
""",
        """\
best = min(best, model(x).mean())
""",
    ),
    (
        "",
        """\
round(model(x).mean().item(), 3)
""",
    ),
    (
        "",
        """\
y = 1 if model(x).mean() > 0 else 0
""",
    ),
    (
        "",
        """\
ok = model(x).mean() > 0 and True
""",
    ),
    (
        "",
        """\
v[0] in [1, 2]
""",
    ),
    (
        "",
        """\
math.sqrt(model(x).pow(2).mean())
""",
    ),
    (
        "",
        """\
math.exp(model(x).mean())
""",
    ),
    (
        "",
        """\
json.dumps({'l': model(x).mean().item()})
""",
    ),
    (
        """\
class W:
    def log(self, d, step=None): pass
wandb = W()
""",
        """\
wandb.log({'loss': model(x).mean().item()}, step=step)
""",
    ),
    (
        """\
sch = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
""",
        """\
sch.step(model(x).mean())
""",
    ),
    (
        """\
lb = torch.optim.LBFGS(model.parameters())
def cl():
    lb.zero_grad()
    l = model(x).mean()
    l.backward()
    return l
""",
        """\
lb.step(cl)
""",
    ),
    (
        """\
h = torch.tensor(2, device=dev)
""",
        """\
x[:h]
""",
    ),
    (
        """\
h = torch.tensor(2, device=dev)
""",
        """\
torch.arange(h, device=dev)
""",
    ),
    (
        """\
h = torch.tensor(2, device=dev)
""",
        """\
x.reshape(h, -1)
""",
    ),
    (
        """\
y = torch.zeros(4, dtype=torch.long, device=dev)
""",
        """\
F.one_hot(y)
""",
    ),
    (
        """\
y = torch.zeros(4, dtype=torch.long, device=dev)
""",
        """\
F.one_hot(y, 3)
""",
    ),
    (
        """\
y = torch.ones(4, dtype=torch.long, device=dev)
""",
        """\
torch.repeat_interleave(x, y, dim=0)
""",
    ),
    (
        """\
y = torch.zeros(4, dtype=torch.long, device=dev)
""",
        """\
torch.bincount(y, minlength=4)
""",
    ),
    (
        "",
        """\
torch.unique(v)
""",
    ),
    (
        "",
        """\
torch.histc(v, 4)
""",
    ),
    (
        "",
        """\
torch.equal(x, x + 1)
""",
    ),
    (
        "",
        """\
torch.allclose(x, x)
""",
    ),
    (
        "",
        """\
torch.linalg.inv(x + 4 * torch.eye(4, device=dev))
""",
    ),
    (
        "",
        """\
torch.linalg.eigh(x)
""",
    ),
    (
        "",
        """\
nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([4]), batch_first=True)
""",
    ),
    (
        """\
lens = torch.tensor([2, 4], device=dev)
""",
        """\
mx = lens.max()
mask = torch.arange(mx, device=dev)[None] < lens[:, None]
""",
    ),
    (
        """\
def mask_of(l, maxlen=None):
    if maxlen is None:
        maxlen = l.max()
    return torch.arange(maxlen, device=l.device)[None] < l[:, None]
lens = torch.tensor([2, 4], device=dev)
""",
        """\
mask_of(lens)
""",
    ),
    (
        "",
        """\
[float(t) for t in v.unbind()]
""",
    ),
    (
        "",
        """\
list(map(float, v))
""",
    ),
    (
        "",
        """\
functools.reduce(lambda a, b: a + b, [s, s]).item()
""",
    ),
    (
        "",
        """\
[t.item() for t in itertools.starmap(torch.add, [(s, s)])]
""",
    ),
    (
        "",
        """\
operator.itemgetter('l')({'l': model(x).mean()}).item()
""",
    ),
    (
        """\
import enum
class R(enum.Enum):
    A = 1
d = {R.A: s}
""",
        """\
d[R.A].item()
""",
    ),
    (
        """\
class S:
    __slots__ = ('t',)
    def __init__(self, t):
        self.t = t
""",
        """\
S(model(x).mean()).t.item()
""",
    ),
    (
        """\
class S: pass
o = S()
""",
        """\
setattr(o, 'loss', model(x).mean())
o.loss.item()
""",
    ),
    (
        """\
import types
o = types.SimpleNamespace()
""",
        """\
o.loss = model(x).mean()
o.loss.item()
""",
    ),
    (
        """\
import types
""",
        """\
o = types.SimpleNamespace(loss=model(x).mean())
o.loss.item()
""",
    ),
    (
        "",
        """\
d = dict(loss=model(x).mean(), k=1)
for k in d: print(d[k])
""",
    ),
    (
        "",
        """\
l = [model(x).mean()]
l.pop().item()
""",
    ),
    (
        "",
        """\
d = {'a': {'b': model(x).mean()}}
d['a']['b'].item()
""",
    ),
    (
        """\
d = {}
""",
        """\
d.setdefault('l', []).append(model(x).mean())
d['l'][-1].item()
""",
    ),
    (
        "",
        """\
d = {'l': model(x).mean()}
d.get('l', 0).item()
""",
    ),
    (
        "",
        """\
d = {'l': model(x).mean()}
d.pop('l').item()
""",
    ),
    (
        "",
        """\
sum({'a': s, 'b': model(x).mean()}.values()).item()
""",
    ),
    (
        """\
class Crit(nn.Module):
    def forward(self, o):
        return {'ce': o.mean(), 'l1': o.abs().mean()}
crit = Crit()
w = {'ce': 1.0, 'l1': 2.0}
""",
        """\
ld = crit(model(x))
loss = sum(ld[k] * w[k] for k in ld if k in w)
loss.item()
""",
    ),
    (
        """\
def reduce_dict(d):
    names, vals = [], []
    for k in sorted(d.keys()):
        names.append(k)
        vals.append(d[k])
    vals = torch.stack(vals, dim=0)
    return {k: w for k, w in zip(names, vals)}
""",
        """\
r = reduce_dict({'a': model(x).mean()})
sum(r.values()).item()
""",
    ),
    (
        """\
import asyncio
async def f():
    return model(x).mean().item()
""",
        """\
asyncio.run(f())
""",
    ),
    (
        """\
from concurrent.futures import ThreadPoolExecutor
ex = ThreadPoolExecutor(1)
def f():
    return model(x).mean().item()
""",
        """\
ex.submit(f).result()
""",
    ),
    (
        """\
class Net(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.l = nn.Linear(d, d)
        self.head = nn.Linear(d, d)
    def forward(self, t, target=None):
        h = self.l(t)
        out = self.head(h)
        if target is not None:
            return out, F.cross_entropy(out, target)
        return out
net = Net().to(dev)
""",
        """\
out, loss = net(x, y)
loss.item()
""",
    ),
    (
        """\
class Net(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.l = nn.Linear(d, d)
        self.head = nn.Linear(d, d)
    def forward(self, t, target=None):
        h = self.l(t)
        out = self.head(h)
        if target is not None:
            return out, F.cross_entropy(out, target)
        return out
net = Net().to(dev)
class Trainer:
    def __init__(self, model, opt, loader, device='cuda'):
        self.model, self.opt, self.loader, self.device = model, opt, loader, device
    def step(self, batch):
        xb, yb = batch
        xb = xb.to(self.device)
        yb = yb.to(self.device)
        out, loss = self.model(xb, yb)
        return loss
    def run(self):
        tot = 0
        for b in self.loader:
            loss = self.step(b)
            tot += loss.item()
        return tot / len(self.loader)
tr = Trainer(net, None, [(torch.ones(4,4), torch.zeros(4, dtype=torch.long))])
""",
        """\
tr.run()
""",
    ),
    (
        """\
class Net(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.l = nn.Linear(d, d)
        self.head = nn.Linear(d, d)
    def forward(self, t, target=None):
        h = self.l(t)
        out = self.head(h)
        if target is not None:
            return out, F.cross_entropy(out, target)
        return out
net = Net().to(dev)
class Cfg:
    device = 'cuda'
    lr = 1e-3
cfg = Cfg()
""",
        """\
torch.ones(4, 4).to(cfg.device)
""",
    ),
    (
        """\
cfg = {'train': {'device': 'cuda'}}
""",
        """\
torch.ones(4, 4).to(cfg['train']['device'])
""",
    ),
    (
        """\
import argparse
ap = argparse.ArgumentParser()
ap.add_argument('--device', default='cuda')
args = ap.parse_args([])
""",
        """\
torch.ones(4, 4).to(args.device)
""",
    ),
    (
        """\
import argparse
ap = argparse.ArgumentParser()
ap.add_argument('--no-cuda', action='store_true')
args = ap.parse_args([])
args.cuda = not args.no_cuda and torch.cuda.is_available()
""",
        """\
c = torch.ones(4, 4)
if args.cuda: c = c.cuda()
""",
    ),
    (
        """\
def get_device():
    return torch.device('cuda' if torch.cuda.is_available() else 'cpu')
""",
        """\
torch.ones(4).to(get_device())
""",
    ),
    (
        """\
class N(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)
    @property
    def device(self):
        return next(self.parameters()).device
    def predict(self, a):
        t = torch.as_tensor(a, device=self.device, dtype=torch.float32)
        return self.l(t).detach().cpu().numpy()
n = N().cuda()
""",
        """\
n.predict(np.ones((2, 4)))
""",
    ),
    (
        """\
class N(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('step', torch.zeros(1))
    def forward(self, a):
        self.step += 1
        if self.step > 100: return a
        return a * 2
n = N().cuda()
""",
        """\
n(x)
""",
    ),
    (
        """\
class N(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
    def forward(self, a):
        return a * self.scale.item()
n = N().cuda()
""",
        """\
n(x)
""",
    ),
    (
        """\
class N(nn.Module):
    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
    def forward(self, a):
        outs = []
        for l in self.ls:
            a = F.relu(l(a))
            outs.append(a)
        return outs
n = N().cuda()
""",
        """\
n(x)[-1].mean().item()
""",
    ),
    (
        """\
n = nn.ModuleDict({'a': nn.Linear(4, 4), 'b': nn.Linear(4, 4)}).cuda()
""",
        """\
{k: f(x).mean().item() for k, f in n.items()}
""",
    ),
    (
        """\
def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.ReLU())
n = nn.Sequential(block(4, 4), block(4, 4)).cuda()
""",
        """\
n(x).mean().item()
""",
    ),
    (
        """\
n = nn.LSTM(4, 4, batch_first=True).cuda()
""",
        """\
out, (h, c) = n(x[None])
h[-1].mean().item()
""",
    ),
    (
        """\
n = nn.LSTM(4, 4, batch_first=True).cuda()
hid = None
def repack(h):
    if isinstance(h, torch.Tensor): return h.detach()
    return tuple(repack(w) for w in h)
""",
        """\
out, hid = n(x[None], hid)
hid = repack(hid)
hid[0].mean().item()
""",
    ),
    (
        """\
n = nn.MultiheadAttention(4, 1, batch_first=True).cuda()
""",
        """\
out, w = n(x[None], x[None], x[None])
w.max().item()
""",
    ),
    (
        """\
e = nn.Embedding(10, 4).cuda()
""",
        """\
e(torch.tensor([1, 2], device=dev)).sum().item()
""",
    ),
    (
        """\
b = nn.BatchNorm1d(4).cuda()
""",
        """\
b(x)
""",
    ),
    (
        "",
        """\
F.dropout(x, 0.1)
""",
    ),
    (
        "",
        """\
loss = crit(model(x), y)
print('loss', loss)
""",
    ),
    (
        """\
crits = [nn.MSELoss(), nn.L1Loss()]
""",
        """\
losses = [c(model(x), x) for c in crits]
print([l.item() for l in losses])
""",
    ),
    (
        """\
D = nn.Linear(4, 1).cuda()
G = nn.Linear(4, 4).cuda()
""",
        """\
fake = G(x)
d_loss = F.softplus(D(fake.detach())).mean()
g_loss = F.softplus(-D(fake)).mean()
log.info('%.3f %.3f', d_loss.item(), g_loss.item())
""",
    ),
    (
        """\
class EMA:
    def __init__(self, m):
        self.shadow = {k: w.clone() for k, w in m.state_dict().items()}
    def update(self, m):
        for k, w in m.state_dict().items():
            self.shadow[k].mul_(0.9).add_(w, alpha=0.1)
e = EMA(model)
""",
        """\
e.update(model)
""",
    ),
    (
        """\
class EMA:
    def __init__(self, m):
        self.shadow = {k: w.cpu().clone() for k, w in m.state_dict().items()}
    def update(self, m):
        for k, w in m.state_dict().items():
            self.shadow[k].mul_(0.9).add_(w.cpu(), alpha=0.1)
e = EMA(model)
""",
        """\
e.update(model)
""",
    ),
    (
        """\
sc = torch.amp.GradScaler('cuda')
opt = torch.optim.SGD(model.parameters(), lr=.1)
""",
        """\
opt.zero_grad()
with torch.autocast('cuda'):
    l = model(x).mean()
sc.scale(l).backward()
sc.step(opt)
sc.update()
""",
    ),
    (
        """\
def accuracy(output, target, topk=(1,)):
    maxk = max(topk)
    _, pred = output.topk(maxk, 1, True, True)
    pred = pred.t()
    correct = pred.eq(target.view(1, -1).expand_as(pred))
    res = []
    for k in topk:
        res.append(correct[:k].reshape(-1).float().sum(0))
    return res
""",
        """\
a1, = accuracy(model(x), y)
a1.item()
""",
    ),
    (
        """\
cm = np.zeros((4, 4))
""",
        """\
pred = model(x).argmax(1)
for t, q in zip(y.view(-1), pred.view(-1)):
    cm[t.long(), q.long()] += 1
""",
    ),
    (
        """\
cm = torch.zeros(4, 4)
""",
        """\
pred = model(x).argmax(1)
for t, q in zip(y, pred):
    cm[t, q] += 1
""",
    ),
    (
        "",
        """\
[' '.join(map(str, r)) for r in model(x).argmax(1, keepdim=True).tolist()]
""",
    ),
    (
        """\
eos = 2
""",
        """\
seq = [1]
for t in range(3):
    nxt = model(x)[-1].argmax(-1)
    if nxt == eos: break
    seq.append(nxt.item())
""",
    ),
    (
        "",
        """\
ids = torch.zeros(1, 1, dtype=torch.long, device=dev)
fin = torch.zeros(1, dtype=torch.bool, device=dev)
for t in range(2):
    nxt = model(x)[:1].argmax(-1)
    fin |= nxt == 3
    ids = torch.cat([ids, nxt[:, None]], 1)
    if fin.all(): break
""",
    ),
    (
        "",
        """\
probs = F.softmax(model(x), -1)
nxt = torch.multinomial(probs, 1)
""",
    ),
    (
        "",
        """\
lg = model(x)
so, si = torch.sort(lg, descending=True)
rm = so.softmax(-1).cumsum(-1) > 0.9
lg[0, si[0, rm[0]]] = -1e9
""",
    ),
    (
        """\
class Env:
    def reset(self): return np.zeros(4)
    def step(self, a): return np.zeros(4), 0.0, False, {}
env = Env()
obs = env.reset()
""",
        """\
t = torch.from_numpy(obs).float().to(dev)
with torch.no_grad(): q = model(t[None])
a = q.argmax(1).item()
obs, r, done, _ = env.step(a)
""",
    ),
    (
        """\
class Buf:
    def __init__(self): self.d = collections.deque(maxlen=9)
    def push(self, *a): self.d.append(a)
    def sample(self, n):
        b = random.sample(self.d, n)
        s_, a_, r_ = zip(*b)
        return np.stack(s_), np.array(a_), np.array(r_, dtype=np.float32)
buf = Buf()
for _ in range(4): buf.push(np.zeros(4, dtype=np.float32), 1, 0.5)
""",
        """\
s_, a_, r_ = buf.sample(2)
s_ = torch.FloatTensor(s_).to(dev)
a_ = torch.LongTensor(a_).to(dev)
model(s_).gather(1, a_[:, None])
""",
    ),
    (
        """\
class Buf:
    def __init__(self, dev):
        self.dev = dev
        self.s = np.zeros((9, 4), dtype=np.float32)
    def sample(self, n):
        i = np.random.randint(0, 9, n)
        return torch.as_tensor(self.s[i], device=self.dev)
buf = Buf(dev)
""",
        """\
buf.sample(2)
""",
    ),
    (
        "",
        """\
d = torch.distributions.Categorical(logits=model(x))
a = d.sample()
a.cpu().numpy()
""",
    ),
    (
        "",
        """\
d = torch.distributions.Normal(model(x), torch.ones_like(x), validate_args=False)
d.rsample().sum().item()
""",
    ),
    (
        "",
        """\
rew = torch.ones(4)
adv = 0
for t in reversed(range(4)):
    adv = rew[t].to(dev) + 0.9 * adv
""",
    ),
    (
        """\
targets = [{'boxes': torch.ones(2, 4), 'labels': torch.ones(2)}]
""",
        """\
ts = [{k: w.to(dev) for k, w in t.items()} for t in targets]
""",
    ),
    (
        """\
targets = [{'boxes': torch.ones(2, 4, device=dev)}]
""",
        """\
sizes = [len(t['boxes']) for t in targets]
idx = torch.cat([torch.full((n,), i) for i, n in enumerate(sizes)])
x[idx]
""",
    ),
    (
        "",
        """\
C = torch.cdist(x, x).cpu()
C.argmin(1)
""",
    ),
    (
        "",
        """\
keep = v > 0.5
boxes = x[keep]
scores = v[keep]
""",
    ),
    (
        """\
class A:
    def __init__(self): self.base = torch.ones(3, 4)
    def grid(self, n, device):
        sh = torch.arange(n, device=device)
        return sh[:, None, None] + self.base.to(device)
an = A()
""",
        """\
an.grid(2, x.device)
""",
    ),
    (
        """\
class PE(nn.Module):
    def __init__(self):
        super().__init__()
        self.pe = torch.zeros(9, 4)
    def forward(self, t):
        return t + self.pe[:t.size(0)].to(t.device)
pe = PE().cuda()
""",
        """\
pe(x)
""",
    ),
    (
        """\
class PE(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('pe', torch.zeros(9, 4))
    def forward(self, t):
        return t + self.pe[:t.size(0)]
pe = PE().cuda()
""",
        """\
pe(x)
""",
    ),
    (
        "",
        """\
mask = torch.triu(torch.ones(4, 4), 1).bool().to(dev)
""",
    ),
    (
        "",
        """\
mask = torch.triu(torch.ones(4, 4, device=dev), 1).bool()
""",
    ),
    (
        """\
betas = torch.linspace(1e-4, 2e-2, 10)
ac = torch.cumprod(1 - betas, 0)
""",
        """\
t = torch.randint(0, 10, (4,), device=dev)
a = ac.to(dev)[t]
""",
    ),
    (
        """\
def extract(a, t, shape):
    out = a.gather(-1, t.cpu())
    return out.reshape(-1, 1).to(t.device)
ac = torch.ones(10)
""",
        """\
extract(ac, y, x.shape)
""",
    ),
    (
        """\
ac = np.ones(10)
def extract(arr, t):
    return torch.from_numpy(arr).to(device=t.device)[t].float()
""",
        """\
extract(ac, y)
""",
    ),
    (
        """\
ts = torch.arange(10, device=dev).flip(0)
""",
        """\
for t in ts[:2]:
    b = torch.full((4,), t, device=dev)
""",
    ),
    (
        """\
sig = torch.linspace(1, 0, 5, device=dev)
""",
        """\
for i in range(4):
    if sig[i + 1] > 0: pass
""",
    ),
    (
        """\
sig = torch.linspace(1, 0, 5, device=dev)
""",
        """\
dt = sig[1] - sig[0]
x = x + model(x) * dt
""",
    ),
    (
        """\
class Early:
    def __init__(self): self.best = None
    def __call__(self, val):
        if self.best is None or val < self.best:
            self.best = val
            return True
        return False
es = Early()
""",
        """\
es(model(x).mean().detach())
""",
    ),
    (
        """\
hist = {'loss': []}
""",
        """\
hist['loss'].append(model(x).mean().item())
""",
    ),
    (
        """\
hist = []
""",
        """\
hist.append(model(x).mean().detach())
if len(hist) > 0: print(torch.stack(hist).mean().item())
""",
    ),
    (
        """\
class Bar:
    def set_postfix(self, **k): str(k)
bar = Bar()
""",
        """\
bar.set_postfix(loss=model(x).mean().item())
""",
    ),
    (
        """\
class Bar:
    def set_postfix(self, d=None, **k):
        for a, b in (d or k).items(): f'{b:.3f}'
bar = Bar()
""",
        """\
bar.set_postfix({'loss': model(x).mean()})
""",
    ),
    (
        """\
class W:
    def add_scalar(self, tag, val, step): float(val)
w = W()
""",
        """\
w.add_scalar('loss', model(x).mean(), 1)
""",
    ),
    (
        """\
class Acc:
    def __init__(self): self.c, self.n = 0, 0
    def update(self, p_, t):
        self.c += (p_ == t).sum()
        self.n += t.numel()
    def compute(self): return (self.c / self.n).item()
acc = Acc()
""",
        """\
acc.update(model(x).argmax(1), y)
acc.compute()
""",
    ),
    (
        """\
def iou(a, b):
    inter = (a & b).sum()
    union = (a | b).sum()
    if union == 0: return 0.0
    return (inter / union).item()
""",
        """\
iou(model(x) > 0, x > 0)
""",
    ),
    (
        """\
def psnr(a, b):
    mse = F.mse_loss(a, b)
    return 20 * math.log10(1.0 / math.sqrt(mse))
""",
        """\
psnr(x, x + 1)
""",
    ),
    (
        """\
def to_img(t):
    t = t.clamp(0, 1).mul(255).byte()
    return t.permute(1, 0).cpu().numpy()
""",
        """\
to_img(model(x).detach())
""",
    ),
    (
        """\
def tensor2img(t):
    if not isinstance(t, list): t = [t]
    return [i.squeeze(0).float().cpu().numpy() for i in t]
""",
        """\
tensor2img(model(x).detach())
""",
    ),
    (
        "",
        """\
d = torch.cdist(x, x)
_, i = d.topk(2, largest=False)
y[i].mode(1)
""",
    ),
    (
        "",
        """\
out = torch.zeros(4, 4, device=dev)
out.scatter_add_(0, y[:, None].expand(4, 4), x)
""",
    ),
    (
        "",
        """\
deg = torch.zeros(int(y.max()) + 1, device=dev)
""",
    ),
    (
        """\
def maybe_num_nodes(i, n=None):
    return n if n is not None else int(i.max()) + 1
""",
        """\
maybe_num_nodes(y)
""",
    ),
    (
        """\
ei = torch.tensor([[0, 1], [1, 0]], device=dev)
""",
        """\
m_ = ei[0] != ei[1]
ei = ei[:, m_]
""",
    ),
    (
        "",
        """\
neg = torch.randint(0, 4, (4,))
x[neg]
""",
    ),
    (
        """\
tr = torch.tensor([True, False, True, True])
""",
        """\
model(x)[tr]
""",
    ),
    (
        """\
class Data: pass
data = Data()
data.x, data.y, data.train_mask = x, y, m
""",
        """\
out = model(data.x)
F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
""",
    ),
    (
        """\
clients = [nn.Linear(4, 4).cuda() for _ in range(2)]
""",
        """\
avg = {}
for k in clients[0].state_dict():
    avg[k] = torch.stack([c.state_dict()[k].cpu() for c in clients]).mean(0)
""",
    ),
    (
        """\
n = nn.Linear(4, 1).cuda()
""",
        """\
l = n(x).mean()
g = torch.autograd.grad(l, n.parameters(), create_graph=True)
fast = [w - 0.1 * g_ for w, g_ in zip(n.parameters(), g)]
l2 = F.linear(x, fast[0], fast[1]).mean()
l2.item()
""",
    ),
    (
        """\
D = nn.Linear(4, 1).cuda()
""",
        """\
e = torch.rand(4, 1).cuda()
z = (e * x + (1 - e) * x).requires_grad_()
g = torch.autograd.grad(D(z).sum(), z, create_graph=True)[0]
((g.norm(2, dim=1) - 1) ** 2).mean().item()
""",
    ),
    (
        "",
        """\
lp = torch.randn(5, 2, 4, device=dev).log_softmax(2)
F.ctc_loss(lp, torch.ones(2, 2, dtype=torch.long, device=dev), torch.tensor([5, 5]), torch.tensor([2, 2]))
""",
    ),
    (
        "",
        """\
w = torch.hann_window(4).to(dev)
torch.stft(torch.ones(16, device=dev), 4, window=w, return_complex=True).abs()
""",
    ),
    (
        "",
        """\
mel = np.ones((4, 4), dtype=np.float32)
torch.from_numpy(mel).to(dev)
""",
    ),
    (
        """\
lens = torch.tensor([3, 4], device=dev)
""",
        """\
[t[:l] for t, l in zip(x[:2], lens)]
""",
    ),
    (
        "",
        """\
x.masked_fill(m[:, None], 0.0)
""",
    ),
    (
        "",
        """\
torch.where(x > 0, x, torch.tensor(0.0, device=dev))
""",
    ),
    (
        """\
s2 = torch.tensor(2., device=dev)
""",
        """\
torch.full_like(x, s2)
""",
    ),
    (
        "",
        """\
x.clamp(min=s)
""",
    ),
    (
        "",
        """\
x.clamp(min=s.item())
""",
    ),
    (
        "",
        """\
for g in sgd.param_groups: g['lr'] = s
""",
    ),
    (
        "",
        """\
x ** s
""",
    ),
    (
        """\
n = torch.tensor(4, device=dev)
""",
        """\
k = int(n) // 2
""",
    ),
    (
        "",
        """\
str(model(x).mean())
""",
    ),
    (
        "",
        """\
repr({'l': s})
""",
    ),
    (
        "",
        """\
print({'l': s})
""",
    ),
    (
        "",
        """\
log.info('loss %s', s)
""",
    ),
    (
        "",
        """\
msg = f'{s}'
""",
    ),
    (
        "",
        """\
msg = f'{s.item():.4f}'
""",
    ),
    (
        "",
        """\
if s is None: pass
""",
    ),
    (
        "",
        """\
if len(x) > 2 and x.shape[0] == 4: pass
""",
    ),
    (
        "",
        """\
if x.numel() == 0: pass
""",
    ),
    (
        "",
        """\
if x.requires_grad: pass
""",
    ),
    (
        "",
        """\
if x.is_cuda and x.device.type == 'cuda': pass
""",
    ),
    (
        "",
        """\
n = x.size(0) * 2
""",
    ),
    (
        "",
        """\
b, d = x.shape
z = x.new_zeros(b, d)
""",
    ),
]
"""Set-up and statement of each program."""
