"""Programs on which the linter and the simulated device have to say the same, by what they are about.

None says whether it waits: the simulated device decides that. Each is the body of a loop; `SETUP` comes before it.
"""

SETUP = """\
x = torch.randn(8, 8, device=dev)
y = torch.randn(8, 8, device=dev)
v = torch.rand(16, device=dev)
s = torch.rand((), device=dev) + 0.5
s2 = s * 0.5
i = torch.tensor(3, device=dev)
flag = torch.tensor(True, device=dev)
one = torch.tensor([2], device=dev)
idx = torch.arange(4, device=dev)
m = x > 0
c = torch.randn(8, 8)
ci = torch.tensor(3)
items = list(range(10))
counts = torch.arange(1, 9, device=dev)
labels = torch.arange(8, device=dev)
probs = torch.full((8,), 0.125, device=dev)
array = np.ones(8)
"""

INDEXING = """
x[i]
x[i, 0]
x[0, i]
x[:, i]
x[i:]
x[:i]
x[1:i]
x[::i]
x[..., i]
x[..., :i]
x[i, :]
x[one]
x[idx]
x[idx, idx]
x[m]
x[m] = 0.0
x[~m]
x[None, i]
x[flag]
x[i] = 1.0
x[i] = s
x[0] = 1.0
x[0] = s
x[0, 0] = s
x[:i] = 0.0
x[idx] = s
x[idx] = 0.5
x[0] += 1
x[i] += 1
x[m] += 1
x[m] *= 2.0
x[idx] += 1.0
v[0] = 2
v[0] = 2.0
v[0] = s
v[1:3] = 0.0
v[-1] = 1
v[3] = float(3)
v[3] = v[2]
v[i] = 1.0
v[0] += s
v[...] = 0
v[:] = s
c[i]
c[i] = 1.0
c[0] = s
c[idx]
c[:i]
items[i]
items[:i]
items[i:]
items[one]
tuple(items)[i]
"abcdefgh"[i]
array[i]
{0: 1, 3: 2}.get(i)
{3: 1}.get(i.item())
[0] * i
i * [0]
(0,) * i
"-" * i
items[i] = 0
del items[:0]
del items[i:i]
range(i)
range(0, i)
list(range(i))
for _ in range(i): pass
for element in v: element
for row in x: row.sum()
for at, row in enumerate(x): row
a, b = x[:2]
first, *rest = v
x.shape[0]
x.size(0)
torch.index_select(x, 0, i)
torch.index_select(x, 0, idx)
torch.take(x, idx)
torch.gather(x, 0, labels[None])
x.select(0, i)
x.narrow(0, 0, i)
x.narrow(0, i, 1)
"""

