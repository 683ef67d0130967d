"""Handlers of servers, loops that generate tokens, and denoising loops: how often their lines run, and per what."""

from __future__ import annotations

import ast
import textwrap

import pytest
from gpusync_lint.catalogue import entry_points
from gpusync_lint.domain import serving_loops
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.unit_messages import described, unit_name
from gpusync_lint.model.units import Unit
from gpusync_lint.run.graph_rows import graph_row, heats_row, read_graph, read_heats

SETUP = """
import torch
net = torch.nn.Linear(8, 8).cuda()
x = torch.zeros(8, device="cuda")
"""
FASTAPI = (
    "from fastapi import FastAPI, Depends, APIRouter, Security, BackgroundTasks\n"
    "from typing import Annotated\napp = FastAPI()\n"
)
READ = "def f(*a): return net(x).tolist()\n"
HANDLERS = {
    "a route of FastAPI": "from fastapi import FastAPI\napp = FastAPI()\n"
    "@app.post('/p')\ndef p(n): return net(x).tolist()",
    "a route of a router of the project": "from main import r\n@r.get('/p')\nasync def p(n): return net(x).tolist()",
    "a websocket": "import fastapi\na = fastapi.FastAPI()\n@a.websocket('/w')\nasync def w(s): net(x).tolist()",
    "a route that is added": (
        "import fastapi\na = fastapi.FastAPI()\ndef f(): net(x).tolist()\na.add_api_route('/', f)"
    ),
    "Starlette": "from starlette.routing import Route\nasync def f(r): net(x).tolist()\nroutes = [Route('/', f)]",
    "Flask": "import flask\napp = flask.Flask('a')\n"
    "@app.route('/p', methods=['POST'])\ndef p(): return net(x).tolist()",
    "Ray Serve": "from ray import serve\n@serve.deployment(num_replicas=2)\n"
    "class D:\n    def __call__(self, r): net(x).tolist()",
    "a batch of Ray Serve": "from ray import serve\nclass D:\n    @serve.batch\n"
    "    async def b(self, r): net(x).tolist()",
    "LitServe": "import litserve as ls\nclass A(ls.LitAPI):\n    def decode_request(self, r): return net(x).tolist()",
    "TorchServe": "from ts.torch_handler.base_handler import BaseHandler\nclass H(BaseHandler):\n"
    "    def postprocess(self, d): return net(x).tolist()",
    "Triton": "class TritonPythonModel:\n    def execute(self, requests): return net(x).tolist()",
    "an interface of Gradio": "import gradio as gr\ndef f(i): return net(x).tolist()\ngr.Interface(fn=f).launch()",
    "an event of Gradio": "import gradio as gr\ndef f(i): return net(x).tolist()\n"
    "b = gr.Button()\nb.click(f, None, None)",
    "a helper of a handler": "from flask import Flask\napp = Flask('a')\ndef f(): return net(x).tolist()\n"
    "@app.get('/p')\ndef p(): return f()",
    "an endless coroutine": "async def run(q):\n    while True:\n        await q.get()\n        net(x).tolist()",
    "a loop over a queue": "def run(queue):\n    while True:\n        queue.get()\n        net(x).tolist()",
    "depends default": f"{FASTAPI}{READ}@app.get('/')\ndef p(v=Depends(f)): return v",
    "depends annotated": f"{FASTAPI}{READ}@app.get('/')\ndef p(v: Annotated[list, Depends(f)]): return v",
    "depends alias": f"{FASTAPI}{READ}Dep = Annotated[list, Depends(f)]\n@app.get('/')\ndef p(v: Dep): return v",
    "dependencies of a route": f"{FASTAPI}{READ}@app.get('/', dependencies=[Depends(f)])\ndef p(): return 1",
    "dependencies of an app": (
        f"from fastapi import FastAPI, Depends\n{READ}app = FastAPI(dependencies=[Depends(f)])\n"
    ),
    "dependencies of a router": f"{FASTAPI}{READ}r = APIRouter(dependencies=[Depends(f)])\n",
    "security": f"{FASTAPI}{READ}@app.get('/')\ndef p(v=Security(f, scopes=['a'])): return v",
    "sub dependency": f"{FASTAPI}{READ}def g(v=Depends(f)): return v\n@app.get('/')\ndef p(v=Depends(g)): return v",
    "class dependency": (
        f"{FASTAPI}class C:\n    def __init__(self, q): self.v = net(x).tolist()\n@app.get('/')\n"
        "def p(v=Depends(C)): return v"
    ),
    "class dependency short": (
        f"{FASTAPI}class C:\n    def __init__(self, q): self.v = net(x).tolist()\n@app.get('/')\n"
        "def p(v: C = Depends()): return v"
    ),
    "instance dependency": (
        f"{FASTAPI}class C:\n    def __call__(self, q): return net(x).tolist()\nc = C()\n@app.get('/')\n"
        "def p(v=Depends(c)): return v"
    ),
    "generator dependency": (
        f"{FASTAPI}def g():\n    yield net(x).tolist()\n@app.get('/')\ndef p(v=Depends(g)): return v"
    ),
    "depends in helper of the project": (
        f"{FASTAPI}class A:\n    def dep(self): return net(x).tolist()\na = A()\n@app.get('/')\n"
        "def p(v=Depends(a.dep)): return v"
    ),
    "method route": (
        f"{FASTAPI}class S:\n    def __init__(self):\n        self.router = APIRouter()\n"
        "        self.router.add_api_route('/', self.p, methods=['POST'])\n"
        "    def p(self): return net(x).tolist()\n"
    ),
    "background task": f"{FASTAPI}{READ}@app.post('/')\ndef p(b: BackgroundTasks): b.add_task(f, 1)",
    "http middleware": (
        "from starlette.middleware.base import BaseHTTPMiddleware\nclass M(BaseHTTPMiddleware):\n"
        "    async def dispatch(self, request, call_next):\n        net(x).tolist()\n"
        "        return await call_next(request)"
    ),
    "asgi middleware": (
        f"{FASTAPI}class M:\n    def __init__(self, app): self.app = app\n"
        "    async def __call__(self, scope, receive, send):\n        net(x).tolist()\n"
        "app.add_middleware(M)"
    ),
    "threadpool": (
        f"{FASTAPI}from starlette.concurrency import run_in_threadpool\n{READ}@app.get('/')\n"
        "async def p(): return await run_in_threadpool(f, 1)"
    ),
    "to_thread": f"{FASTAPI}import asyncio\n{READ}@app.get('/')\nasync def p(): return await asyncio.to_thread(f, 1)",
    "executor": (
        f"{FASTAPI}import asyncio\n{READ}@app.get('/')\n"
        "async def p(): return await asyncio.get_running_loop().run_in_executor(None, f, 1)"
    ),
    "executor partial": (
        f"{FASTAPI}import asyncio, functools\n{READ}@app.get('/')\nasync def p():\n"
        "    loop = asyncio.get_event_loop()\n"
        "    return await loop.run_in_executor(None, functools.partial(f, 1))"
    ),
    "anyio": f"{FASTAPI}import anyio\n{READ}@app.get('/')\nasync def p(): return await anyio.to_thread.run_sync(f, 1)",
    "submit": (
        f"{FASTAPI}from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\n"
        f"{READ}@app.get('/')\nasync def p(): return pool.submit(f, 1).result()"
    ),
    "streaming response": (
        f"{FASTAPI}from fastapi.responses import StreamingResponse\ndef g():\n    for i in range(9):\n"
        "        yield net(x).tolist()\n@app.get('/')\ndef p(): return StreamingResponse(g())"
    ),
    "gradio on": (
        f"import gradio as gr\n{READ}with gr.Blocks() as demo:\n    b = gr.Button()\n"
        "    gr.on(triggers=[b.click], fn=f)"
    ),
    "gradio chain": (
        f"import gradio as gr\n{READ}with gr.Blocks() as demo:\n    b = gr.Button()\n    b.click(print).then(fn=f)"
    ),
    "gradio chat": (
        "import gradio as gr\ndef f(m, h):\n    for i in range(3): yield net(x).tolist()\ngr.ChatInterface(f).launch()"
    ),
    "gradio method": (
        "import gradio as gr\nclass M:\n    def f(self, i): return net(x).tolist()\nm = M()\n"
        "gr.Interface(fn=m.f, inputs='image').launch()"
    ),
    "gradio render/tick": f"import gradio as gr\n{READ}with gr.Blocks() as demo:\n    t = gr.Timer()\n    t.tick(f)",
    "gradio load": f"import gradio as gr\n{READ}with gr.Blocks() as demo:\n    demo.load(f)",
    "gradio decorator": (
        "import gradio as gr\nwith gr.Blocks() as demo:\n    b = gr.Button()\n"
        "    @b.click(inputs=None)\n    def f(i): return net(x).tolist()"
    ),
    "gradio lambda": (
        f"import gradio as gr\n{READ}with gr.Blocks() as demo:\n    b = gr.Button()\n    b.click(lambda i: f(i))"
    ),
    "bento api": (
        "import bentoml\n@bentoml.service\nclass S:\n    @bentoml.api\n    def p(self, t): return net(x).tolist()"
    ),
    "bento legacy": (
        "import bentoml\nsvc = bentoml.Service('a')\n@svc.api(input=1, output=2)\ndef p(t): return net(x).tolist()"
    ),
    "bento runnable": (
        "import bentoml\nclass R(bentoml.Runnable):\n    @bentoml.Runnable.method(batchable=True)\n"
        "    def p(self, t): return net(x).tolist()"
    ),
    "websockets": (
        "import websockets, asyncio\nasync def h(ws):\n    async for m in ws:\n"
        "        await ws.send(str(net(x).tolist()))\nasync def main():\n"
        "    async with websockets.serve(h, 'localhost', 1):\n        await asyncio.Future()"
    ),
    "websockets new": (
        "from websockets.asyncio.server import serve\nasync def h(ws):\n    while True:\n"
        "        m = await ws.recv()\n        await ws.send(str(net(x).tolist()))\nasync def main():\n"
        "    async with serve(h, 'localhost', 1) as s:\n        await s.serve_forever()"
    ),
    "websockets sync": (
        "from websockets.sync.server import serve\ndef h(ws):\n    for m in ws:\n"
        "        ws.send(str(net(x).tolist()))\nwith serve(h, 'localhost', 1) as s: s.serve_forever()"
    ),
    "fastapi websocket loop": (
        f"{FASTAPI}@app.websocket('/w')\nasync def w(ws):\n    while True:\n"
        "        d = await ws.receive_bytes()\n        await ws.send_json(net(x).tolist())"
    ),
    "aiohttp router": (
        "from aiohttp import web\nasync def h(r): return net(x).tolist()\napp = web.Application()\n"
        "app.router.add_post('/', h)"
    ),
    "ray ingress": (
        f"{FASTAPI}from ray import serve\n@serve.deployment\n@serve.ingress(app)\nclass D:\n"
        "    @app.post('/')\n    def p(self): return net(x).tolist()"
    ),
    "litserve stream": (
        "import litserve as ls\nclass A(ls.LitAPI):\n    def predict(self, q):\n"
        "        for i in range(3): yield net(x).tolist()"
    ),
}
NO_HANDLERS = {
    "a set-up of LitServe": "import litserve as ls\nclass A(ls.LitAPI):\n    def setup(self, d): net(x).tolist()",
    "a start of FastAPI": "from fastapi import FastAPI\na = FastAPI()\n"
    "@a.on_event('startup')\ndef s(): net(x).tolist()",
    "the constructor of a deployment": "from ray import serve\n@serve.deployment\nclass D:\n"
    "    def __init__(self): net(x).tolist()",
    "a decorator of another library": "import registry\n@registry.get('relu')\ndef f(): net(x).tolist()",
    "a method of that name elsewhere": "class Job:\n    def execute(self, requests): net(x).tolist()",
    "a click of another library": "import click\ndef f(): net(x).tolist()\nbutton.click(f)",
    "a thread that copies what a queue holds": "def run(queue):\n    while True:\n"
    "        queue.get()\n        x.tolist()",
    "lifespan": (
        f"{FASTAPI}from contextlib import asynccontextmanager\n@asynccontextmanager\n"
        "async def life(app):\n    net(x).tolist()\n    yield\napp = FastAPI(lifespan=life)"
    ),
    "lifespan starlette": (
        "from starlette.applications import Starlette\nimport contextlib\n"
        "@contextlib.asynccontextmanager\nasync def lifespan(app):\n    net(x).tolist()\n    yield\n"
        "app = Starlette(lifespan=lifespan)"
    ),
    "on_startup": (
        "from starlette.applications import Starlette\ndef s(): net(x).tolist()\napp = Starlette(on_startup=[s])"
    ),
    "add_event_handler": f"{FASTAPI}def s(): net(x).tolist()\napp.add_event_handler('startup', s)",
    "cached dependency": (
        f"{FASTAPI}import functools\n@functools.lru_cache\ndef f(): return net(x).tolist()\n"
        "@app.get('/')\ndef p(v=Depends(f)): return v"
    ),
    "cached dependency by state": (
        f"{FASTAPI}model = None\ndef f():\n    global model\n    if model is None:\n"
        "        model = net(x).tolist()\n    return model\n@app.get('/')\ndef p(v=Depends(f)): return v"
    ),
    "add_task of a project class": f"{READ}class Q:\n    def add_task(self, g): pass\nQ().add_task(f)",
    "multiplexed": (
        "from ray import serve\n@serve.deployment\nclass D:\n"
        "    @serve.multiplexed(max_num_models_per_replica=3)\n"
        "    async def get_model(self, i): return net(x).tolist()"
    ),
}
LOOPS = {
    "tokens from a distribution": (
        "while True:\n    p = model(ids)\n    t = torch.multinomial(p, 1)\n    ids = torch.cat([ids, t], 1)",
        Unit.TOKEN,
    ),
    "the best tokens": (
        "for _ in range(9):\n    t = model(t)[:, -1].argmax(-1).unsqueeze(1)\n    out.append(t)",
        Unit.TOKEN,
    ),
    "tokens that the test of the loop reads": (
        "while not done(ids):\n    t = torch.argmax(step(), -1)\n    ids = torch.cat((ids, t[:, None]), dim=-1)",
        Unit.TOKEN,
    ),
    "an evaluation": (
        "for x, y in loader:\n    p = model(x).argmax(1)\n    correct += (p == y).sum()\n    print(correct)",
        None,
    ),
    "an agent in an environment": (
        "while True:\n    a = policy(obs).argmax(-1)\n    obs, reward = env.step(a)",
        None,
    ),
    "timesteps": ("for i, t in enumerate(ts):\n    n = f(x, t)\n    x = s.step(n, t, x).prev_sample", Unit.TIMESTEP),
    "timesteps by keyword": ("for t in ts:\n    x = s.step(n, timestep=t, sample=x)", Unit.TIMESTEP),
    "noise levels": ("for i in range(len(sig) - 1):\n    d = f(x, sig[i] * ones)\n    x = x + d", Unit.TIMESTEP),
    "steps of an optimizer": ("for t in ts:\n    loss(t).backward()\n    opt.step()", None),
    "pairs of a list": ("for i in range(len(a)):\n    y = f(b, a[i])", None),
}


