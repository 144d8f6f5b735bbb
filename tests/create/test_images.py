"""Images as samples: the result for files made by Pillow and pyarrow, and what is refused in a line."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from distro_node.node.create import images as images_module
from distro_node.node.create.borders import Borders
from distro_node.node.create.corpus import TokenisedCorpus, find_sources, read_corpus
from distro_node.node.create.data_kinds import Images
from distro_node.node.create.images import ImageTokenizer, decode_image
from distro_node.node.create.manifest_file import DataTable, ManifestFile, read_manifest_file
from distro_node.node.create.model_config import complete_denoiser
from distro_node.node.create.rows import BadRow
from distro_node.node.create.task import plan_images
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.trainer.tasks.data import Corpus as StoredCorpus
from distro_node.node.training import task_names
from distro_node.node.training.task_names import ImageSettings
from distro_node.protocol.wire.manifest import DataSpec
from distro_node.protocol.wire.structure import StructureError, to_plain
from PIL import Image

GREY = ImageSettings(size=4, channels=1)
COLOUR = ImageSettings(size=4)
ANIMALS = ImageSettings(size=4, channels=1, classes=("cat", "dog"))
UNET = {"model_type": "unet2d", "block_out_channels": [8, 16]}


def picture(shade: int, mode: str = "L", side: int = 4) -> Image.Image:
    """Return a picture identified by its shade, with one distinct corner."""
    image = Image.new(mode, (side, side), shade if mode == "L" else (shade,) * len(mode))
    image.putpixel((0, 0), 255 - shade if mode == "L" else (255 - shade,) * len(mode))
    return image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG file with this size in its header, and only a few pixels."""
    parts = [b"\x89PNG\r\n\x1a\n"]
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    for name, data in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")):
        checked = name + data
        parts.append(
            struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
        )
    return b"".join(parts)


def shown(made: bytes | BadRow) -> bytes:
    assert isinstance(made, bytes), made
    return made


class Founder:
    """Images in a folder, and the corpus made from them."""

    def __init__(self, root: Path, settings: ImageSettings = GREY) -> None:
        self.root, self.settings = root, settings
        self.folder = root / "images"
        self.folder.mkdir()
        self.data = DataDir(root / "data")
        self.data.create()

    def draw(self, count: int, where: str = "") -> None:
        (self.folder / where).mkdir(exist_ok=True)
        for number in range(count):
            picture(number).save(self.folder / where / f"{number:03}.png")

    def read(self, *paths: Path, **options: Any) -> TokenisedCorpus:
        table: dict[str, Any] = {
            "sequence_length": self.settings.sample_bytes,
            "paths": tuple(map(str, paths or (self.folder,))),
        }
        file = ManifestFile(
            name="x", model={}, task="diffusion", data=DataTable(**(table | options))
        )
        kind = Images(self.settings)
        found = find_sources(file, self.root / "run.toml", (), kind)
        return read_corpus(
            *(file, found, ImageTokenizer(), Borders(), self.data, lambda *_: None), kind=kind
        )

    def samples(self, corpus: TokenisedCorpus) -> tuple[list[bytes], list[bytes]]:
        """Return training and held-out samples as a trainer reads them, without the byte after each."""
        store = BlobStore(self.data.blobs)
        shards, heldout = corpus.store(store, lambda *_: None)
        spec = DataSpec(
            sequence_length=self.settings.sample_bytes,
            token_bytes=1,
            vocabulary=256,
            shards=tuple(shards),
            heldout=heldout,
            tokenizer=store.put(ImageTokenizer.definition),
        )
        assert corpus.samples == spec.samples
        stored = StoredCorpus(spec, store)
        return (
            [each[:-1] for each in stored.training(range(spec.samples))],
            [each[:-1] for each in stored.heldout(range(stored.heldout_samples))],
        )

    def refused(self, words: str, *paths: Path, **options: Any) -> UserError:
        with pytest.raises(UserError) as caught:
            self.read(*paths, **options)
        assert caught.value.code == ExitCode.DATA_MISSING
        assert words in caught.value.problem
        assert "\n" not in caught.value.problem
        assert caught.value.remedy
        return caught.value