PROTOCOLS = """
int(i)
int(one)
float(s)
float(one)
bool(flag)
complex(s)
round(s)
round(s, 2)
abs(s)
-s
~flag
divmod(i, 2)
divmod(7, i)
pow(s, 2)
pow(2, s)
s ** 2
2 ** i
7 // i
7 % i
i % 2
s + 1
1 - s
s < 1
1 < s
0 < s < 1
s == 1
not s
s and s2
s or s2
s is None
s if flag else s2
1 if s > 0 else 2
if s > 0: pass
if flag: pass
if i == 3: pass
if one: pass
if v.any(): pass
if x.numel() > 3: pass
if len(v) > 3: pass
while s < 0: pass
assert s > 0
assert x.shape == y.shape
any([s > 0])
all([s > 0, s2 > 0])
any(t > 0 for t in v[:2])
min(s, s2)
max(s, s2)
max(s, 0)
min(s, s2, key=float)
min(v)
max(v)
sum(v)
sum([s, s2])
sum((s, s2), s)
sorted(v)
sorted([s, s2])
sorted([s, s2], key=lambda t: t.item())
sorted([s, s2], key=float)
list(reversed(v))
[s, s2].index(s)
[s2, s].index(s)
[s, s2].count(s)
s in [s]
s in [s2]
s in (s2, s)
3 in items
i in items
i in v
0.5 in v
2 in range(i)
i in {1, 2, 3}
i in {3: 1}
hash(i)
{i: 1}
{i, one}
id(i)
len(v)
operator.index(i)
operator.add(s, 1)
operator.gt(s, 1)
operator.truth(s)
operator.not_(s)
operator.itemgetter(0)(v)
list(v)
tuple(v)
list(map(float, v))
list(map(abs, v))
list(filter(None, v))
list(zip(v, v))
dict(zip(items, v))
set(v)
enumerate(v)
next(iter(v))
iter(v)
isinstance(s, float)
callable(s)
bin(i)
hex(i)
oct(i)
chr(i)
bytes(i)
bytearray(i)
slice(i)
items[slice(i)]
list(itertools.islice(items, i))
list(itertools.repeat(0, i))
list(itertools.accumulate(v))
list(itertools.chain(v, v))
list(itertools.product(v[:2], repeat=2))
list(itertools.takewhile(lambda t: t > 0, v))
functools.reduce(operator.add, [s, s2])
functools.reduce(lambda a, b: a + b, v)
functools.reduce(max, [s, s2])
heapq.nlargest(2, [s, s2])
heapq.heappush([s2], s)
collections.deque(items, i)
collections.Counter(v)
math.sqrt(s)
math.exp(s)
math.isnan(s)
math.isclose(s, 1.0)
math.floor(s)
math.ceil(s)
math.trunc(s)
math.fsum(v)
math.prod(v)
math.prod([s, s2])
math.hypot(s, s2)
math.log(s)
math.gcd(i, 2)
math.comb(5, i)
math.factorial(i)
math.dist(v, v)
math.pi * s
statistics.mean([s, s2])
statistics.mean(v)
statistics.fmean([s, s2])
statistics.median([s, s2])
statistics.stdev([s, s2])
random.random() < s
random.random() * s
random.randint(0, i)
random.randrange(i)
random.uniform(0, s)
random.gauss(s, 1)
random.choice(v)
random.choice(items)
random.sample(items, i)
random.choices(items, k=i)
random.choices(items, weights=probs.tolist() + [0, 0])
random.seed(i)
random.shuffle(items)
time.sleep(s * 0)
time.sleep(0)
time.sleep(i * 0)
bool([s])
operator.truth([s])
list(itertools.islice(v, 3))
itertools.repeat(s)
random.choices([s, s2])
random.sample([s, s2], 1)
statistics.fmean([1.0, 2.0])
"abc".index("b", i)
[1, 2, 3].index(2)
[1, 2, 3].index(i)
[1, 2, 3].count(i)
copy.copy(s)
copy.deepcopy(s)
json.dumps(s.item())
"""

TEXT = """
str(s)
repr(v)
f"{s}"
f"{s:.3f}"
f"{s!r}"
f"{s:>10}"
f"{i:d}"
f"{i:03d}"
f"{x.shape}"
f"{x.size(0):d}"
f"{s.item():.2f}"
f"{1:{i}}"
"%d" % i
"%s" % s
"%.2f" % s
"%d of %d" % (i, 10)
"%(loss).3f" % {"loss": s}
"{}".format(s)
"{:.2f}".format(s)
"{loss:.2f}".format(loss=s)
"{0[0]}".format(v)
format(s, ".2f")
format(s)
",".join([str(s), str(s2)])
",".join(map(str, v))
",".join(str(t) for t in v[:2])
",".join(f"{t:.1f}" for t in [s, s2])
print(s)
print("loss", s)
print(x.shape)
print(f"{s:.2f}")
print(*v[:2])
print(len(v), x.dtype)
print(s.device)
log.info("loss %s", s)
log.info("loss %.2f" % s)
log.info(f"loss {s}")
log.info("shape %s", x.shape)
log.debug("shape %s", x.shape)
"a" + str(s)
str(x.shape)
repr(x.dtype)
s.__repr__()
"".ljust(i)
"abc".center(i)
"abc".zfill(i)
"a-b-c".split("-", i)
"abc".startswith("b", i)
"abc".find("c", i)
(5).to_bytes(i, "little")
json.dumps({"a": float(s)})
"""

