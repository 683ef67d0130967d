"""Data for nanoGPT: random characters in the form of its shakespeare_char."""

import pickle
import random
import sys
from array import array
from pathlib import Path

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
letters = "abcdefghijklmnopqrstuvwxyz .\n"
draw = random.Random(0)
for name, length in (("train.bin", 20_000), ("val.bin", 5_000)):
    (folder / name).write_bytes(array("H", (draw.randrange(len(letters)) for _ in range(length))).tobytes())
numbers = {letter: number for number, letter in enumerate(letters)}
meta = {"vocab_size": len(letters), "stoi": numbers, "itos": {number: letter for letter, number in numbers.items()}}
(folder / "meta.pkl").write_bytes(pickle.dumps(meta))
