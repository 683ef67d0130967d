"""Frameworks other than torch: what is traced is not run, and what looks alike is not theirs."""

from __future__ import annotations

import pytest
from gpusync_lint.model.levels import Heat

JAX = """
import jax
import jax.numpy as jnp
import numpy as np
from functools import partial
x = jnp.ones(4)
@jax.jit
def update(a):
    return a, a.sum()
"""
STEP = "for _ in range(9):\n    x, loss = update(x)\n"


def codes(found):
    return [finding.code for finding in found]


def test_results_of_a_compiled_function_are_device_arrays(lint):
    (finding,) = lint(JAX + STEP + "    print(float(loss))\n")
    assert (finding.code, finding.heat, finding.framework) == ("GS205", Heat.STEP, "jax")


TRACED = {
    "decorated": "@jax.jit\ndef f(a):\n    return float(jnp.sum(a))\n",
    "decorated through partial": "@partial(jax.jit, static_argnums=0)\ndef f(n, a):\n    return float(jnp.sum(a))\n",
    "given to a transform": "def f(a):\n    return float(jnp.sum(a))\ng = jax.grad(f)\n",
    "given to a loop of the framework": "def f(i, a):\n    return float(jnp.sum(a))\njax.lax.fori_loop(0, 3, f, x)\n",
    "nested in a traced function": (
        "@jax.jit\ndef f(a):\n    def g(b):\n        return float(jnp.sum(b))\n    return g(a)\n"
    ),
    "called by a traced function only": (
        "def g(b):\n    return float(jnp.sum(b))\n@jax.jit\ndef f(a):\n    return g(a)\n"
    ),
    "a module of the framework": (
        "import flax.linen as nn\nclass Net(nn.Module):\n    def forward(self, a):\n        return float(jnp.sum(a))\n"
    ),
}


@pytest.mark.parametrize("name", TRACED)
def test_traced_code_is_silent(lint, name):
    assert lint(JAX + TRACED[name] + STEP) == []


def test_a_function_that_untraced_code_calls_too_is_reported(lint):
    code = "def g(b):\n    return float(jnp.sum(b))\n@jax.jit\ndef f(a):\n    return g(a)\n"
    assert codes(lint(JAX + code + STEP + "    g(x)\n")) == ["GS205"]


def test_annotations_tell_arrays_of_the_framework_from_those_of_numpy(lint):
    code = "def on_batch_end(a: jax.Array, b: np.ndarray):\n    return float(a), float(b)\n"
    found = lint(JAX + code)
    assert [(finding.code, finding.span.column) for finding in found] == [("GS205", 12)]


def test_what_was_fetched_once_is_read_for_free(lint):
    code = JAX + STEP + "    host = jax.device_get(loss)\n    print(float(host), host.item())\n"
    assert codes(lint(code)) == ["GS202"]


def test_numpy_and_pandas_in_a_file_that_imports_jax_are_silent(lint):
    code = "import pandas as pd\nframe = pd.DataFrame()\nh = np.ones(3)\n"
    code += STEP + "    h.sum().item(), float(h[0]), frame.a.mean().item(), frame.to_numpy()\n    if h[0] > 1: pass\n"
    assert lint(JAX + code) == []


def test_a_batch_of_a_tensorflow_dataset_lies_on_the_host(lint):
    code = "import tensorflow as tf\ndata = tf.data.Dataset.range(3)\nfor batch in data:\n    batch.numpy()\n"
    assert lint(code) == []


def test_code_under_tf_function_is_silent(lint):
    code = "import tensorflow as tf\n@tf.function\ndef train_step(a):\n    if tf.reduce_sum(a) > 0:\n        return a\n"
    assert lint(code) == []


def test_cupy_in_an_iterative_solver_is_found(lint):
    code = "import cupy as cp\nx = cp.ones(3)\nwhile True:\n    x = cp.tanh(x)\n"
    code += "    if cp.linalg.norm(x) < 1e-6:\n        break\n"
    (finding,) = lint(code)
    assert (finding.code, finding.framework) == ("GS301", "cupy")


def test_a_kernel_of_numba_for_the_cpu_is_silent(lint):
    code = "import numpy as np\nfrom numba import njit\n@njit\ndef f(a):\n    return a\n"
    code += "for i in range(3):\n    f(np.ones(3))\n"
    assert lint(code) == []


