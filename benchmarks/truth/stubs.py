"""Stand-ins for what programs expect around them: data sets, environments, packages. Everything is made up.

The ``before`` of a run calls what it needs: ``import stubs; stubs.vision_data(96)``.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

if TYPE_CHECKING:
    from collections.abc import Callable

_IMAGES = {
    "CIFAR10": ((32, 32, 3), 10),
    "CIFAR100": ((32, 32, 3), 100),
    "SVHN": ((32, 32, 3), 10),
    "STL10": ((96, 96, 3), 10),
    "MNIST": ((28, 28), 10),
    "FashionMNIST": ((28, 28), 10),
    "CelebA": ((64, 64, 3), 10),
}


def modules(*names: str) -> None:
    """Let these modules be imported; whatever is taken from them does nothing."""
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            if path not in sys.modules:
                module = MagicMock(name=path)
                module.__spec__ = importlib.machinery.ModuleSpec(path, None)
                module.__path__ = []
                sys.modules[path] = module


def module(name: str, **contents: Any) -> types.ModuleType:
    """Let a module with these contents be imported."""
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(made).update(contents)
    sys.modules[name] = made
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, made)
    return made


def no_workers() -> None:
    """Let DataLoaders load in the process itself: workers do not touch the device, and take long to start."""
    from torch.utils.data import DataLoader

    init = DataLoader.__init__

    def in_process(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 5:
            args = (*args[:5], 0, *args[6:])
        kwargs.pop("num_workers", None)
        for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
            kwargs.pop(name, None)
        init(self, *args, **kwargs)

    DataLoader.__init__ = in_process  # type: ignore[method-assign]


def batches_of(size: int) -> None:
    """Let no DataLoader give larger batches: some programs take no argument for it."""
    from torch.utils.data import DataLoader

    init = DataLoader.__init__

    def small(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 1:
            args = (args[0], min(args[1], size), *args[2:])
        elif kwargs.get("batch_size"):
            kwargs["batch_size"] = min(kwargs["batch_size"], size)
        init(self, *args, **kwargs)

    DataLoader.__init__ = small  # type: ignore[method-assign]


def no_graphs() -> None:
    """TensorBoard draws no graph of the model: it would trace it."""
    from torch.utils.tensorboard import SummaryWriter

    SummaryWriter.add_graph = lambda *_, **__: None  # type: ignore[method-assign]


def terminal(columns: int = 80) -> None:
    """``stty size`` answers, also without a terminal."""
    import io
    import os

    popen = os.popen
    os.popen = lambda command, *args: io.StringIO(f"24 {columns}") if "stty" in command else popen(command, *args)  # type: ignore[assignment,return-value]


def no_weights() -> None:
    """Pretrained weights are those of a new model: none are downloaded."""
    import torch.hub
    import torch.utils.model_zoo
    import torchvision.models._api as api

    def nothing(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    torch.hub.load_state_dict_from_url = nothing  # type: ignore[assignment]
    torch.utils.model_zoo.load_url = nothing  # type: ignore[assignment]
    api.WeightsEnum.get_state_dict = nothing  # type: ignore[assignment]
    load = torch.nn.Module.load_state_dict

    def load_some(self: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        return load(self, state, *args, **kwargs) if state else None

    torch.nn.Module.load_state_dict = load_some  # type: ignore[method-assign]


def one_rank(module_of_mpi: bool = False) -> None:
    """A job of one rank, as launchers describe it in the environment; with the package mpi4py if wanted."""
    import os
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    if module_of_mpi:
        world = types.SimpleNamespace(
            rank=0, size=1, Get_rank=lambda: 0, Get_size=lambda: 1, bcast=lambda value, root=0: value,
            gather=lambda value, root=0: [value], allgather=lambda value: [value], Barrier=lambda: None,
        )  # fmt: skip
        module("mpi4py", MPI=module("mpi4py.MPI", COMM_WORLD=world))


def keras_callbacks() -> None:
    """The callbacks of TensorFlow's Keras, doing nothing."""

    class Callback:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.history: dict[str, Any] = {}

        def __getattr__(self, name: str) -> Any:
            if name.startswith(("on_", "set_")):
                return lambda *_, **__: None
            raise AttributeError(name)

    names = ("Callback", "CallbackList", "EarlyStopping", "History", "ModelCheckpoint")
    classes = {name: type(name, (Callback,), {}) for name in names}
    modules("tensorflow", "tensorflow.python.keras")
    module("tensorflow.python.keras.callbacks", **classes)
    module("tensorflow.keras.callbacks", **classes)