def timed(source: str) -> str:
    return SETUP + source + "\n"


@pytest.mark.parametrize("case", HANDLERS)
def test_a_handler_runs_once_per_request(lint, case):
    found = [finding for finding in lint(timed(HANDLERS[case])) if finding.code == "GS203"]
    assert [(finding.heat, finding.unit) for finding in found] == [(Heat.STEP, Unit.REQUEST)]
    assert "once per request" in described(found[0]).message


@pytest.mark.parametrize("case", NO_HANDLERS)
def test_other_functions_are_no_handlers(lint, case):
    (found,) = (finding for finding in lint(timed(NO_HANDLERS[case])) if finding.code == "GS203")
    assert (found.heat is Heat.STEP, unit_name(found)) == (False, None)


@pytest.mark.parametrize("case", LOOPS)
def test_a_loop_is_recognized_by_its_form(case):
    source, unit = LOOPS[case]
    assert list(serving_loops.units(ast.parse(source).body, source, is_async=False).values()) == (
        [unit] if unit else []
    )


def test_the_timesteps_of_a_denoising_loop_are_on_the_device(lint):
    loop = """
        import torch
        def run(scheduler, model, x, timesteps):{set_up}
            for t in timesteps:
                noise = model(x, t.item())
                x = scheduler.step(noise, t, x)[0]
    """
    (found,) = lint(loop.format(set_up=""))
    assert (found.code, found.heat, found.unit) == ("GS201", Heat.STEP, Unit.TIMESTEP)
    assert "timesteps.tolist()" in described(found).remedy
    assert not lint(loop.format(set_up="\n            scheduler.set_timesteps(9)"))
    assert not lint(test_pipeline=loop.format(set_up=""))