FIXES = {
    "y = [ray.get(r) for r in refs]": ("y = ray.get(list(refs))", True),
    "y = [ray.get(r) for r in [f.remote(i) for i in items]]": ("y = ray.get([f.remote(i) for i in items])", True),
    "y = [ray.get(f.remote(i)) for i in items]": ("y = ray.get([f.remote(i) for i in items])", False),
}
RAY_LOOPS = {
    "for r in refs:\n    out.append(ray.get(r))\n": "out.extend(ray.get(list(refs)))\n",
    "for i in items:\n    out.append(ray.get(f.remote(i)))\n": "out.extend(ray.get([f.remote(i) for i in items]))\n",
    "for r in refs:\n    x = ray.get(r)\n    g(x)  # use\n": "for x in ray.get(list(refs)):\n    g(x)  # use\n",
    "for i, j in items:\n    a, b = ray.get(f.remote(i, j))\n    g(a, b)\n": (
        "for a, b in ray.get([f.remote(i, j) for i, j in items]):\n    g(a, b)\n"
    ),
}
RAY_KEPT = [
    "for r in refs:\n    x = ray.get(r)\n    g(x, r)\n",
    "for r in refs:\n    x = ray.get(r)  # one\n    g(x)\n",
    "for r in refs:\n    x = ray.get(r); g(x)\n",
    "for r in refs:\n    g(1)\n    x = ray.get(r)\n",
    "for r in refs:\n    x = ray.get(r)\n    g(x)\nprint(r)\n",
    "for r in refs:\n    out.append(ray.get(r))\nelse:\n    g(1)\n",
    "for r in out:\n    out.append(ray.get(r))\n",
]
RAY = "import ray\n@ray.remote\ndef f(a):\n    return a\nitems = [1, 2]\nrefs = f.remote(1), f.remote(2)\n"


@pytest.mark.parametrize("before", FIXES)
def test_the_fix_of_ray_get_in_a_comprehension(lint, with_fix, before):
    (finding,) = lint(RAY + before + "\n")
    assert (with_fix(RAY + before, finding.fix), finding.fix.safe) == (RAY + FIXES[before][0], FIXES[before][1])


@pytest.mark.parametrize(
    "line",
    [
        "y = {i: ray.get(f.remote(i)) for i in items}",
        "y = [ray.get(r) for r in refs if r]",
        "y = [g(ray.get(r)) for r in refs]",
    ],
)
def test_no_fix_where_a_comprehension_does_more_than_get(lint, line):
    (finding,) = lint(RAY + line + "\n")
    assert (finding.code, finding.fix) == ("GS802", None)


def test_getting_references_one_by_one_is_only_a_note(lint):
    (finding,) = lint(RAY + "for r in refs:\n    print(ray.get(r))\n")
    assert (finding.code, finding.heat) == ("GS802", Heat.EPOCH)


def test_a_task_that_needs_the_result_before_it_is_silent(lint):
    code = "state = 0\nfor i in items:\n    grown = state + i\n    state = ray.get(f.remote(grown))\n"
    assert lint(RAY + code) == []


def test_futures_of_the_standard_library_are_silent(lint):
    code = "from concurrent.futures import ThreadPoolExecutor\nimport dask\npool = ThreadPoolExecutor()\n"
    code += "for i in range(3):\n    pool.submit(print, i).result()\n"
    assert lint(code) == []


MXNET = """
import mxnet as mx
from mxnet import nd, np
x = nd.ones((4, 4), ctx=mx.gpu())
"""


def test_the_first_wait_of_a_batch_is_right_wherever_it_stands(lint):
    code = "for x in batches:\n    y = nd.dot(x, x)\n    if i:\n        y.asnumpy()\n    y.sum().asscalar()\n"
    (finding,) = lint(MXNET + code)
    assert (finding.code, finding.span.line) == ("GS201", 9)


def test_a_wait_of_the_loop_around_does_not_count_for_the_batch(lint):
    code = "for x in batches:\n    x.asnumpy()\n    for y in batches:\n        nd.dot(y, y).asnumpy()\n"
    assert lint(MXNET + code) == []


def test_each_wait_in_a_loop_that_only_counts_is_found(lint):
    code = "for i in range(9):\n    y = x + i\n    y.wait_to_read()\nfor i in range(9):\n    nd.dot(x, x).asnumpy()\n"
    assert codes(lint(MXNET + code)) == ["GS105", "GS204"]


def test_one_wait_per_step_of_a_loop_that_counts_is_right(lint):
    code = "for i in range(9):\n    y = nd.dot(x, x)\n    y.backward()\n    nd.waitall()\n"
    assert lint(MXNET + code) == []


def test_a_method_that_only_mxnet_has_shows_its_array(lint):
    code = "def small(net, x):\n    for i in range(9):\n        net(x).asnumpy()\n"
    assert codes(lint(MXNET + code)) == ["GS204"]
    assert lint(code) == []


TRAINING = """
from mxnet import autograd, gluon
net = gluon.nn.Dense(4)
loss = gluon.loss.L2Loss()
trainer = gluon.Trainer(net.collect_params(), "sgd")
def train(batches):
    for x, y in batches:
        with autograd.record():
            l = loss(net(x), y)
        l.backward()
        trainer.step(x.shape[0])
"""


def test_a_training_loop_of_mxnet_without_any_wait_is_a_note(lint):
    (finding,) = lint(MXNET + TRAINING)
    assert (finding.code, finding.heat, finding.framework, finding.span.line) == ("GS704", Heat.EPOCH, "mxnet", 11)


