"""Images from a swarm: drawn onto a grid, exported, verified; and the errors of a text swarm.

The swarm is one that `create` made from files and that one member has trained, in memory, as in
`support`.
"""

from __future__ import annotations

import errno
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from distro_node.node.cli.main import main
from distro_node.node.create.new_swarm import CreateSettings, create_swarm
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.results import image_grid as grid_module
from distro_node.node.results.evaluate import EvaluateSettings, evaluate_swarm
from distro_node.node.results.export import ExportSettings, export_swarm
from distro_node.node.results.generate import GenerateSettings, open_writer
from distro_node.node.results.image_grid import GridSettings, columns_for, draw_grid, png
from distro_node.node.results.verify import VerifySettings, verify_model
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.training.task_names import ImageSettings
from distro_node.protocol.wire.blobs import decode_any_blob_list
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.swarm_id import swarm_text
from PIL import Image
from results.support import Made, make_swarm

pytestmark = pytest.mark.usefixtures("logging_as_it_was")

SETTINGS = ImageSettings(size=4, channels=1, classes=("bar", "beam"))
FILE = """
name = "signs"
task = "diffusion"
[task_settings]
size = 4
channels = 1
classes = ["bar", "beam"]
[model]
model_type = "unet2d"
block_out_channels = [8, 16]
layers_per_block = 1
[rounds]
sequences = 4
[data]
paths = ["images"]
"""


def create(root: Path) -> Manifest:
    """Create a founder's swarm from a folder of images, including the trainer process."""
    for number in range(40):
        image = np.full((4, 4), number, np.uint8)
        kind = ("bar", "beam")[number % 2]
        image[(slice(None), 1) if kind == "bar" else 1] = 255
        folder = root / "images" / kind
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    (root / "signs.toml").write_text(FILE)
    settings = CreateSettings(
        manifest=root / "signs.toml", data=(), data_dir=root / "node", passphrase=None
    )
    made = trio.run(create_swarm, settings, lambda *_: None)
    lines = [*made.data.lines(), *made.forecast.lines()]
    assert "40 files read, 40 images" in lines[0]
    assert any("bytes of images a parameter" in line for line in lines)
    assert made.warnings == ()
    return made.manifest


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("signs")
    manifest = create(root)
    blobs = DataDir(root / "node").blobs
    initial = BlobStore(blobs).get(manifest.initial)
    assert initial is not None
    return make_swarm(root / "node", made=(manifest, decode_any_blob_list(initial).chunks))


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def settings(swarm: Made, to: Path, **options: Any) -> GridSettings:
    return GridSettings(swarm=swarm.manifest.swarm, data_dir=swarm.data.root, to=to, **options)


def test_a_sheet_of_images_is_drawn(swarm: Made, tmp_path: Path, capsys) -> None:
    file = tmp_path / "images.png"
    named = ["--swarm", swarm_text(swarm.manifest.swarm)]
    arguments = ["generate", *named, "--grid", str(file), "--images", "6", "--steps", "3"]
    assert exit_code(*arguments, "--data-dir", str(swarm.data.root)) == 0
    said = capsys.readouterr().out
    assert f"Wrote images of the model after round 5 to {file}" in said
    assert "from left to right: bar, beam" in said
    with Image.open(file) as grid:
        assert (grid.format, grid.mode) == ("PNG", "L")
        # Two columns and three rows of 64 pixels, with 2 around each.
        assert grid.size == (2 + 2 * 66, 2 + 3 * 66)
    before = file.read_bytes()
    trio.run(draw_grid, settings(swarm, file, count=6, steps=3))
    assert file.read_bytes() == before