def test_modules_that_a_pipeline_registers_are_its_attributes(lint):
    found = lint("""
        import torch
        class Scheduler:
            def __init__(self): self.sigmas = torch.linspace(0, 1, 9).cuda()
            def step(self, noise, t, sample):
                return sample + self.sigmas[0].item()
        class Pipe:
            def __init__(self, unet: torch.nn.Module, scheduler: Scheduler):
                self.register_modules(unet=unet, scheduler=scheduler)
            def __call__(self, x, timesteps):
                for t in timesteps:
                    x = self.scheduler.step(self.unet(x, t), t, x)
    """)
    assert [(finding.code, finding.unit) for finding in found if finding.heat is Heat.STEP] == [
        ("GS201", Unit.TIMESTEP)
    ]


def test_a_loop_over_models_is_no_loop_of_steps(lint):
    (found,) = lint(
        timed(
            "a, b = torch.nn.Linear(8, 8).cuda(), torch.nn.Linear(8, 8).cuda()\n"
            "for encoder in (a, b):\n    encoder(x).tolist()"
        )
    )
    assert found.heat is Heat.EPOCH


def test_a_handler_gets_what_its_dependencies_return(lint):
    dependency = "def model():\n    {} net\n"
    handler = "@app.get('/')\ndef p(n: int, m{}): return m(torch.zeros(8, device='cuda')).tolist()"
    for keyword in ("return", "yield"):
        for declared in ("=Depends(model)", ": Annotated[object, Depends(model)]"):
            (found,) = lint(timed(FASTAPI + dependency.format(keyword) + handler.format(declared)))
            assert (found.code, found.unit) == ("GS203", Unit.REQUEST)