def language_model(folder: str = "tiny", kind: str = "llama", words: int = 200) -> str:
    """Write a language model with random weights and a tokenizer of words where ``from_pretrained`` finds them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast

    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]
    vocabulary = {word: number for number, word in enumerate([*marks, *(f"w{number}" for number in range(words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", bos_token="<s>", eos_token="</s>", model_max_length=64,
    )  # fmt: skip
    fast.chat_template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
    fast.save_pretrained(folder)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    if kind == "gpt2":
        size = {"n_embd": 16, "n_layer": 1, "n_head": 2}
    elif kind == "llama":
        size["num_key_value_heads"] = 2
    ids = {"bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, vocab_size=len(vocabulary), max_position_embeddings=64, **size, **ids)
    model = (AutoModel if kind == "bert" else AutoModelForCausalLM).from_config(config)
    model.save_pretrained(folder)
    return folder


def sentences(number: int = 64, words: int = 200) -> list[str]:
    """Sentences of the words that :func:`language_model` knows."""
    import random

    chance = random.Random(0)
    return [" ".join(f"w{chance.randrange(words)}" for _ in range(chance.randint(4, 12))) for _ in range(number)]


def old_numpy() -> None:
    """Names that NumPy had before 1.24 and 2.0."""
    import numpy as np

    kinds = {"float": float, "int": int, "bool": bool, "object": object, "complex": complex, "unicode_": np.str_}
    renamed = {"float_": np.float64, "complex_": np.complex128, "Inf": np.inf, "Infinity": np.inf, "NaN": np.nan}
    functions = {"product": np.prod}
    for name, value in {**kinds, **renamed, **functions}.items():
        if name not in vars(np):
            setattr(np, name, value)


def old_torch() -> None:
    """What older torch took: ``next()`` of loaders, masks of bytes, spectra of real numbers, ``verbose``."""
    import torch
    from torch.utils.data import dataloader

    dataloader._BaseDataLoaderIter.next = dataloader._BaseDataLoaderIter.__next__  # type: ignore[attr-defined]
    from torchvision import utils

    make_grid = utils.make_grid

    def ranged(*args: Any, range: Any = None, **kwargs: Any) -> Any:
        return make_grid(*args, value_range=range, **kwargs)

    utils.make_grid = ranged
    torch.utils.data.Sampler.__init__ = lambda self, *_, **__: None  # type: ignore[method-assign,assignment]
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    init = plateau.__init__

    def quiet(self: Any, *args: Any, verbose: bool = False, **kwargs: Any) -> None:
        init(self, *args, **kwargs)

    plateau.__init__ = quiet  # type: ignore[method-assign]
    stft, fill, fill_ = torch.stft, torch.Tensor.masked_fill, torch.Tensor.masked_fill_

    def real_stft(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("return_complex") is not None:
            return stft(*args, **kwargs)
        return torch.view_as_real(stft(*args, **{**kwargs, "return_complex": True}))

    def as_bool(mask: Any) -> Any:
        return mask.bool() if mask.dtype == torch.uint8 else mask

    torch.stft = real_stft
    torch.Tensor.masked_fill = lambda self, mask, value: fill(self, as_bool(mask), value)  # type: ignore[method-assign,assignment]
    torch.Tensor.masked_fill_ = lambda self, mask, value: fill_(self, as_bool(mask), value)  # type: ignore[method-assign,assignment]


def old_librosa() -> None:
    """librosa's functions with positional arguments, as before 0.10."""
    import librosa
    import librosa.filters
    import librosa.util

    mel, pad_center = librosa.filters.mel, librosa.util.pad_center

    def positional_mel(sr: Any, n_fft: Any, n_mels: Any = 128, fmin: Any = 0.0, fmax: Any = None) -> Any:
        return mel(sr=sr, n_fft=n_fft, n_mels=n_mels, fmin=fmin, fmax=fmax)

    librosa.filters.mel = positional_mel
    librosa.util.pad_center = lambda data, size, **kwargs: pad_center(data, size=size, **kwargs)


