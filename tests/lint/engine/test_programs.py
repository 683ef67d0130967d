"""Whole loops as people write them: the lines marked with `# waits` wait in every step, and no other line does."""

from __future__ import annotations

import pytest
from gpusync_lint.model.levels import Heat

HEAD = """
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset
"""
PROGRAMS = {
    "a module of Lightning": """
import pytorch_lightning as pl
class M(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)
        self.best = 0.
    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log('loss', loss)
        self.log('l2', loss.item())  # waits
        acc = (self.net(x).argmax(1) == y).float().mean()
        if acc > self.best:  # waits
            self.best = acc
        z = torch.randn(3, device=self.device)
        w = torch.tensor([1., 2.], device=self.device)  # waits
        q = torch.zeros(3).to(self.device)  # waits
        r = torch.ones(x.size(0), 1).type_as(x)  # waits
        return loss
    def validation_step(self, batch, batch_idx):
        x, y = batch
        p = self.net(x)
        return {'p': p.cpu().numpy()}  # waits
    def on_train_batch_end(self, outputs, batch, batch_idx):
        print(outputs['loss'].item())  # waits
""",
    "a trainer of transformers": """
from transformers import Trainer
class MyTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop('labels')
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels)
        self.log({'l': loss.item()})  # waits
        return (loss, outputs) if return_outputs else loss
    def training_step(self, model, inputs):
        loss = super().training_step(model, inputs)
        self.total += loss.item()  # waits
        return loss
""",
    "a loop over a model of transformers": """
from transformers import AutoModelForCausalLM, AutoTokenizer
device = torch.device('cuda')
model = AutoModelForCausalLM.from_pretrained('gpt2').to(device)
tok = AutoTokenizer.from_pretrained('gpt2')
opt = optim.AdamW(model.parameters())
for epoch in range(3):
    for batch in DataLoader([]):
        batch = {k: v.to(device) for k, v in batch.items()}  # waits
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        opt.step()
        print(f'{loss:.3f}')  # waits
        print(outputs.logits.argmax(-1).tolist())  # waits
""",
    "a metric of the project": """
class Metric:
    def __init__(self):
        self.total = 0.0
        self.n = 0
    def update(self, pred, target):
        self.total += (pred == target).sum().item()  # waits
        self.n += target.numel()
    def compute(self):
        return self.total / self.n
m = Metric()
model = nn.Linear(3, 3).cuda()
with torch.no_grad():
    for x, y in DataLoader([], pin_memory=True):
        m.update(model(x.cuda(non_blocking=True)).argmax(1), y.cuda(non_blocking=True))
""",
    "a policy that is asked for actions": """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 2)
    def forward(self, x):
        return F.softmax(self.l(x), dim=1)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
policy = Policy().to(device)
from torch.distributions import Categorical
def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0).to(device)  # waits
    probs = policy(state)
    m = Categorical(probs)  # waits
    action = m.sample()
    return action.item(), m.log_prob(action)  # waits
import gym
env = gym.make('x')
for ep in range(10):
    state = env.reset()
    for t in range(100):
        action, lp = select_action(state)
        state, reward, done, _ = env.step(action)
        if done:
            break
""",
    "a replay buffer that moves what it samples": """
class Buffer:
    def __init__(self, dim, n, device):
        self.obs = np.zeros((n, dim))
        self.device = device
        self.size = 0
    def sample(self, n):
        idx = np.random.randint(0, self.size, size=n)
        return (torch.FloatTensor(self.obs[idx]).to(self.device),  # waits
                torch.as_tensor(self.obs[idx], device=self.device))  # waits
class Agent:
    def __init__(self):
        self.device = torch.device('cuda')
        self.actor = nn.Linear(3, 3).to(self.device)
        self.opt = optim.Adam(self.actor.parameters())
    def select(self, s):
        s = torch.FloatTensor(s.reshape(1, -1)).to(self.device)  # waits
        return self.actor(s).cpu().data.numpy().flatten()  # waits
    def train(self, buf):
        s, a = buf.sample(10)
        loss = -self.actor(s).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()  # waits
agent, buf = Agent(), Buffer(3, 10, torch.device('cuda'))
for t in range(1000):
    a = agent.select(np.zeros(3))
    agent.train(buf)
""",
    "an early exit": """
model = nn.Linear(3, 3).cuda()
opt = optim.Adam(model.parameters())
def fit(loader):
    best = 1e9
    for x in loader:
        loss = model(x.cuda(non_blocking=True)).mean()
        loss.backward()
        opt.step()
        if torch.isnan(loss):  # waits
            print('nan', loss.item())
            return
""",
    "mixed precision": """
scaler = torch.cuda.amp.GradScaler()
model = nn.Linear(3, 3).cuda()
opt = optim.Adam(model.parameters())
for x, y in DataLoader([], pin_memory=True):
    with torch.cuda.amp.autocast():
        loss = F.mse_loss(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)  # waits
    scaler.update()
    print(n.item())  # waits
""",
    "a dictionary of losses": """
model = nn.Linear(3, 3).cuda()
def losses(o):
    return {'a': o.mean(), 'b': o.std()}
opt = optim.Adam(model.parameters())
for x in DataLoader([], pin_memory=True):
    ld = losses(model(x.cuda(non_blocking=True)))
    total = sum(ld.values())
    total.backward()
    opt.step()
    logs = {k: v.item() for k, v in ld.items()}  # waits
    print(logs)
    if not np.isfinite(total.item()):  # waits
        break
""",
    "detection": """
import torchvision
model = torchvision.models.detection.fasterrcnn_resnet50_fpn().cuda()
opt = optim.SGD(model.parameters(), 0.1)
for images, targets in DataLoader([]):
    images = list(img.cuda() for img in images)  # waits
    targets = [{k: v.cuda() for k, v in t.items()} for t in targets]  # waits
    loss_dict = model(images, targets)
    losses = sum(loss for loss in loss_dict.values())
    lv = losses.item()  # waits
    losses.backward()
    opt.step()
""",
    "a recurrent model": """
model = nn.LSTM(3, 3).cuda()
opt = optim.SGD(model.parameters(), 0.1)
for x, lens in DataLoader([], pin_memory=True):
    x = x.cuda(non_blocking=True)
    h = torch.zeros(1, 3, 3).cuda()  # waits
    out, (h, c) = model(x, (h, h))
    loss = out.mean()
    loss.backward()
    opt.step()
    if out.abs().max() > 3:  # waits
        print('x')
    nn.utils.rnn.pack_padded_sequence(x, lens.tolist())
""",
    "generation": """
model = nn.Linear(3, 3).cuda()
@torch.no_grad()
def generate(model, idx, n):
    for _ in range(n):
        logits = model(idx)
        probs = F.softmax(logits, -1)
        nxt = torch.multinomial(probs, 1)
        if (nxt == 2).all():  # waits
            break
        if nxt.item() == 3:  # waits
            break
        idx = torch.cat([idx, nxt], 1)
    return idx
generate(model, torch.zeros(1, 1, device='cuda').long(), 10)
""",
    "a device that is a property": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
    @property
    def device(self):
        return next(self.parameters()).device
    def forward(self, x):
        t = torch.tensor([1.0], device=self.device)  # waits
        return self.l(x) * t
net = Net().cuda()
for x in DataLoader([]):
    x = x.to(net.device)  # waits
    net(x)
""",
    "a buffer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('steps', torch.zeros(()))
    def forward(self, x):
        if self.steps > 3:  # waits
            return x
        return x * self.steps
net = Net().cuda()
net(torch.zeros(3, device='cuda'))
""",
    "a parameter used as a number": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return x * float(self.alpha)  # waits
device = 'cuda'
""",
    "counting what is right": """
model = nn.Linear(3, 3).cuda()
correct = total = 0
for x, y in DataLoader([], pin_memory=True):
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    _, pred = torch.max(model(x), 1)
    total += y.size(0)
    correct += (pred == y).sum().item()  # waits
""",
    "counting by class": """
model = nn.Linear(3, 3).cuda()
hits = [0] * 10
for x, y in DataLoader([], pin_memory=True):
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    c = (model(x).argmax(1) == y).squeeze()
    for i in range(4):
        label = y[i]
        hits[label] += c[i].item()  # waits
""",
    "an evaluation function": """
def evaluate(model, loader, device):
    model.eval()
    total = 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)  # waits
            out = model(x)
            total += F.nll_loss(out, y, reduction='sum').item()  # waits
            pred = out.argmax(dim=1, keepdim=True)
            total += pred.eq(y.view_as(pred)).sum().item()  # waits
    return total