def test_a_function_that_a_thread_runs_gets_its_arguments(lint):
    source = "import asyncio\ndef f(y): return y.tolist()\n@app.get('/')\nasync def p(): return await {}"
    for call in ("asyncio.to_thread(f, net(x))", "asyncio.get_running_loop().run_in_executor(None, f, net(x))"):
        found = lint(timed(FASTAPI + source.format(call)))
        assert [(one.code, one.span.line) for one in found] == [("GS203", 9)]


def test_what_fills_a_global_name_once_is_not_in_every_step(lint):
    source = "table = None\ndef f():\n    global table\n    if {}:\n        table = net(x).tolist()\n    return table\n"
    loop = "for _ in range(9):\n    net(x).sum().backward()\n    f()\n"
    for test, heat in (("table is None", Heat.GUARDED), ("not table", Heat.GUARDED), ("len(a) > 3", Heat.STEP)):
        (found,) = lint(timed(source.format(test) + loop))
        assert found.heat is heat


@pytest.mark.parametrize(
    ("test", "heat"),
    [
        ("i == len(timesteps) - 1", Heat.GUARDED),
        ("i == switch_at", Heat.GUARDED),
        ("i != len(timesteps) - 1", Heat.STEP),
        ("i == chosen", Heat.STEP),
        ("i == order[i]", Heat.STEP),
    ],
)
def test_a_block_for_one_iteration_is_rare(lint, test, heat):
    (found,) = lint(f"""
        import torch
        def run(scheduler, model, x, timesteps, switch_at, order):
            for i, t in enumerate(timesteps):
                chosen = int(i)
                if {test}:
                    model(x, t.item())
                x = scheduler.step(model(x, t), t, x)[0]
    """)
    assert found.heat is heat