def test_places_that_take_no_grid_are_reported(
    swarm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (tmp_path, tmp_path / "none" / "a.png"):
        with pytest.raises(UserError) as caught:
            trio.run(draw_grid, settings(swarm, place))
        assert caught.value.code == ExitCode.USAGE

    for number, code in ((errno.ENOSPC, ExitCode.DISK_FULL), (errno.EROFS, ExitCode.NOT_WRITABLE)):

        def fails(*_: object, number: int = number) -> None:
            raise OSError(number, "said the disk")

        monkeypatch.setattr(grid_module, "write_output", fails)
        with pytest.raises(UserError) as caught:
            trio.run(draw_grid, settings(swarm, tmp_path / "a.png", count=1, steps=1))
        assert caught.value.code == code
        assert [*tmp_path.iterdir()] == []


def test_an_export_is_verified(swarm: Made, tmp_path: Path) -> None:
    swarm_id, root = swarm.manifest.swarm, swarm.data.root
    to = tmp_path / "model"
    done = trio.run(export_swarm, ExportSettings(swarm=swarm_id, data_dir=root, to=to))
    assert done.round == 5
    card = (to / "README.md").read_text()
    assert "library_name: diffusers" in card
    assert 'UNet2DModel.from_pretrained(".", subfolder="unet")' in card
    assert "0: bar, 1: beam" in card
    trained, heldout = swarm.manifest.data.samples, 40 - swarm.manifest.data.samples
    assert f"{trained} images of 2 classes in 1 shard and {heldout} held out" in card
    facts = json.loads((to / "distro-node.json").read_bytes())
    assert facts["images"]["classes"] == ["bar", "beam"]
    found = trio.run(verify_model, VerifySettings(directory=to, swarm=swarm_id, data_dir=root))
    assert (found.round, found.proof, found.unchecked) == (5, "content", ())
    # With this key the library takes its own default in place of the value beside it.
    config = to / "unet" / "config.json"
    written = config.read_text()
    said = json.loads(written) | {"_use_default_values": ["norm_num_groups"]}
    config.write_text(json.dumps(said))
    with pytest.raises(UserError, match=r"_use_default_values in unet/config\.json"):
        trio.run(verify_model, VerifySettings(directory=to, swarm=swarm_id, data_dir=root))
    config.write_text(written)
    weights = to / "unet" / "diffusion_pytorch_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError) as caught:
        trio.run(verify_model, VerifySettings(directory=to, swarm=swarm_id, data_dir=root))
    assert caught.value.code == ExitCode.NOT_THE_SWARMS


def test_it_writes_no_text_and_is_not_measured_by_it(swarm: Made, capsys) -> None:
    swarm_id, root = swarm.manifest.swarm, swarm.data.root

    async def write() -> None:
        async with open_writer(GenerateSettings(swarm=swarm_id, data_dir=root)):
            pytest.fail("it wrote")

    with pytest.raises(UserError, match="its model generates no text") as caught:
        trio.run(write)
    assert "--grid" in caught.value.remedy
    with pytest.raises(UserError, match="this swarm's model draws images"):
        trio.run(
            evaluate_swarm, EvaluateSettings(swarm=swarm_id, data_dir=root, tasks=("gpt4all",))
        )
    arguments = ("generate", "Once", "--grid", "a.png", "--data-dir", str(root))
    assert exit_code(*arguments) == ExitCode.USAGE
    assert "--grid takes no PROMPT" in capsys.readouterr().err


def test_text_has_no_grid(tmp_path: Path) -> None:
    made = make_swarm(tmp_path / "node", rounds=1)
    with pytest.raises(UserError, match="there are no images to draw") as caught:
        trio.run(draw_grid, settings(made, tmp_path / "a.png"))
    assert caught.value.code == ExitCode.USAGE


def test_a_sheet_has_a_column_for_each_class_or_is_a_square() -> None:
    assert columns_for(6, SETTINGS) == 2
    assert columns_for(16, replace(SETTINGS, classes=())) == 4
    assert columns_for(17, replace(SETTINGS, classes=tuple(map(str, range(17))))) == 5
    assert columns_for(1000, replace(SETTINGS, classes=())) == 16
    colour = ImageSettings(size=4)
    with Image.open(io.BytesIO(png([bytes([255, 0, 0] * 16)] * 3, colour, 2))) as grid:
        assert grid.size == (134, 134)
        assert grid.getpixel((3, 3)) == (255, 0, 0)
        # Between the images, and in an empty place.
        assert grid.getpixel((1, 1)) == grid.getpixel((100, 100)) == (128, 128, 128)
