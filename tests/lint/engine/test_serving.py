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
HANDLERS = {
    "a route of FastAPI": "from fastapi import FastAPI\napp = FastAPI()\n"
    "@app.post('/p')\ndef p(n): return net(x).tolist()",
    "a route of a router of the project": "from main import r\n@r.get('/p')\nasync def p(n): return net(x).tolist()",
    "a websocket": "import fastapi\na = fastapi.FastAPI()\n@a.websocket('/w')\nasync def w(s): net(x).tolist()",
    "a route that is added": "import fastapi\na = fastapi.FastAPI()\ndef f(): net(x).tolist()\na.add_api_route('/', f)",
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