def test_what_a_property_finds_missing_is_made_once(lint):
    source = """
        import torch
        class Scheduler:
            def __init__(self):
                self.sigmas = torch.linspace(0, 1, 9).cuda()
                self._index = None
            @property
            def index(self):
                "The current one."
                return self.{attribute}
            def start(self, t): self._index = self.sigmas.argmax().item()
            def step(self, noise, t, sample):
                if self.index is None:
                    self.start(t)
                return sample + self.sigmas[self.index]
        def run(model, x, timesteps, scheduler: Scheduler):
            for t in timesteps:
                x = scheduler.step(model(x, t), t, x)
    """
    for attribute, heat in (("_index", Heat.GUARDED), ("other", Heat.STEP)):
        assert {one.heat for one in lint(source.format(attribute=attribute)) if one.code == "GS201"} == {heat}


def test_a_function_of_training_and_serving_is_part_of_a_step(lint):
    shared = textwrap.dedent(
        """
        from flask import Flask
        app = Flask("a")
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        def f(): return net(x).sum().item()
        @app.get("/p")
        def p(): return f()
        """
    )
    (found,) = lint(timed(shared))
    assert unit_name(found) == "request"
    (found,) = lint(timed(shared + "for _ in range(9):\n    f()\n    net(x).sum().backward()\n    opt.step()\n"))
    assert unit_name(found) == "step"
    assert described(found) is found