FACTORIES = """
torch.tensor([s])
torch.tensor([s, s2])
torch.tensor([[s], [s2]])
torch.tensor((s, s2))
torch.tensor([s] * 3)
torch.tensor([t for t in v[:2]])
torch.tensor([s, s2], device=dev)
torch.tensor(s)
torch.tensor(s, device=dev)
torch.tensor([1.0])
torch.tensor([1.0], device=dev)
torch.tensor(1.0, device=dev)
torch.tensor(i.item())
torch.tensor(v)
torch.tensor(list(v))
torch.tensor([v[0], v[1]])
torch.as_tensor(s)
torch.as_tensor([s, s2])
torch.as_tensor(v)
torch.as_tensor(array, device=dev)
torch.asarray(s)
torch.asarray([s, s2])
torch.FloatTensor([s, s2])
torch.LongTensor([i])
torch.cuda.FloatTensor([1.0, 2.0])
torch.scalar_tensor(s)
torch.scalar_tensor(1.0, device=dev)
torch.full((4,), s)
torch.full((4,), s, device=dev)
torch.full((4,), 2.0, device=dev)
torch.full((i,), 0.0)
torch.full([i, 2], 0.0, device=dev)
torch.full_like(x, s)
torch.full_like(x, 2.0)
torch.zeros(i)
torch.zeros(i, device=dev)
torch.zeros((i, 2), device=dev)
torch.zeros([i])
torch.zeros(size=(i,))
torch.zeros(*x.shape, device=dev)
torch.zeros(x.shape, device=dev)
torch.zeros_like(x)
torch.ones(i, i)
torch.empty(i, device=dev)
torch.eye(i, device=dev)
torch.eye(3, device=dev)
torch.rand(i, device=dev)
torch.randn(2, i)
torch.randint(0, i, (4,), device=dev)
torch.randint(0, 5, (4,), device=dev)
torch.randint(i, (4,))
torch.randperm(i)
torch.randperm(8, device=dev)
torch.arange(i)
torch.arange(0, i, device=dev)
torch.arange(0, 1, s, device=dev)
torch.arange(8, device=dev)
torch.linspace(0, s, 5)
torch.linspace(0, 1, i, device=dev)
torch.linspace(s, s2, 5, device=dev)
torch.linspace(0, 1, 5, device=dev)
torch.logspace(0, s, 5, device=dev)
torch.normal(s, 1.0)
torch.normal(0.0, s)
torch.normal(v, 1.0)
torch.normal(v, v)
torch.normal(0.0, s.item(), (4,))
torch.bernoulli(probs)
torch.bernoulli(x, s2)
torch.bernoulli(x, 0.5)
torch.tril_indices(i, 3)
torch.tril(x, i)
torch.stack([s, s2])
torch.cat([v, v])
torch.hstack([v, v])
torch.complex(s, s2)
torch.polar(s, s2)
torch.cartesian_prod(v, v)
torch.combinations(v)
x.new_tensor([1.0, 2.0])
x.new_tensor([s, s2])
x.new_tensor(s)
x.new_full((2,), s)
x.new_full((2,), 1.0)
x.new_full((i,), 1.0)
x.new_zeros(i)
x.new_zeros(2, i)
x.new_zeros(2, 2)
x.new_empty((i, 2))
x.new_ones(3)
np.array(1.0)
np.array([s.item()])
np.array([s.cpu(), s2.cpu()])
np.asarray(v.cpu())
np.zeros(i.cpu())
np.mean([s.item(), s2.item()])
np.sqrt(s.cpu())
array[i.cpu()]
array * s.item()
nn.Linear(4, 4, device=dev)
nn.Linear(i, 4)
nn.Dropout(s2)
nn.Parameter(s)
"""

