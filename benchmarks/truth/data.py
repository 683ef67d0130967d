"""Data sets that are made up, in the files that programs look for: noise, with the shapes of the real ones."""

from __future__ import annotations

import csv
import json
import random
import wave
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORDS = [f"w{number}" for number in range(300)]


def _sentence(chance: random.Random, least: int = 6, most: int = 24) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(chance.randint(least, most)))


def image_folder(folder: Path, size: int = 64, number: int = 16) -> None:
    """``train``, ``val`` and ``test``, each with two classes of JPEG files."""
    from PIL import Image

    chance = np.random.default_rng(0)
    for part in ("train", "val", "test"):
        for kind in ("n01", "n02"):
            place = folder / part / kind
            place.mkdir(parents=True, exist_ok=True)
            for index in range(number):
                Image.fromarray(chance.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(place / f"{index}.JPEG")


def images(folder: Path, size: int = 80, number: int = 24) -> None:
    """JPEG files in one folder."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for index in range(number):
        Image.fromarray(chance.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(folder / f"{index:03}.jpg")


def names(folder: Path) -> None:
    """``names.txt``, a word in each line."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    words = [
        "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(3, 9))) for _ in range(600)
    ]
    (folder / "names.txt").write_text("\n".join(words) + "\n")


def texts(folder: Path) -> None:
    """``train.txt``, ``valid.txt`` and ``test.txt``, a sentence in each line."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    for name, lines in (("train", 400), ("valid", 60), ("test", 60)):
        (folder / f"{name}.txt").write_text("\n".join(_sentence(chance) for _ in range(lines)) + "\n")


def ratings(folder: Path) -> None:
    """``ratings.csv`` and ``ratings.dat`` as MovieLens has them, and ``sequences.txt``: user and item, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    rows = [
        (user, chance.randint(1, 80), chance.randint(1, 5), 10_000 + index)
        for user in range(1, 61)
        for index in range(12)
    ]
    with (folder / "ratings.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("userId", "movieId", "rating", "timestamp"))
        writer.writerows(rows)
    (folder / "ratings.dat").write_text("".join("::".join(map(str, row)) + "\n" for row in rows))
    (folder / "sequences.txt").write_text("".join(f"{user} {item}\n" for user, item, _, _ in rows))


def cora(folder: Path) -> None:
    """``cora.content`` and ``cora.cites``, as many papers as there are in Cora, with fewer words."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    kinds = ["Theory", "Rule_Learning", "Case_Based", "Neural_Networks", "Genetic_Algorithms", "Other", "Methods"]
    with (folder / "cora.content").open("w") as file:
        for paper in range(2708):
            words = " ".join(str(int(chance.random() < 0.02)) for _ in range(40))
            file.write(f"{paper} {words} {chance.choice(kinds)}\n")
    with (folder / "cora.cites").open("w") as file:
        for _ in range(5429):
            file.write(f"{chance.randrange(2708)} {chance.randrange(2708)}\n")


def coco(folder: Path, number: int = 12, size: int = 96) -> None:
    """``images/{train,val}2017`` and ``annotations/instances_{train,val}2017.json``, with boxes of three classes."""
    from PIL import Image

    chance = np.random.default_rng(0)
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for part in ("train2017", "val2017"):
        place = folder / "images" / part
        place.mkdir(parents=True, exist_ok=True)
        listed, boxes = [], []
        for index in range(number):
            name = f"{index:012}.jpg"
            Image.fromarray(chance.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(place / name)
            listed.append({"id": index, "file_name": name, "width": size, "height": size})
            for _ in range(3):
                left, top = map(int, chance.integers(0, size // 2, 2))
                width, height = map(int, chance.integers(size // 6, size // 3, 2))
                box = [left, top, width, height]
                boxes.append(
                    {
                        "id": len(boxes) + 1,
                        "image_id": index,
                        "category_id": int(chance.integers(1, 4)),
                        "bbox": box,
                        "area": width * height,
                        "iscrowd": 0,
                        "segmentation": [[left, top, left + width, top, left + width, top + height]],
                    }
                )
        categories = [{"id": number, "name": name, "supercategory": "thing"} for number, name in enumerate("abc", 1)]
        document = {"images": listed, "annotations": boxes, "categories": categories, "info": {}, "licenses": []}
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(document))


def sounds(folder: Path, number: int = 16, rate: int = 22_050, seconds: float = 1.5) -> None:
    """WAV files of noise, and ``list.txt``: path and text of each."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    letters = random.Random(0)
    rows = []
    for index in range(number):
        path = folder / f"{index:03}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes((chance.standard_normal(int(rate * seconds)) * 4000).astype(np.int16).tobytes())
        rows.append(f"{path}|{' '.join(letters.choice(['one', 'two', 'three']) for _ in range(6))}")
    (folder / "list.txt").write_text("\n".join(rows) + "\n")


def point_clouds(folder: Path) -> None:
    """ModelNet's layout: ``SHAPE/SHAPE_0001.txt`` with points and normals, and the lists of names."""
    chance = np.random.default_rng(0)
    (folder).mkdir(parents=True, exist_ok=True)
    shapes = ["bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet"]
    known = [f"{shape}_{index:04}" for shape in shapes for index in range(1, 7)]
    for name in known:
        place = folder / name.rsplit("_", 1)[0]
        place.mkdir(exist_ok=True)
        np.savetxt(place / f"{name}.txt", chance.standard_normal((1100, 6)), fmt="%.5f", delimiter=",")
    (folder / "modelnet10_shape_names.txt").write_text("\n".join(shapes) + "\n")
    for part in ("train", "test"):
        (folder / f"modelnet10_{part}.txt").write_text("\n".join(known) + "\n")


def series(folder: Path) -> None:
    """``series.csv``: a date and seven columns of noise, hourly."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    start = np.datetime64("2016-07-01T00:00")
    columns = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
    values = chance.standard_normal((600, 7)).cumsum(0)
    rows = [
        f"{str(start + np.timedelta64(hour, 'h')).replace('T', ' ')}:00," + ",".join(f"{value:.4f}" for value in row)
        for hour, row in enumerate(values)
    ]
    (folder / "series.csv").write_text("date," + ",".join(columns) + "\n" + "\n".join(rows) + "\n")


def tokens(folder: Path) -> None:
    """``train.bin``, ``val.bin`` and ``data00.bin`` to ``data02.bin``, token ids below 256 as uint16."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val", "data00", "data01", "data02"):
        np.random.default_rng(0).integers(0, 256, 20_000, dtype=np.uint16).tofile(folder / f"{name}.bin")