def test_a_folder_of_images_becomes_whole_samples(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    founder.draw(60)
    (founder.folder / "notes.txt").write_text("no image")
    (founder.folder / "what.xyz").write_bytes(b"x")
    corpus = founder.read(heldout_fraction=0.2)
    training, heldout = founder.samples(corpus)
    assert 3 <= len(heldout) <= 24
    expected = {picture(number).tobytes() for number in range(60)}
    assert {*training, *heldout} == expected
    assert len(training) + len(heldout) == 60
    lines = "\n".join(corpus.summary.lines())
    assert f"60 files read, 60 images, {len(training)} of them to train on" in lines
    assert "1 without images (notes.txt)" in lines
    assert "1 with an unknown ending (what.xyz)" in lines


def test_a_dry_run_takes_whole_images(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    founder.draw(6)
    store = BlobStore(founder.data.blobs)
    # More than there are, so that some repeat.
    shard = founder.read().store_excerpt(10 * 16 + 1, store)
    assert shard.tokens == 10 * 16 + 1
    spec = DataSpec(
        sequence_length=16,
        token_bytes=1,
        vocabulary=256,
        shards=(shard,),
        heldout=shard,
        tokenizer=store.put(ImageTokenizer.definition),
    )
    known = {picture(number).tobytes() for number in range(6)}
    assert {each[:-1] for each in StoredCorpus(spec, store).training(range(10))} <= known


def test_the_same_images_make_the_same_shards(tmp_path: Path) -> None:
    made = []
    for name in "ab":
        (tmp_path / name).mkdir()
        founder = Founder(tmp_path / name)
        founder.draw(20)
        made.append(founder.read().store(BlobStore(founder.data.blobs), lambda *_: None))
    assert made[0] == made[1]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_every_kind_is_read_by_its_own_head(tmp_path: Path, kind: str) -> None:
    image = Image.new("RGB", (16, 16), (200, 100, 50))
    pixels = np.frombuffer(shown(decode_image(encoded(image, kind), COLOUR)), np.uint8).reshape(
        4, 4, 3
    )
    assert np.abs(pixels.astype(int) - (200, 100, 50)).max() <= 6
    grey = np.frombuffer(shown(decode_image(encoded(image, kind), GREY)), np.uint8)
    assert np.abs(grey.astype(int) - 124).max() <= 6


def test_the_middle_square_is_taken_and_scaled() -> None:
    wide = Image.new("L", (30, 10), 0)
    wide.paste(255, (10, 0, 20, 10))
    assert shown(decode_image(encoded(wide), GREY)) == bytes([255]) * 16


def test_an_image_is_turned_as_its_camera_states() -> None:
    image = Image.new("RGB", (16, 16), "black")
    image.paste("white", (0, 0, 16, 8))
    turned = Image.Exif()
    turned[0x0112] = 3
    as_it_is, upside_down = (
        np.frombuffer(shown(decode_image(encoded(image, "JPEG", exif=exif), GREY)), np.uint8)
        for exif in (Image.Exif(), turned)
    )
    assert as_it_is.reshape(4, 4)[0].min() > 200 > 60 > as_it_is.reshape(4, 4)[3].max()
    assert upside_down.reshape(4, 4)[3].min() > 200 > 60 > upside_down.reshape(4, 4)[0].max()


def test_what_shines_through_is_white_and_sixteen_bits_become_eight() -> None:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert shown(decode_image(encoded(clear), COLOUR)) == bytes([255]) * 48
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([9, 9, 9])
    assert shown(decode_image(encoded(palette), GREY)) == bytes([9]) * 16
    assert shown(decode_image(encoded(palette, transparency=0), GREY)) == bytes([255]) * 16
    deep = Image.fromarray(np.full((8, 8), 0x8F12, np.uint16))
    assert deep.mode == "I;16"
    assert shown(decode_image(encoded(deep), GREY)) == bytes([0x8F]) * 16


def test_what_is_no_image_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    whole = encoded(Image.fromarray(noise))
    for data, words in (
        (b"", "is not an image of a known kind"),
        (b"GIF89a" + bytes(100), "is not an image of a known kind (PNG, JPEG, WEBP, BMP)"),
        (whole[: len(whole) // 2], "is a damaged image"),
        (whole[:40], "is not an image of a known kind"),
        (encoded(Image.fromarray(noise), "JPEG")[:-500], "is a damaged image"),
        (encoded(Image.fromarray(noise), "WEBP")[:-500], "is "),
    ):
        made = decode_image(data, GREY)
        assert isinstance(made, BadRow)
        assert words in made.problem
        assert "\n" not in made.problem
    monkeypatch.setattr(images_module, "MAX_IMAGE_BYTES", 1 << 10)
    assert decode_image(whole, GREY) == BadRow("has more than 0 MB")


def test_a_bomb_is_refused_by_its_head_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: object) -> None:
        pytest.fail("its pixels were read")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", loaded)
    canvas = struct.pack("<I", 16_382)[:3] * 2
    webp = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas
    for data in (
        png_of_size(9_000, 9_000),
        png_of_size(12_000, 12_000),
        png_of_size(60_000, 60_000),
        webp,
    ):
        made = decode_image(data, GREY)
        assert isinstance(made, BadRow)
        assert "the limit is 67,108,864" in made.problem


def test_bad_images_are_counted_and_named(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    founder.draw(20)
    (founder.folder / "100.png").write_bytes(encoded(picture(3))[:50])
    (founder.folder / "101.jpg").write_text("a page that says: not found")
    error = founder.refused("100.png: the image is a damaged image")
    assert "exclude" in error.remedy
    report = json.loads((founder.data.logs / "create.json").read_bytes())
    assert [(row["file"], row["line"]) for row in report["bad_rows"]] == [("100.png", None)]
    founder.refused("; 2 images are bad, and max_bad is 1", max_bad=1)
    corpus = founder.read(max_bad=2)
    assert corpus.summary.bad == 2
    lines = "\n".join(corpus.summary.lines())
    assert "left out: 2 bad images:" in lines
    assert "    101.jpg: is not an image of a known kind" in lines
    training, heldout = founder.samples(corpus)
    assert len(training) + len(heldout) == 20


def test_folders_are_classes(tmp_path: Path) -> None:
    founder = Founder(tmp_path, ANIMALS)
    founder.draw(10, "dog")
    founder.draw(10, "cat")
    training, heldout = founder.samples(founder.read())
    both = [*training, *heldout]
    assert len(both) == 20
    assert {row[0] for row in both} == {0, 1}
    assert sorted(row[1:] for row in both if row[0]) == sorted(
        picture(number).tobytes() for number in range(10)
    )
    founder.draw(1, "bird")
    founder.refused("000.png: the image is of a class that is not in `classes`: 'bird'")
    (founder.folder / "bird" / "000.png").rename(founder.folder / "000.png")
    founder.refused("000.png: the image is not in a folder that is named after a class")


def test_many_classes_take_two_bytes() -> None:
    many = ImageSettings(size=4, channels=1, classes=tuple(map(str, range(300))))
    assert (many.label_bytes, many.sample_bytes) == (2, 18)
    with pytest.raises(ValueError, match="twice"):
        ImageSettings(size=4, classes=("a", "a"))


def table(kind: str, labels: bool = True) -> pyarrow.Table:
    """Return a table of ten images with their classes, in the form that several programs write."""
    cells: Any = [encoded(picture(number)) for number in range(10)]
    classes: Any = [number % 2 for number in range(10)]
    if kind == "datasets":
        cells = [{"bytes": cell, "path": None} for cell in cells]
    if kind == "names":
        names = pyarrow.array([("cat", "dog")[number] for number in classes])
        classes = names.dictionary_encode()
    columns = {"image": cells, "label": classes}
    return pyarrow.table(columns if labels else {"image": cells})


@pytest.mark.parametrize("kind", ["bytes", "datasets", "names"])
def test_parquet_holds_images_and_classes(tmp_path: Path, kind: str) -> None:
    founder = Founder(tmp_path, ANIMALS)
    pyarrow.parquet.write_table(table(kind), founder.folder / "a.parquet")
    training, heldout = founder.samples(founder.read())
    assert sorted([*training, *heldout]) == sorted(
        bytes([number % 2]) + picture(number).tobytes() for number in range(10)
    )


def test_arrow_holds_images(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    made = table("bytes", labels=False)
    with (
        pyarrow.OSFile(str(founder.folder / "a.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, made.schema) as writer,
    ):
        writer.write_table(made)
    training, heldout = founder.samples(founder.read())
    assert len({*training, *heldout}) == 10


def test_columns_that_hold_no_images_are_refused(tmp_path: Path) -> None:
    founder = Founder(tmp_path, ANIMALS)
    file = founder.folder / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"image": ["x"], "label": [0]}), file)
    founder.refused("holds string in the column 'image', not images")
    pyarrow.parquet.write_table(pyarrow.table({"image": [b"x"], "label": [0.5]}), file)
    founder.refused("holds double in the column 'label', not images")
    pyarrow.parquet.write_table(pyarrow.table({"picture": [b"x"], "label": [0]}), file)
    founder.refused("has no column 'image' (it has: picture, label)")
    good = [encoded(picture(number)) for number in range(3)]
    cells, labels = [*good, None, b"x", good[0]], [0, 1, 0, 0, 1, 2]
    pyarrow.parquet.write_table(pyarrow.table({"image": cells, "label": labels}), file)
    founder.refused("a.parquet, line 4: the row holds no image in the column 'image'")
    founder.refused("line 5: the row is not an image of a known kind", max_bad=1)
    founder.refused("line 6: the row is of a class that is not in `classes`: '2'", max_bad=2)
    assert founder.read(max_bad=3).summary.documents == 3
    file.write_bytes(b"PAR1" + bytes(20))
    founder.refused("is not a valid Parquet file")


def test_places_without_images_are_refused(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    (founder.folder / "a.txt").write_text("x")
    founder.refused("there are no training images in")
    founder.refused("holds no images, which this task learns from", founder.folder / "a.txt")
    picture(1).save(founder.folder / "one.png")
    founder.refused("there is no held-out image")
    with pytest.raises(UserError, match="cannot be taken from the hub as images"):
        founder.read(paths=("hf://a/b",))


def test_a_weighted_mixture_keeps_images_whole(tmp_path: Path) -> None:
    from distro_node.node.create.manifest_file import WeightedTable

    founder = Founder(tmp_path)
    founder.draw(30, "a")
    founder.draw(50, "b")
    sources = tuple(
        WeightedTable(name=name, weight=weight, paths=(str(founder.folder / name),))
        for name, weight in (("a", 0.3), ("b", 0.7))
    )
    corpus = founder.read(paths=(), source=sources)
    training, heldout = founder.samples(corpus)
    known = {picture(number).tobytes() for number in range(50)}
    assert {*training, *heldout} <= known
    assert len(training) > 40


def test_text_is_what_other_tasks_take(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    founder.draw(2)
    (founder.folder / "a.txt").write_text("some text")
    file = ManifestFile(
        name="x", model={}, data=DataTable(sequence_length=4, paths=(str(founder.folder),))
    )
    found = find_sources(file, tmp_path / "run.toml", ())
    assert [each.name.name for each in found[0].files] == ["a.txt"]
    assert found[0].skipped.reasons == {"with an unknown ending": (2, ["000.png", "001.png"])}


FILE = """
name = "x"
task = "diffusion"
{above}
[model]
model_type = "unet2d"
block_out_channels = [8, 16]
[task_settings]
size = 8
{settings}
[data]
{data}
"""


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"data": "sequence_length = 64"}, "data.sequence_length: follows from the size"),
        ({"data": 'tokenizer = "bytes"'}, "data.tokenizer: is for text"),
        ({"data": 'attention = "document"'}, "data.attention: is for text"),
        ({"data": 'text = "body"'}, "name the column of images with `image`"),
        ({"data": 'label = "kind"'}, "`label` is given, but [task_settings] has no `classes`"),
        ({"settings": "channels = 4"}, "task_settings.channels"),
        ({"settings": 'schedule = "square"'}, "task_settings.schedule"),
        ({"settings": 'classes = ["a", "a"]'}, "task_settings: classes: a name occurs twice"),
        ({"settings": "sizes = 9"}, "did you mean 'size'?"),
    ],
)
def test_what_does_not_go_with_images_is_refused(
    tmp_path: Path, parts: dict[str, str], words: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE.format(**({"above": "", "settings": "", "data": ""} | parts)))

    def read() -> None:
        file = read_manifest_file(path)
        find_sources(file, path, (tmp_path,), Images(plan_images(file, path)))

    with pytest.raises(UserError) as caught:
        read()
    assert caught.value.code == ExitCode.MANIFEST
    assert words in caught.value.problem
    assert "\n" not in caught.value.problem


def test_images_belong_to_their_task(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = 'name = "x"\n[model]\nmodel_type = "llama"\n[data]\n'
    path.write_text(text)
    with pytest.raises(UserError, match="data: the key 'sequence_length' is missing"):
        read_manifest_file(path)
    for key in ('image = "x"', 'label = "x"', 'format = "image"'):
        path.write_text(f"{text}sequence_length = 8\n{key}\n")
        with pytest.raises(UserError, match="to a task that learns from images"):
            find_sources(read_manifest_file(path), path, (tmp_path,))


def test_without_its_packages_the_task_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_names, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        task_names.require_task("diffusion")
    assert caught.value.code == ExitCode.NO_TASK
    assert "needs the package diffusers" in caught.value.problem
    assert "distro-node[train,diffusion]" in caught.value.remedy


def test_a_configuration_is_completed_from_the_images() -> None:
    made = complete_denoiser(dict(UNET), ANIMALS)
    assert made["sample_size"] == 4
    assert (made["in_channels"], made["out_channels"], made["num_class_embeds"]) == (1, 1, 2)
    assert made["down_block_types"] == ["DownBlock2D", "AttnDownBlock2D"]
    assert made["up_block_types"] == ["AttnUpBlock2D", "UpBlock2D"]
    assert complete_denoiser(made, ANIMALS) == made
    assert "num_class_embeds" not in complete_denoiser(dict(UNET), GREY)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama"}, "'llama' takes no images; these do: unet2d"),
        ({"model_type": None}, "'model_type' is missing"),
        ({"block_out_channels": None}, "'block_out_channels' is missing"),
        ({"block_out_channels": []}, "has 1 items, but block_out_channels has 0"),
        ({"block_out_channels": [8, 12]}, "8 does not divide the 12"),
        ({"block_out_channels": [8, 8192]}, "expected a whole number from 1 to 4096"),
        ({"block_out_channels": [8] * 9}, "expected a list of at most 8"),
        ({"block_out_channels": [8] * 4}, "4 pixels are not a multiple of 8"),
        ({"norm_num_groups": 1, "attention_head_dim": 1, "block_out_channels": [7]}, "odd"),
        ({"down_block_types": ["DownBlock2D"]}, "has 1 items, but block_out_channels has 2"),
        ({"down_block_types": ["os.system"] * 2}, "expected one of AttnDownBlock2D, DownBlock2D"),
        ({"dropout": 0.1}, "expected 0, got 0.1"),
        ({"layers_per_block": 10**9}, "from 1 to 8"),
        ({"sample_size": 8}, "follows from [task_settings]"),
        ({"num_class_embeds": 3}, "follows from [task_settings]"),
        ({"hidden_size": 3}, "unet2d has no key 'hidden_size'"),
    ],
)
def test_configurations_that_cannot_be_meant_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(StructureError) as caught:
        complete_denoiser(UNET | changes, GREY)
    assert words in str(caught.value)


def test_settings_are_shown_in_plain_values() -> None:
    plain = to_plain(ANIMALS, named=True)
    assert plain == {
        "size": 4,
        "channels": 1,
        "classes": ["cat", "dog"],
        "schedule": "cosine",
        "steps": 1000,
    }
    assert task_names.built_in_settings("diffusion", plain) == ANIMALS