OPERATORS = """
torch.clamp(x, min=s)
torch.clamp(x, s, s2)
torch.clamp(x, 0, s)
torch.clamp(x, min=0.0, max=1.0)
torch.clamp(x, min=0, max=s)
x.clamp(min=s)
x.clamp_(max=s)
x.clamp(s, 1.0)
x.clamp_min(s)
x.clamp_max(0.5)
x.clip(0, s)
torch.where(m)
torch.where(m, x, y)
torch.where(m, x, 0.0)
torch.where(m, s, s2)
torch.where(s > 0, x, y)
torch.where(flag, 1.0, 0.0)
torch.nonzero(m)
torch.nonzero(m, as_tuple=True)
torch.nonzero(v)
torch.argwhere(m)
torch.count_nonzero(m)
torch.masked_select(x, m)
x.masked_select(m)
x.masked_fill(m, 0.0)
x.masked_fill(m, s)
x.masked_fill_(m, float("-inf"))
x.masked_scatter(m, y)
torch.unique(labels)
torch.unique(labels, return_counts=True)
torch.unique(labels, sorted=False)
torch.unique_consecutive(labels)
torch.bincount(labels)
torch.bincount(labels, minlength=10)
torch.histc(v, 10)
torch.histc(v, bins=10, min=0, max=1)
torch.histc(v, bins=10, min=0.0, max=s)
torch.histc(v, i)
torch.multinomial(probs, 1)
torch.multinomial(probs, 4)
torch.multinomial(probs, 4, replacement=True)
torch.multinomial(probs, i)
probs.multinomial(2, True)
F.one_hot(labels)
F.one_hot(labels, 8)
F.one_hot(labels, num_classes=8)
F.one_hot(labels, i + 5)
F.one_hot(labels, int(8))
torch.repeat_interleave(x, 2)
torch.repeat_interleave(x, 2, dim=0)
torch.repeat_interleave(x, counts, dim=0)
torch.repeat_interleave(x, counts, dim=0, output_size=36)
torch.repeat_interleave(x, i, dim=0)
torch.repeat_interleave(counts)
x.repeat_interleave(counts, 0)
x.repeat_interleave(2, 0)
x.repeat(i, 1)
x.repeat(2, 1)
x.expand(8, 8)
v.expand(i, 16)
x.view(-1, 8)
v.view(i + 1, -1)
v.reshape(i + 1, 4)
x.flatten()
x.unsqueeze(i - 3)
x.sum(i - 3)
x.sum(dim=0)
x.mean((0, 1))
x.transpose(0, i - 2)
x.permute(1, 0)
x.roll(i, 0)
x.roll(1, 0)
x.split(i)
x.split(2)
x.split([2, 6])
x.chunk(2)
x.chunk(i)
x.unbind()
x.tensor_split(2)
torch.tensor_split(x, (2, 5))
x.topk(i)
x.topk(2)
x.kthvalue(i)
x.cumsum(0)
x.cumsum(i - 3)
x.sort()
x.argsort(dim=i - 3)
torch.searchsorted(v, s)
torch.searchsorted(v, 0.5)
torch.bucketize(v, v)
torch.bucketize(s, v)
torch.bucketize(0.5, v)
torch.isin(labels, idx)
torch.isin(labels, 3)
torch.isin(labels, i)
torch.quantile(v, 0.5)
torch.quantile(v, s2)
torch.lerp(x, y, s)
torch.lerp(x, y, 0.5)
torch.add(x, y, alpha=s)
torch.add(x, s)
torch.sub(x, s, alpha=2)
torch.addcmul(x, x, y, value=s)
torch.addcdiv(x, x, y, value=0.5)
torch.addmm(x, x, y, beta=s)
torch.pow(x, s)
torch.pow(s, x)
torch.fmod(x, s)
torch.remainder(x, s)
torch.mul(x, s)
torch.true_divide(x, s)
torch.floor_divide(x, s)
torch.heaviside(x, s)
torch.dist(x, y)
torch.norm(x)
torch.norm(x, s)
torch.norm(x, p=2)
torch.linalg.norm(x)
torch.linalg.norm(x, s)
torch.linalg.vector_norm(x, 2)
torch.linalg.inv(x)
torch.linalg.solve(x, y)
torch.linalg.cholesky(x @ x.T + 100 * torch.eye(8, device=dev))
torch.linalg.svd(x)
torch.linalg.eigh(x)
torch.linalg.eig(x)
torch.linalg.det(x)
torch.linalg.qr(x)
torch.linalg.lstsq(x, y)
torch.linalg.matrix_power(x, 3)
torch.linalg.matrix_rank(x)
torch.linalg.pinv(x)
torch.equal(x, y)
torch.allclose(x, y)
torch.isclose(x, y)
torch.is_nonzero(s)
torch.is_tensor(s)
torch.numel(x)
torch.index_fill(x, 0, idx, s)
x.index_fill_(0, idx, 1.0)
x.index_add(0, idx, x[:4])
x.index_add(0, idx, x[:4], alpha=s)
x.index_copy(0, idx, x[:4])
x.index_put((idx,), s)
x.index_put((m,), s)
x.scatter(0, labels[None], 1.0)
x.scatter(0, labels[None], y)
x.scatter_add(0, labels[None], y)
x.scatter_(0, labels[None], value=0.5)
x.fill_(s)
x.fill_(1.0)
x.fill_diagonal_(s)
x.fill_diagonal_(1.0)
x.uniform_(0, s)
x.uniform_(0, 1)
x.normal_(0, s)
x.normal_(std=s)
x.bernoulli_(s2)
x.bernoulli_(0.5)
x.exponential_(s)
x.random_(0, i)
x.copy_(y)
x.copy_(c)
x.mul_(s)
x.add_(y, alpha=s)
x.add_(y, alpha=0.1)
x.addcmul_(x, y, value=s)
x.lerp_(y, s)
x.zero_()
x.tolist()
x.cpu()
x.numpy(force=True)
x.to("cpu")
x.to(torch.float64)
x.double()
c.to(dev)
c.cuda()
c.to(dev, non_blocking=True)
c.pin_memory().to(dev, non_blocking=True)
x.to("cpu", non_blocking=True)
s.item()
s.tolist()
i.item() + 1
x.data_ptr()
x.is_contiguous()
x.stride()
x.element_size()
x.dim()
x.nelement()
x.type_as(y)
x.detach().clone()
F.dropout(x, 0.5)
F.dropout(x, s2)
F.dropout(x, p=s2, training=True)
F.dropout(x, 0.5, training=flag)
F.relu(x)
F.leaky_relu(x, s)
F.elu(x, alpha=s)
F.softmax(x, dim=-1)
F.softmax(x / s, dim=-1)
F.softmax(x, i - 3)
F.gumbel_softmax(x, tau=s)
F.gumbel_softmax(x, tau=0.5, hard=True)
F.pad(x, (0, i))
F.pad(x, (1, 1))
F.pad(x, (1, 1), value=s)
F.interpolate(x[None, None], scale_factor=2)
F.interpolate(x[None, None], size=(4, 4))
F.interpolate(x[None, None], size=(i, i))
F.cross_entropy(x, labels)
F.cross_entropy(x, labels, label_smoothing=0.1)
F.cross_entropy(x, labels, label_smoothing=s2)
F.cross_entropy(x, labels, ignore_index=i)
F.mse_loss(x, y)
F.smooth_l1_loss(x, y, beta=s)
F.huber_loss(x, y, delta=s)
F.triplet_margin_loss(x, y, y, margin=s)
F.nll_loss(x, labels)
F.normalize(x, dim=-1)
F.cosine_similarity(x, y)
F.layer_norm(x, (8,))
F.embedding(labels, x)
F.embedding(labels, x, padding_idx=0)
F.avg_pool1d(x[None], 2)
F.max_pool1d(x[None], i)
F.unfold(x[None, None], 2)
F.scaled_dot_product_attention(x[None], x[None], x[None])
F.ctc_loss(x[:, None].log_softmax(-1), labels[None, :3] + 1, one * 4, one + 1)
F.grid_sample(x[None, None], torch.zeros(1, 2, 2, 2, device=dev))
F.gaussian_nll_loss(x, y, y.abs() + 1)
F.binary_cross_entropy(probs, probs)
F.binary_cross_entropy_with_logits(x, y, pos_weight=s)
torch.einsum("ij,jk->ik", x, y)
torch.autograd.grad((model(x[:, :4]) * s).sum(), model.weight)
model(x[:, :4]).sum().backward()
torch.cuda.manual_seed(0)
torch.manual_seed(i)
torch.manual_seed(0)
torch.broadcast_to(s, (3, 3))
torch.block_diag(x, y)
torch.trapz(v, dx=s)
torch.trapezoid(v, dx=0.5)
torch.diff(v)
torch.cov(x)
torch.corrcoef(x)
torch.gradient(v)
torch.gradient(v, spacing=s)
torch.meshgrid(v, v, indexing="ij")
torch.tensordot(x, y, dims=1)
torch.tensordot(x, y, i - 2)
torch.kron(x, y)
torch.renorm(x, 2, 0, s)
torch.result_type(x, s)
torch.can_cast(x.dtype, y.dtype)
"""