def boxes(folder: Path) -> None:
    """``boxes.csv``, a file and a box of a class in each line, and ``classes.csv``."""
    images(folder, 128, 12)
    chance = random.Random(0)
    rows = []
    for index in range(12):
        for _ in range(3):
            left, top = chance.randint(0, 60), chance.randint(0, 60)
            rows.append(f"{folder / f'{index:03}.jpg'},{left},{top},{left + 40},{top + 50},{chance.choice('abc')}")
    (folder / "boxes.csv").write_text("\n".join(rows) + "\n")
    (folder / "classes.csv").write_text("a,0\nb,1\nc,2\n")


def yolo(folder: Path, number: int = 16, size: int = 64) -> None:
    """``images`` and ``labels`` of ``train`` and ``val``, ``data.yaml``, and lists of files."""
    from PIL import Image

    chance = np.random.default_rng(0)
    for part in ("train", "val"):
        pictures, labels = folder / "images" / part, folder / "labels" / part
        pictures.mkdir(parents=True, exist_ok=True)
        labels.mkdir(parents=True, exist_ok=True)
        for index in range(number):
            Image.fromarray(chance.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(pictures / f"{index}.jpg")
            rows = [(chance.integers(3), *chance.uniform(0.3, 0.7, 2), *chance.uniform(0.1, 0.5, 2)) for _ in range(3)]
            (labels / f"{index}.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    place = folder.absolute()
    (folder / "data.yaml").write_text(
        f"train: {place}/images/train\nval: {place}/images/val\nnc: 3\nnames: ['a', 'b', 'c']\n"
    )


MAKERS: dict[str, Callable[[Path], None]] = {
    "boxes": boxes,
    "coco": coco,
    "cora": cora,
    "image_folder": image_folder,
    "images": images,
    "names": names,
    "point_clouds": point_clouds,
    "ratings": ratings,
    "series": series,
    "sounds": sounds,
    "texts": texts,
    "tokens": tokens,
    "yolo": yolo,
}
