"""Syncs per token, timestep and request of small programs that serve, by our count and by that of torch.profiler.

usage: serving_syncs.py [--json OUT] [--requests N]

- decode: a language model generates tokens and tests each of them for the end; `decode, fixed` tests every eighth.
- denoise: a pipeline runs over timesteps whose scheduler reads the schedule; `denoise, fixed` read it before the loop.
- serve: an HTTP server with a thread for each connection, under load from several clients.

Each program runs twice: in a region whose steps end where a function returns (`record(step_at=...)`), and under
torch.profiler. On a GPU, the first counts calls into the driver by CUPTI. Without one, it runs on the simulated device,
where the profiler sees no calls of the runtime, and its column is null.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import urllib.request
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from independent_count import _profile

from pytest_gpusync import record, simulated_cuda
from pytest_gpusync.machine import devices
from pytest_gpusync.model.site_counts import syncs_per_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS = 32
TIMESTEPS = 20
CLIENTS = 4
END = 2


class Engine:
    """A tiny language model without attention: what matters is what the host reads of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(64, 32).cuda()
        self.head = torch.nn.Linear(32, 64).cuda()

    @torch.inference_mode()
    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Append a token to each sequence."""
        logits = self.head(self.embedding(ids).mean(1))
        return torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)

    def generate(self, ids: torch.Tensor, test_every: int = 1) -> Iterator[torch.Tensor]:
        """Yield the sequences after each token, until all have ended."""
        for token in range(TOKENS):
            ids = self.step(ids)
            if token % test_every == 0 and (ids[:, -1] == END).all():
                return
            if test_every == 1:
                ids[0, -1].item()  # a stream shows each token at once
            yield ids

    def answer(self, numbers: list[int]) -> list[int]:
        """Answer a request: one copy there, one back."""
        ids = torch.tensor([numbers], device="cuda")
        for _ in range(4):
            ids = self.step(ids)
        return ids[0].tolist()


class Scheduler:
    """The scheduler of Euler's method, on a schedule that lies on the device."""

    def __init__(self, on_host: bool) -> None:
        self.sigmas = torch.linspace(1, 0, TIMESTEPS + 1, device="cuda")
        self.numbers = self.sigmas.tolist() if on_host else None
        self.index = 0

    def step(self, noise: torch.Tensor, t: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """One step of the method."""
        i = self.index % TIMESTEPS
        self.index += 1
        if self.numbers is not None:
            return sample + noise * (self.numbers[i + 1] - self.numbers[i])
        if self.sigmas[i] == 0:
            return sample
        return sample + noise * (self.sigmas[i + 1] - self.sigmas[i]).item()


@torch.inference_mode()
def denoise(model: torch.nn.Module, scheduler: Scheduler, sample: torch.Tensor) -> torch.Tensor:
    """Run the pipeline once."""
    for t in scheduler.sigmas[:-1]:
        sample = scheduler.step(model(sample), t, sample)
    return sample


class Program(NamedTuple):
    """A program, and what its steps are."""

    name: str
    unit: str
    step_at: str
    run: Callable[[int], None]
    """Answers so many requests."""


def programs() -> list[Program]:
    """The programs, with their models on the device."""
    engine, ids = Engine(), torch.zeros(2, 4, dtype=torch.long, device="cuda")
    model, sample = torch.nn.Linear(32, 32).cuda(), torch.zeros(2, 32, device="cuda")

    def decode(requests: int, test_every: int = 1) -> None:
        for _ in range(requests):
            for _ in engine.generate(ids, test_every):
                pass

    def sampled(requests: int, on_host: bool = False) -> None:
        scheduler = Scheduler(on_host)
        for _ in range(requests):
            denoise(model, scheduler, sample)

    return [
        Program("decode", "token", "Engine.generate", decode),
        Program("decode, fixed", "token", "Engine.generate", lambda requests: decode(requests, 8)),
        Program("denoise", "timestep", "Scheduler.step", sampled),
        Program("denoise, fixed", "timestep", "Scheduler.step", lambda requests: sampled(requests, on_host=True)),
        Program("serve", "request", "Engine.answer", lambda requests: _serve(engine, requests)),
    ]


def _serve(engine: Engine, requests: int) -> None:
    """Serve over HTTP while several clients ask."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            numbers = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(engine.answer(numbers)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask() -> None:
        for _ in range(requests):
            url = f"http://127.0.0.1:{server.server_address[1]}/"
            with urllib.request.urlopen(urllib.request.Request(url, data=b"[1, 2, 3]")) as response:
                assert response.status == 200

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    server.shutdown()
    server.server_close()


def measure(program: Program, requests: int, own: Any) -> dict[str, Any]:
    """Count the syncs of a program in both ways."""
    program.run(requests)  # initializes libraries, for as many threads as there will be
    torch.cuda.synchronize()
    with record(program.name, warmup=0, all_threads=True, step_at=program.step_at) as region:
        program.run(requests)
    measured = region.result()
    if measured.problem is not None:
        raise SystemExit(f"{program.name}: {measured.problem}")
    counts = syncs_per_step(measured)
    profiled = None if own is None else _profile(lambda: program.run(requests)) - own
    return {
        "program": program.name,
        "unit": program.unit,
        "steps": measured.steps,
        "syncs": region.syncs,
        "syncs_per_step": {
            "mean": round(region.syncs / measured.steps, 3),
            "median": median(counts),
            "max": max(counts),
        },
        "lines": [f"{Path(site.site.path).name}:{site.site.line}" for site in region.sites],
        "recorder": measured.environment.recorder,
        "coverage": measured.environment.coverage,
        "profiler": None if profiled is None else dict(profiled),
        "profiler_per_step": None if profiled is None else round(profiled.total() / measured.steps, 3),
    }


def main() -> int:
    """Measure all programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures to a file")
    parser.add_argument("--requests", type=int, default=8, help="requests of each program, and of each client")
    options = parser.parse_args()
    has_gpu = devices.detect().kind == "cuda"
    with nullcontext() if has_gpu else simulated_cuda():
        own = None
        if has_gpu:
            torch.zeros(1, device="cuda").item()
            _profile(lambda: None)  # the first profile of a process initializes CUPTI
            own = _profile(lambda: None)
        found = [measure(program, options.requests, own) for program in programs()]
        device = torch.cuda.get_device_name() if has_gpu else "simulated"
    print(f"torch {torch.__version__}, {device}, recorder {found[0]['recorder']}, coverage {found[0]['coverage']}")
    for one in found:
        figures, beside = one["syncs_per_step"], one["profiler_per_step"]
        print(
            f"{one['program']:15} {figures['mean']:6.3f} syncs per {one['unit']} (median {figures['median']:g}, worst "
            f"{figures['max']}; {one['syncs']} in {one['steps']} {one['unit']}s); profiler: {beside}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps({"torch": torch.__version__, "device": device, "programs": found}))
    if has_gpu and any(one["syncs"] != sum(one["profiler"].values()) for one in found):
        print("the two counts differ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