def vision_data(train: int = 96, test: int = 32) -> None:
    """Small data sets of noise in place of torchvision's."""
    import numpy as np
    import torch
    import torchvision
    from PIL import Image

    def make(name: str, shape: tuple[int, ...], classes: int) -> type:
        class Noise(torch.utils.data.Dataset[Any]):
            def __init__(self, root: str = "", *args: Any, **kwargs: Any) -> None:
                self.root = root
                self.train = bool(kwargs.get("train", args[0] if args and isinstance(args[0], bool) else True))
                self.split = kwargs.get("split", "train" if self.train else "test")
                given = [argument for argument in args if callable(argument)]
                self.transform = kwargs.get("transform", given[0] if given else None)
                self.target_transform = kwargs.get("target_transform")
                number = train if self.train and self.split != "test" else test
                chance = np.random.default_rng(0)
                pixels = chance.integers(0, 256, (number, *shape), dtype=np.uint8)
                self.data: Any = torch.from_numpy(pixels) if "MNIST" in name else pixels
                self.classes = [str(kind) for kind in range(classes)]
                self.targets: Any = [number % classes for number in range(number)]
                if "MNIST" in name:
                    self.targets = torch.tensor(self.targets)
                self.labels = np.asarray(self.targets)

            def __len__(self) -> int:
                return len(self.data)

            def __getitem__(self, index: int) -> tuple[Any, Any]:
                image: Any = Image.fromarray(np.asarray(self.data[index]))
                target: Any = int(self.targets[index])
                if self.transform is not None:
                    image = self.transform(image)
                if self.target_transform is not None:
                    target = self.target_transform(target)
                return image, target

        Noise.__name__ = Noise.__qualname__ = name
        return Noise

    for name, (shape, classes) in _IMAGES.items():
        noise = make(name, shape, classes)
        setattr(torchvision.datasets, name, noise)
        for source in ("cifar", "mnist", "stl10", "svhn", "celeba"):
            place = sys.modules.get(f"torchvision.datasets.{source}")
            if place is not None and hasattr(place, name):
                setattr(place, name, noise)


def gym(observation: tuple[int, ...] = (8,), actions: int = 2, *, continuous: bool = True, length: int = 40) -> None:
    """The package gym as it was before 0.26, with one environment of noise under every name."""
    import gymnasium
    import numpy as np

    class Env:
        metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
        reward_range = (-1.0, 1.0)

        def __init__(self, *_: Any, **__: Any) -> None:
            self._chance = np.random.default_rng(0)
            self._step = 0
            self._max_episode_steps = length
            self.spec = types.SimpleNamespace(max_episode_steps=length, id="Noise-v0", reward_threshold=1.0)
            self.observation_space: Any = gymnasium.spaces.Box(-1.0, 1.0, observation, np.float32)
            self.action_space: Any = (
                gymnasium.spaces.Box(-1.0, 1.0, (actions,), np.float32)
                if continuous
                else gymnasium.spaces.Discrete(actions)
            )
            self.unwrapped = self

        def _look(self) -> Any:
            return self._chance.standard_normal(observation).astype(np.float32)

        def seed(self, seed: int | None = None) -> list[int | None]:
            return [seed]

        def reset(self, **_: Any) -> Any:
            self._step = 0
            return self._look()

        def step(self, _action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
            self._step += 1
            return self._look(), float(self._chance.random()), self._step >= length, {}

        def render(self, *_: Any, **__: Any) -> None: ...

        def close(self) -> None: ...

        def get_normalized_score(self, score: float) -> float:
            return score

    class Wrapper(Env):
        def __init__(self, env: Any) -> None:
            self.env = env
            vars(self).update({name: value for name, value in vars(env).items() if name != "env"})

        def reset(self, **options: Any) -> Any:
            return self.env.reset(**options)

        def step(self, action: Any) -> Any:
            return self.env.step(action)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.env, name)

    def make(*_: Any, **__: Any) -> Any:
        return Env()

    spaces = gymnasium.spaces
    wrappers = dict.fromkeys(("ObservationWrapper", "ActionWrapper", "RewardWrapper", "Wrapper"), Wrapper)
    module("gym", make=make, Env=Env, spaces=spaces, logger=MagicMock(), __version__="0.21.0", **wrappers)
    sys.modules["gym.spaces"] = spaces
    modules("gym.envs", "gym.utils")
    module(
        "gym.wrappers",
        **{
            name: lambda env, *_, **__: env
            for name in ("TransformObservation", "TransformReward", "TimeLimit", "Monitor")
        },
    )


def offline_data(steps: int = 400, observation: int = 8, actions: int = 2) -> None:
    """The package d4rl, with a data set of noise."""
    import numpy as np

    chance = np.random.default_rng(0)
    look = chance.standard_normal((steps + 1, observation)).astype(np.float32)
    ends = np.arange(steps) % 40 == 39
    data = {
        "observations": look[:-1],
        "next_observations": look[1:],
        "actions": chance.uniform(-0.9, 0.9, (steps, actions)).astype(np.float32),
        "rewards": chance.random(steps).astype(np.float32),
        "terminals": ends,
        "timeouts": np.zeros(steps, bool),
    }
    module("d4rl", qlearning_dataset=lambda *_, **__: {name: value.copy() for name, value in data.items()})


def one_process() -> None:
    """``torch.multiprocessing.spawn`` runs the first rank in this process, which is the one that is measured."""
    import torch.multiprocessing as mp

    def spawn(function: Callable[..., Any], args: tuple[Any, ...] = (), *_: Any, **__: Any) -> None:
        function(0, *args)

    mp.spawn = spawn
    mp.set_start_method = lambda *_, **__: None  # type: ignore[assignment]