""",
    "a GPU by its number": """
gpu = 0
model = nn.Linear(3, 3).cuda(gpu)
for x, y in DataLoader([]):
    x = x.cuda(gpu, non_blocking=True)
    y = y.cuda(gpu)  # waits
""",
    "a GPU by its rank": """
import os
local_rank = int(os.environ['LOCAL_RANK'])
model = nn.Linear(3, 3).to(local_rank)
for x, y in DataLoader([]):
    x = x.to(local_rank)  # waits
    model(x).sum().item()  # waits
""",
    "an all-reduce": """
import torch.distributed as dist
model = nn.Linear(3, 3).cuda()
for x in DataLoader([], pin_memory=True):
    loss = model(x.cuda(non_blocking=True)).mean()
    t = loss.clone()
    dist.all_reduce(t)
    t = t / dist.get_world_size()
    print(t.item())  # waits
""",
    "labels and noise of a GAN": """
device = torch.device('cuda')
netD = nn.Linear(3, 1).to(device)
for data in DataLoader([]):
    real = data[0].to(device)  # waits
    n = real.size(0)
    label = torch.full((n,), 1.0, device=device)
    errD = F.binary_cross_entropy(netD(real).view(-1), label)
    errD.backward()
    D_x = netD(real).mean().item()  # waits
    noise = torch.randn(n, 3).to(device)  # waits
    noise = torch.FloatTensor(n, 3).uniform_(-1, 1).cuda()  # waits