def test_units_survive_the_cache():
    from gpusync_lint.heat.call_graph import propagate
    from gpusync_lint.model.placement import Call, FunctionNode, PathKind, PathNode

    handler, helper = ("a.py", "handler"), ("b.py", "helper")
    path = (PathNode(PathKind.LOOP, 3),)
    graph = {
        handler: FunctionNode(Heat.STEP, unit=Unit.REQUEST, calls=(Call(helper, path, False),)),
        helper: FunctionNode(Heat.ONCE, unit_loops=(((7,), Unit.TOKEN),)),
    }
    heats = propagate(graph)
    assert heats[helper].unit is Unit.REQUEST
    assert read_graph(graph_row(graph)) == graph
    assert read_heats(heats_row(graph, heats), graph) == heats


def test_each_entry_of_the_catalogue_names_its_source():
    for server in entry_points.servers():
        assert server.source.startswith("https://"), server.name
        assert server.routes or server.decorators or server.class_decorators or server.registrations or server.classes


@pytest.mark.parametrize(("test", "codes"), [("not torch.is_tensor(t)", []), ("len(t.shape) == 0", ["GS205"])])
def test_what_runs_for_other_things_than_tensors_does_not_run_for_a_tensor(lint, test, codes):
    found = lint(timed(f"t = x.sum()\nif {test}:\n    t = torch.tensor([t], device='cuda')"))
    assert [finding.code for finding in found] == codes


@pytest.mark.parametrize(
    ("methods", "codes"),
    [
        ("batch, predict, unbatch, encode", ["GS502", "GS203"]),
        ("predict, encode", ["GS502", "GS205"]),
        ("encode", ["GS502", "GS205"]),
    ],
)
def test_a_request_passes_through_the_methods_of_a_handler(lint, methods, codes):
    defined = {
        "batch": "    def batch(self, inputs): return torch.cat(inputs)",
        "predict": "    def predict(self, x): return x.argmax(-1)",
        "unbatch": "    def unbatch(self, out): return out.tolist()",
        "encode": "    def encode_response(self, out): return {'o': float(out)}",
    }
    api = "import torch\nimport litserve as ls\nclass Api(ls.LitAPI):\n"
    api += "    def decode_request(self, r): return torch.tensor([r], device=self.device)\n"
    found = lint(api + "\n".join(defined[name] for name in methods.split(", ")))
    assert [(finding.code, finding.unit) for finding in found] == [(code, Unit.REQUEST) for code in codes]


def test_a_framework_that_is_part_of_the_project_is_recognized(lint):
    (found,) = lint(
        litserve__api="class LitAPI: pass",
        serve="import torch\nfrom litserve.api import LitAPI\nclass A(LitAPI):\n"
        "    def predict(self, x): return torch.zeros(2, device='cuda').tolist()",
    )
    assert found.unit is Unit.REQUEST


def test_a_fast_tokenizer_is_no_module(lint):
    assert not lint(
        """
        import torch
        from transformers import T5TokenizerFast
        model = torch.nn.Linear(2, 2).cuda()
        def encode(tokenizer: T5TokenizerFast, text):
            return torch.equal(tokenizer(text).input_ids, tokenizer(text, padding="longest").input_ids)
        """
    )


@pytest.mark.parametrize(
    ("source", "unit"),
    [
        (
            "import diffusers\nclass S(diffusers.SchedulerMixin):\n    def step(self, n): return net(x).tolist()",
            Unit.TIMESTEP,
        ),
        (
            "import transformers as tr\nclass L(tr.LogitsProcessor):\n    def __call__(self, i): net(x).tolist()",
            Unit.TOKEN,
        ),
        (
            "from transformers import StoppingCriteria as C\nclass E(C):\n    def __call__(self, i): net(x).tolist()",
            Unit.TOKEN,
        ),
    ],
    ids=["a scheduler", "a logits processor", "a stopping criterion"],
)
def test_what_the_loop_of_a_library_calls_runs_once_per(lint, source, unit):
    (found,) = (finding for finding in lint(timed(source)) if finding.code == "GS203")
    assert (found.heat, found.unit) == (Heat.STEP, unit)