LIBRARY = """
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
nn.utils.clip_grad_norm_(model.parameters(), s)
nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)
nn.utils.clip_grad_value_(model.parameters(), 0.5)
nn.utils.clip_grad_value_(model.parameters(), s)
nn.utils.parameters_to_vector(model.parameters())
nn.utils.get_total_norm([x, y])
float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
nn.utils.rnn.pad_sequence([v, v[:3]], batch_first=True)
nn.utils.rnn.pad_sequence([v, v[:3]], padding_value=s)
nn.utils.rnn.pack_padded_sequence(x, torch.full((8,), 8), batch_first=True)
nn.utils.rnn.pack_padded_sequence(x, [8] * 8, batch_first=True)
nn.utils.rnn.pack_padded_sequence(x, torch.full((8,), 8), batch_first=True, enforce_sorted=False)
nn.utils.rnn.pack_padded_sequence(x, torch.full((8,), 8, device=dev).cpu(), batch_first=True)
nn.utils.rnn.pack_sequence([v, v[:3]])
nn.utils.rnn.pad_packed_sequence(nn.utils.rnn.pack_sequence([v[:, None], v[:3, None]]))
nn.utils.rnn.unpad_sequence(x[:, None], torch.tensor([8]))
nn.init.normal_(model.weight)
nn.init.uniform_(model.weight, 0, s)
nn.init.normal_(model.weight, std=s)
nn.init.constant_(model.bias, s)
nn.init.constant_(model.bias, 0.5)
nn.init.xavier_uniform_(model.weight)
nn.init.xavier_uniform_(model.weight, gain=s)
nn.init.kaiming_normal_(model.weight)
nn.init.trunc_normal_(model.weight, std=0.02)
nn.init.orthogonal_(model.weight)
nn.init.eye_(model.weight)
sgd.step()
sgd.zero_grad()
torch.optim.SGD(model.parameters(), lr=s)
torch.optim.SGD(model.parameters(), lr=0.1)
torch.optim.Adam(model.parameters(), lr=s)
torch.optim.Adam(model.parameters(), lr=1e-3)
sgd.param_groups[0]["lr"] = 0.1
torch.distributions.Normal(0.0, 1.0)
torch.distributions.Normal(s, s2)
torch.distributions.Normal(s, s2, validate_args=False)
torch.distributions.Normal(s, s2, validate_args=False).log_prob(v)
torch.distributions.Normal(s, s2, validate_args=False).rsample()
torch.distributions.Normal(s, s2, validate_args=False).sample()
torch.distributions.Normal(s, s2, validate_args=False).entropy()
torch.distributions.Categorical(probs)
torch.distributions.Categorical(logits=x)
torch.distributions.Categorical(logits=x, validate_args=False)
torch.distributions.Categorical(logits=x, validate_args=False).sample()
torch.distributions.Categorical(logits=x, validate_args=False).log_prob(labels)
torch.distributions.Categorical(logits=x, validate_args=False).entropy()
torch.distributions.Bernoulli(probs)
torch.distributions.Bernoulli(probs, validate_args=False).sample()
torch.distributions.Uniform(s2, s, validate_args=False).sample()
torch.distributions.Uniform(s2, s)
torch.distributions.Beta(s, s2, validate_args=False).sample()
torch.distributions.Gamma(s, s2, validate_args=False).rsample()
torch.distributions.Dirichlet(probs)
torch.distributions.Exponential(s)
torch.distributions.Exponential(s, validate_args=False).rsample()
torch.distributions.Laplace(s, s2, validate_args=False).rsample()
torch.distributions.Poisson(s, validate_args=False).sample()
torch.distributions.Multinomial(4, probs, validate_args=False).sample()
torch.distributions.Independent(torch.distributions.Normal(v, v, validate_args=False), 1, validate_args=False)
d = torch.distributions.Normal(s, s2, validate_args=False); torch.distributions.kl_divergence(d, d)
torch.distributions.MultivariateNormal(probs, torch.eye(8, device=dev), validate_args=False)
torch.distributions.MultivariateNormal(probs, scale_tril=torch.eye(8, device=dev), validate_args=False)
torch.distributions.MultivariateNormal(probs, precision_matrix=torch.eye(8, device=dev), validate_args=False)
torch.distributions.LowRankMultivariateNormal(probs, x[:, :2], probs, validate_args=False)
torch.distributions.Multinomial(4, probs, validate_args=False)
torch.distributions.Binomial(4, probs, validate_args=False)
torch.distributions.Geometric(probs, validate_args=False)
torch.distributions.VonMises(s, s2, validate_args=False)
torch.distributions.StudentT(s, validate_args=False)
torch.distributions.LogNormal(s, s2, validate_args=False)
torch.distributions.OneHotCategorical(probs, validate_args=False)
torch.distributions.OneHotCategorical(probs, validate_args=False).sample()
torch.distributions.RelaxedBernoulli(s, probs, validate_args=False)
torch.distributions.Gumbel(s, s2, validate_args=False)
torch.distributions.Cauchy(s, s2, validate_args=False).rsample()
torch.distributions.HalfNormal(s, validate_args=False).sample()
torch.distributions.Weibull(s, s2, validate_args=False)
torch.distributions.Pareto(s, s2, validate_args=False)
torch.distributions.NegativeBinomial(4, probs, validate_args=False)
torch.distributions.ContinuousBernoulli(probs, validate_args=False)
torch.distributions.Normal(probs, 1.0, validate_args=False)
torch.distributions.Normal(0.0, probs, validate_args=False)
torch.distributions.Normal(0.0, 1.0, validate_args=False)
torch.distributions.HalfNormal(probs, validate_args=False)
torch.distributions.Chi2(probs, validate_args=False)
torch.distributions.InverseGamma(probs, probs, validate_args=False)
torch.nn.functional.log_softmax(x, -1)
torch.utils.data.TensorDataset(x)
torch.nn.Embedding.from_pretrained(x)
torch.nan_to_num(x, nan=s)
torch.nan_to_num(x, nan=0.0)
torch.special.xlogy(x, s)
torch.special.polygamma(1, v)
torch.special.multigammaln(v + 3, 2)
torch.fft.fft(v)
torch.fft.fft(v, i)
torch.fft.fftfreq(8, device=dev)
torch.fft.fftfreq(8, d=s)
torch.stft(v, 4, return_complex=True, window=torch.ones(4, device=dev))
torch.compiler.is_compiling()
torch.sparse_coo_tensor(idx[None], v[:4], (8,))
torch.sparse_coo_tensor(idx[None], v[:4])
x.to_sparse()
x.requires_grad_(False)
x.register_hook
torch.cuda.synchronize()
torch.cuda.current_stream().synchronize()
torch.cuda.Event().record()
torch.cuda.empty_cache
torch.cuda.memory_allocated()
torch.get_rng_state()
torch.cuda.get_rng_state()
torch.save(x, "/dev/null")
model.state_dict()
{name: t.cpu() for name, t in model.state_dict().items()}
copy.deepcopy(model)
sum(p.numel() for p in model.parameters())
sum(p.norm() for p in model.parameters())
max(p.abs().max() for p in model.parameters())
all(torch.isfinite(p).all() for p in model.parameters())
[p.item() for p in v[:2]]
{"loss": s, "other": s2}
losses = []; losses.append(s.detach())
losses = []; losses.append(float(s))
total = 0; total += s
total = 0.0; total += s.item()
best = float("inf"); best = min(best, s)
best = float("inf"); best = s if s < best else best
best = torch.inf; best = torch.minimum(s, s2)
"""