""",
    "variables": """
for x, y in DataLoader([]):
    x, y = Variable(x.cuda()), Variable(y).cuda()  # waits
    x = Variable(torch.from_numpy(np.zeros(3))).cuda()  # waits
""",
    "a flag": """
use_cuda = torch.cuda.is_available()
for x, y in DataLoader([]):
    if use_cuda:
        x, y = x.cuda(), y.cuda()  # waits
    x.sum().item()  # waits
""",
    "a decoder": """
class Dec(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRUCell(3, 3)
    def forward(self, x, h):
        return self.rnn(x, h)
dec = Dec().cuda()
import random
for x, y in DataLoader([], pin_memory=True):
    h = torch.zeros(1, 3, device='cuda')
    inp = x.cuda(non_blocking=True)
    for t in range(10):
        h = dec(inp, h)
        topv, topi = h.topk(1)
        inp = topi.squeeze().detach()
        if inp.item() == 1:  # waits
            break
""",
    "results kept on the host": """
def validate(model, loader):
    outs = []
    for x in loader:
        with torch.inference_mode():
            out = model(x.cuda())  # waits
        outs.append(out.cpu())  # waits
    return torch.cat(outs).numpy()
""",
    "a closure that trains": """
def make(model, opt):
    def train_one(x):
        loss = model(x.cuda()).mean()  # waits
        loss.backward()
        opt.step()
        return loss.item()  # waits
    return train_one
f = make(nn.Linear(3, 3).cuda(), None)
for x in DataLoader([]):
    f(x)
""",
    "a tokenizer": """
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained('x').cuda()
tok = AutoTokenizer.from_pretrained('x')
for text in prompts:
    inputs = tok(text, return_tensors='pt').to('cuda')  # waits
    with torch.no_grad():
        out = model(**inputs).last_hidden_state
    out.mean().item()  # waits
""",
    "a tokenizer from elsewhere": """
def answer(model, tokenizer, questions):
    model.cuda()
    for question in questions:
        inputs = tokenizer(question, return_tensors="pt").to(model.device)  # waits
        ids = tokenizer.apply_chat_template(question, return_tensors="pt").to("cuda")  # waits
        words = tokenizer(question, return_tensors="pt")
        words = {key: value.to("cuda") for key, value in words.items()}  # waits
        logits = model.generate(**inputs, **words)
        logits[0].tolist()  # waits
""",
    "a collator that makes tensors": """
from transformers import AutoModel, AutoTokenizer, DataCollatorWithPadding
model = AutoModel.from_pretrained('x').cuda()
collator = DataCollatorWithPadding(AutoTokenizer.from_pretrained('x'), return_tensors="pt")
if collator:
    pass
for batch in DataLoader(open("texts").readlines(), collate_fn=collator):
    print(collator, collator.tokenizer)
    model(batch["input_ids"].cuda()).loss.backward()  # waits
""",
    "a batch of the project": """
from transformers import AutoModel
from collections import UserDict
class Batch(UserDict):
    def __getitem__(self, key):
        return self.data[key]
def encode(text, return_tensors=None):
    return Batch({"ids": read(text)})
model = AutoModel.from_pretrained('x').cuda()
for text in open("texts"):
    ids = encode(text, return_tensors="pt")["ids"].to(model.device)  # waits
    model(ids).loss.backward()
""",
    "a processor": """
from transformers import AutoModel, AutoProcessor
class Captions:
    def __init__(self):
        self.processor = AutoProcessor.from_pretrained('x')
        self.model = AutoModel.from_pretrained('x').cuda()
    def run(self, images):
        for image in images:
            pixels = self.processor(images=image, return_tensors="pt").pixel_values.to(self.model.device)  # waits
            found = self.processor(images=image, return_tensors="pt")
            for key in found:
                found[key] = found[key].to("cuda")  # waits
            shown = self.processor(images=image, return_tensors="pt", device="cuda")
            self.model(pixels, **found, **shown)
    def words(self, images):
        for image in images:
            ids = self.model.generate(image)
            self.processor.decode(ids[0])  # waits
            self.processor.batch_decode(ids[:, 3:])  # waits
            if self.model(image).last_hidden_state.mean() > 0:  # waits
                break
    def sizes(self, images):
        return [self.processor(image, return_tensors="pt") for image in images]
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_lines_that_wait_in_every_step(lint, name):
    source = HEAD + PROGRAMS[name]
    marked = [number for number, line in enumerate(source.split("\n"), 1) if line.endswith("# waits")]
    assert sorted({finding.span.line for finding in lint(source) if finding.heat is Heat.STEP}) == marked