@pytest.mark.parametrize("line", ["nd.waitall()", "l.wait_to_read()", "total += float(l.mean())", "metric.update(l)"])
def test_a_training_loop_of_mxnet_that_waits_or_may_wait_is_silent(lint, line):
    assert lint(f"{MXNET}{TRAINING}        {line}\n") == []


def test_elementwise_functions_of_numbers_stay_on_the_host(lint):
    code = "for x in batches:\n    nd.dot(x, x).asnumpy()\n    print(float(np.sqrt(64)), np.exp(-1))\n"
    assert lint(MXNET + code) == []


def test_elementwise_functions_of_arrays_wait(lint):
    code = "for x in batches:\n    nd.dot(x, x).asnumpy()\n    print(np.sqrt(np.ones(4)))\n"
    assert codes(lint(MXNET + code)) == ["GS206"]


@pytest.mark.parametrize("before", RAY_LOOPS)
def test_the_fix_of_ray_get_in_a_loop(lint, with_fix, before):
    found = lint(f"{RAY}out = []\n{before}")
    (fix,) = [one.fix for one in found]
    assert with_fix(f"{RAY}out = []\n{before}", fix) == f"{RAY}out = []\n{RAY_LOOPS[before]}"
    assert (fix.safe, bool(fix.hazard)) == (False, True)


@pytest.mark.parametrize("code", RAY_KEPT)
def test_a_loop_that_does_more_with_its_references_is_left_alone(lint, code):
    found = lint(f"{RAY}out = []\n{code}")
    assert [one.fix for one in found] == [None]


TASKS = {
    "a task": ("@ray.remote\ndef score(x):\n    return net(x).cpu()\n", Heat.STEP),
    "a task with resources": ("@ray.remote(num_gpus=1)\ndef score(x):\n    return net(x).cpu()\n", Heat.STEP),
    "a function": ("def score(x):\n    return net(x).cpu()\n", Heat.ONCE),
    "a method that is called remotely": (
        "@ray.remote\nclass A:\n    def score(self, x):\n        return net(x).cpu()\nA.remote().score.remote(1)\n",
        Heat.STEP,
    ),
    "the creation of an actor": (
        "@ray.remote\nclass A:\n    def __init__(self, x):\n        self.y = net(x).cpu()\nA.remote(1)\n",
        Heat.ONCE,
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_of_ray_waits_once_per_call(lint, name):
    code, heat = TASKS[name]
    (finding,) = lint(f"import ray\nimport torch\nnet = torch.nn.Linear(4, 4).cuda()\n{code}")
    assert (finding.code, finding.heat) == ("GS202", heat)


TENSORFLOW = """
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(4)])
opt = tf.keras.optimizers.SGD()
{decorator}
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
"""
LOOP = "for x, y in dataset:\n    step(x, y)\n"
EAGER = {
    "nothing around it": ("", LOOP, True),
    "a decorator": ("@tf.function", LOOP, False),
    "a decorator with arguments": ("@tf.function(jit_compile=True)", LOOP, False),
    "a function that traces it": ("", "fast = tf.function(step)\nfor x, y in dataset:\n    fast(x, y)\n", False),
    "a traced caller": (
        "", "@tf.function\ndef many(d):\n    for x, y in d:\n        step(x, y)\nmany(dataset)\n", False,
    ),
    "a distribution strategy": (
        "", "@tf.function\ndef each(x):\n    strategy.run(step, args=x)\nfor x in d:\n    each(x)\n", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EAGER)
def test_a_training_step_of_tensorflow_that_runs_eagerly(lint, name):
    decorator, loop, expected = EAGER[name]
    found = [one for one in lint(TENSORFLOW.format(decorator=decorator) + loop) if one.code == "GS712"]
    assert [(one.span.line, one.heat) for one in found] == ([(9, Heat.STEP)] if expected else [])


def test_the_state_of_flax_is_no_optimizer_of_tensorflow(lint):
    code = "import jax\nimport tensorflow as tf\nfor x in data:\n    state = state.apply_gradients(grads=x)\n"
    assert lint(code) == []


def test_a_loss_that_is_differentiated_is_a_tensor(lint):
    code = (
        "import tensorflow as tf\ndef train(model, criterion, data):\n    for x in data:\n"
        "        with tf.GradientTape() as tape:\n            loss = criterion(model(x))\n"
        "        grads = tape.gradient(loss, model.weights)\n        print(loss.numpy(), x.numpy())\n"
    )
    (finding,) = lint(code)
    assert (finding.code, finding.span.column) == ("GS204", 20)


def test_a_kernel_of_pallas_gives_a_device_array(lint):
    code = (
        "import jax\nfrom jax.experimental import pallas as pl\ndef kernel(a, b):\n    b[...] = a[...]\n"
        "for x in data:\n    y = pl.pallas_call(kernel, out_shape=x)(x)\n    print(float(y))\n"
    )
    (finding,) = lint(code)
    assert (finding.code, finding.span.line) == ("GS205", 7)