GROUPS = {
    "indexing": INDEXING,
    "protocols": PROTOCOLS,
    "text": TEXT,
    "factories": FACTORIES,
    "operators": OPERATORS,
    "library": LIBRARY,
}
OBJECTS = {
    "an SGD with a rate on the device": ("opt = torch.optim.SGD(model.parameters(), lr=s)", "opt.step()"),
    "an Adam with a rate on the device": ("opt = torch.optim.Adam(model.parameters(), lr=s)", "opt.step()"),
    "a capturable Adam with a rate on the device": (
        "opt = torch.optim.Adam(model.parameters(), lr=s, capturable=True)",
        "opt.step()",
    ),
    "an SGD with a rate on the host": ("opt = torch.optim.SGD(model.parameters(), lr=0.1)", "opt.step()"),
    "a scheduler of numbers": ("sched = torch.optim.lr_scheduler.StepLR(sgd, 10)", "sched.step()"),
    "a cosine scheduler": ("sched = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 10)", "sched.step()"),
    "a plateau of a tensor": ("plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)", "plateau.step(s)"),
    "a plateau of a number": ("plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)", "plateau.step(0.5)"),
    "the last rate": ("sched = torch.optim.lr_scheduler.StepLR(sgd, 10)", "sched.get_last_lr()"),
    "a rate on the device that is set": (
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)",
        "opt.param_groups[0]['lr'] = s",
    ),
    "a rate on the device that is printed": (
        "opt = torch.optim.SGD(model.parameters(), lr=s)",
        "print(opt.param_groups[0]['lr'])",
    ),
    "SGD with a momentum": ("opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", "opt.step()"),
    "AdamW fused": ("opt = torch.optim.AdamW(model.parameters(), fused=True)", "opt.step()"),
    "an LSTM of a packed sequence": (
        "net = nn.LSTM(8, 4, batch_first=True).to(dev)",
        "net(nn.utils.rnn.pack_padded_sequence(x[None], [8], batch_first=True))",
    ),
    "a batch norm": ("net = nn.BatchNorm1d(8).to(dev)", "net(x)"),
    "a dropout": ("net = nn.Dropout(0.5)", "net(x)"),
    "a loss": ("loss = nn.CrossEntropyLoss()", "loss(x, labels)"),
    "an embedding": ("net = nn.Embedding(8, 4).to(dev)", "net(labels)"),
    "an embedding of a list": ("net = nn.Embedding(8, 4).to(dev)", "net(torch.tensor([1, 2], device=dev))"),
    "an averaged model": ("net = torch.optim.swa_utils.AveragedModel(model)", "net.update_parameters(model)"),
    "a distribution made before": ("d = torch.distributions.Categorical(logits=x, validate_args=False)", "d.sample()"),
    "a distribution that validates": ("d = torch.distributions.Categorical(logits=x)", "d.log_prob(labels)"),
    "a normal that validates": ("d = torch.distributions.Normal(s, s2)", "d.log_prob(v)"),
    "a module moved": ("net = nn.Linear(4, 4)", "net.to(dev)"),
}
"""Objects that are made before the loop, and what the loop does with them."""
DIFFERENT = {
    "[s, s2].index(s)": ("false", "Python compares an object with itself by identity"),
    "s in [s]": ("false", "Python compares an object with itself by identity"),
    "torch.isin(labels, idx)": ("false", "it waits where there are many elements to test for"),
    "del items[i:i]": ("missed", "deleted slices are not judged"),
    "items[slice(i)]": ("missed", "an object of `slice` is not followed"),
    "list(filter(None, v))": ("missed", "the elements of a filter are not judged"),
    "list(itertools.takewhile(lambda t: t > 0, v))": ("missed", "what a lambda returns to a library is not judged"),
    "functools.reduce(max, [s, s2])": ("missed", "what a function passed to a library does is not judged"),
    "s.__repr__()": ("missed", "called by its name"),
    '(5).to_bytes(i, "little")': ("missed", "methods of numbers are not judged"),
    "nn.Linear(i, 4)": ("missed", "the numbers of modules are in no schema"),
    "nn.Dropout(s2)": ("missed", "the numbers of modules are in no schema"),
    "nn.init.trunc_normal_(model.weight, std=0.02)": ("missed", "it waits from torch 2.13 on only"),
    "print(opt.param_groups[0]['lr'])": ("missed", "the groups of an optimizer are not followed"),
}
"""Statements about which the linter is known to be wrong, each with what it says and why."""
DIFFERENT_OPERATORS = {
    "y = torch.histogramdd(t0, [n, 1, 1, 1])": ("missed", "the list could be one of tensors"),
    "y = torch.isin(t0, n)": ("false", "it waits where there are many elements to test for"),
    "y = torch.sparse_coo_tensor(n)": ("missed", "the call could be one with indices"),
}
"""The same for the programs that are made from torch's schemas."""
