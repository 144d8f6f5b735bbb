"""The image task in a trainer: its random numbers, its refusals, the members' agreement, its results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.create.model_config import complete_denoiser
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.denoisers import UNET, WEIGHTS_NAME, noise_schedule
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.trainer.models.read_export import compare_export
from distro_node.node.trainer.tasks.image_sampling import draw_images
from distro_node.node.trainer.tasks.seeded_random import draw_integers, draw_normal
from distro_node.node.trainer.tasks.task_batches import StoredSample
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.task_names import NO_TOKENIZER, ImageSettings
from distro_node.protocol.wire.manifest import AdapterSpec, Manifest
from distro_node.protocol.wire.structure import to_plain
from trainer.support import CPU, make_manifest, opened, refused, store_shard

GREY = ImageSettings(size=4, channels=1)
SIGNS = ImageSettings(size=4, channels=1, classes=("bar", "beam"))
SMALL = {"model_type": "unet2d", "block_out_channels": [8, 16], "layers_per_block": 1}


def signs(samples: int, settings: ImageSettings = SIGNS) -> np.ndarray:
    """Return vertical and horizontal bars at random places: each with a byte for its class before
    it, and one more byte at the end."""
    generator = np.random.default_rng(0)
    rows = []
    for number in range(samples):
        image = np.zeros((4, 4), np.uint8)
        place = generator.integers(0, 4)
        if number % 2:
            image[place] = 255
        else:
            image[:, place] = 255
        label = [number % 2] if settings.classes else []
        rows.append([*label, *image.ravel().tolist()])
    return np.array([*np.concatenate(rows).tolist(), 0], np.uint8)


def image_manifest(
    root: Path, settings: ImageSettings = SIGNS, **changes: Any
) -> tuple[Manifest, Sequence[Any]]:
    config = complete_denoiser(dict(SMALL), settings)
    store = BlobStore(root)
    made = initialise(config, 0, None, store, CPU)
    manifest, _ = make_manifest(root)
    data = replace(
        manifest.data,
        sequence_length=settings.sample_bytes,
        shards=(store_shard(store, signs(32, settings)), store_shard(store, signs(16, settings))),
        heldout=store_shard(store, signs(8, settings)),
        tokenizer=store.put(NO_TOKENIZER),
    )
    manifest = replace(
        manifest,
        task="diffusion",
        task_settings=to_plain(settings, named=True),
        model=config,
        parameters=made.table,
        initial=store.put(made.blobs.encode()),
        data=data,
    )
    return replace(manifest, **changes), made.blobs.chunks


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def made(place: Path) -> tuple[Manifest, Sequence[Any]]:
    return image_manifest(place)


@pytest.fixture
def session(made: tuple[Manifest, Sequence[Any]], place: Path) -> TrainingSession:
    return opened(made, place)


def batch_of(session: TrainingSession, numbers: Sequence[int], round_: int) -> Any:
    """Return the task's batch of some training samples."""
    pairs = zip(session.computation.corpus.training(numbers), numbers, strict=True)
    return session.task.batch([StoredSample(data, number, round_) for data, number in pairs])


def test_what_is_drawn_follows_from_its_key_alone() -> None:
    assert draw_integers("a", (1, 2), 3).tolist() == draw_integers("a", (1, 2), 5).tolist()[:3]
    keys = (("a", (1, 2)), ("b", (1, 2)), ("a", (1, 3)))
    assert len({tuple(draw_integers(*key, 3).tolist()) for key in keys}) == 3
    # Every member of a swarm draws these numbers: they may not change.
    assert draw_integers("test", (0,), 2).tolist() == [1660021074, 978439664]
    values = draw_normal("test", (0,), 100_001)
    assert values.dtype == np.float32
    assert abs(float(values.mean())) < 0.02
    assert abs(float(values.std()) - 1) < 0.02
    assert np.abs(values).max() < 6.7
    assert np.isfinite(values).all()


def test_gradients_in_any_order_of_memory_make_one_update(
    made: tuple[Manifest, Sequence[Any]], place: Path
) -> None:
    """Of kernels that are matrices in the table, with as large blocks."""
    session = opened(made, place)
    table = {spec.name: spec.shape for spec in made[0].parameters}
    assert table["unet.conv_in.weight"] == (8, 9)
    assert table["unet.down_blocks.1.resnets.0.conv1.weight"] == (16, 8 * 9)
    assert max(map(len, table.values())) == 2
    blocks = {tensor.name: tensor.elements for tensor in session.layout.tensors}
    assert blocks["unet.down_blocks.1.resnets.0.conv1.weight"] == 16 * 36
    positions = []
    for order in (None, torch.channels_last):
        session = opened(made, place)
        session.computation.gradient(1, [0, 1, 2, 3])
        gradients = [parameter.grad for parameter in session.parameters]
        if order is not None:
            gradients = [
                each.contiguous(memory_format=order)
                if each is not None and each.dim() == 4
                else each
                for each in gradients
            ]
            assert not all(each is None or each.is_contiguous() for each in gradients)
        session.optimizer.accumulate(gradients)
        positions.append(session.optimizer.take(1).positions)
    assert all(map(np.array_equal, *positions))


def test_a_batch_is_images_with_noise_by_the_schedule(
    session: TrainingSession, made: tuple[Manifest, Sequence[Any]], place: Path
) -> None:
    batch = batch_of(session, [0, 1, 33], 7)
    assert batch["labels"].tolist() == [0, 1, 1]
    assert batch["noisy"].shape == batch["noise"].shape == (3, 1, 4, 4)
    left = noise_schedule(SIGNS).alphas_cumprod[batch["times"]].view(-1, 1, 1, 1)
    clean = (batch["noisy"] - (1 - left).sqrt() * batch["noise"]) / left.sqrt()
    rows = signs(32)[:-1].reshape(32, 17)[:, 1:].reshape(32, 1, 4, 4)
    expected = torch.from_numpy(rows[[0, 1]].astype(np.float32)) / 127.5 - 1
    assert torch.allclose(clean[:2], expected, atol=1e-2 / float(left.sqrt().min()))
    # Noise depends on seed, round and sample alone.
    torch.manual_seed(1)
    alone, later = (batch_of(session, [33], round_) for round_ in (7, 8))
    assert torch.equal(batch["noisy"][2:], alone["noisy"])
    assert torch.equal(batch["times"][2:], alone["times"])
    other = batch_of(opened((replace(made[0], seed=9), made[1]), place), [33], 7)
    assert not any(torch.equal(alone["noise"], each["noise"]) for each in (later, other))
    # The loss is the mean squared error.
    batch = batch_of(session, [0, 1], 1)
    with torch.no_grad():
        said = session.model(batch["noisy"], batch["times"], batch["labels"])
    error = torch.nn.functional.mse_loss(said, batch["noise"])
    assert session.train(1, [0, 1]).loss == pytest.approx(float(error), rel=1e-5)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("steps", [50, 10_000])
def test_every_schedule_leads_to_nothing_but_noise(schedule: Any, steps: int) -> None:
    left = noise_schedule(replace(GREY, schedule=schedule, steps=steps)).alphas_cumprod
    assert len(left) == steps
    assert float(left[0]) > 0.99
    assert (left[1:] < left[:-1]).all()
    assert 0 < float(left[-1]) < 1e-3


def test_another_member_computes_the_samegradient(
    made: tuple[Manifest, Sequence[Any]], place: Path
) -> None:
    gradients = []
    for micro_batch in (4, 4, 1):
        session = opened(made, place, micro_batch=micro_batch)
        loss, counted = session.computation.gradient(3, [0, 7, 40, 2])
        assert counted == 4 * 16
        gradients.append([loss, *(p.grad for p in session.parameters)])
    for one, other, alone in zip(*gradients, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
        assert torch.allclose(torch.as_tensor(one), torch.as_tensor(alone), atol=1e-5)


def test_two_replicas_stay_equal_and_learn(
    made: tuple[Manifest, Sequence[Any]], place: Path
) -> None:
    members = [opened(made, place) for _ in range(2)]
    before = members[0].computation.evaluate(8)
    assert members[0].computation.evaluate(8) == before
    for round_ in range(1, 9):
        shares = [[(round_ * 8 + i) % 48 for i in range(start, start + 4)] for start in (0, 4)]
        trained = [m.train(round_, share) for m, share in zip(members, shares, strict=True)]
        prints = {m.apply(round_, [t.body for t in trained], 4e-3, True) for m in members}
        assert len(prints) == 1
    for one, other in zip(*(m.parameters for m in members), strict=True):
        assert torch.equal(one, other)
    assert members[0].computation.evaluate(8) < 0.9 * before


def test_images_are_drawn_again_from_the_same_seed(
    made: tuple[Manifest, Sequence[Any]], place: Path
) -> None:
    session = opened(made, place, micro_batch=2)
    first = [*draw_images(session, 3, 1, 4)]
    assert [len(image) for image in first] == [16] * 3
    again = [*draw_images(opened(made, place, micro_batch=8), 3, 1, 4)]
    one, other = (np.frombuffer(b"".join(each), np.uint8).astype(int) for each in (first, again))
    # The number computed together changes the last bits.
    assert np.abs(one - other).max() <= 1
    assert [*draw_images(session, 3, 1, 4)] == first
    assert [*draw_images(session, 3, 2, 4)] != first


def test_an_export_opens_in_the_library(tmp_path: Path) -> None:
    from diffusers.models.unets.unet_2d import UNet2DModel
    from diffusers.pipelines.ddpm.pipeline_ddpm import DDPMPipeline

    manifest, chunks = image_manifest(tmp_path / "blobs", GREY)
    session = opened((manifest, chunks), tmp_path / "blobs")
    directory = tmp_path / "model"
    directory.mkdir()
    export(session, BlobStore(tmp_path / "blobs"), directory)
    noisy, times = torch.ones(2, 1, 4, 4), torch.tensor([1, 2])
    with torch.no_grad():
        ours = session.model(noisy, times, None)
        model: Any = UNet2DModel.from_pretrained(directory / UNET)
        for one, other in zip(model.parameters(), session.parameters, strict=True):
            assert torch.equal(one, other)
        # The memory layout of tensors may change the last bits.
        assert torch.allclose(model(noisy, times).sample, ours, atol=1e-5)
    pipeline: Any = DDPMPipeline.from_pretrained(directory)
    pipeline.set_progress_bar_config(disable=True)
    assert len(pipeline(num_inference_steps=2).images) == 1

    store = BlobStore(tmp_path / "blobs")
    found = compare_export(session, store, directory)
    assert found["differing"] == []
    assert found["fingerprint"] == session.load(chunks)
    config = directory / UNET / "config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps(said | {"norm_eps": 0.5}))
    assert compare_export(session, store, directory)["differing"] == [
        f"norm_eps in {UNET}/config.json"
    ]
    weights = directory / UNET / WEIGHTS_NAME
    weights.write_bytes(weights.read_bytes()[:100])
    with refused("bad_model", "cannot be read"):
        compare_export(session, store, directory)


def test_manifests_that_contradict_themselves_are_refused(
    made: tuple[Manifest, Sequence[Any]], place: Path
) -> None:
    manifest = made[0]
    text, _ = make_manifest(place)
    plain, model, data = manifest.task_settings or {}, manifest.model, manifest.data
    adapter = AdapterSpec(
        rank=1,
        alpha=1.0,
        targets=("to_q",),
        base=manifest.initial,
        base_parameters=manifest.parameters,
    )
    not_images = "cannot train a 'llama', which is not an image model"
    for changes, words in (
        ({"task_settings": None}, "'size' is missing"),
        ({"task_settings": plain | {"size": 8}}, "sample_size is 4, but the images have 8"),
        ({"task_settings": plain | {"classes": []}}, "num_class_embeds is 2, but the .* have None"),
        ({"task_settings": plain | {"steps": 10**9}}, "task_settings.steps"),
        ({"data": replace(data, sequence_length=16)}, "but an image has 17"),
        ({"data": replace(data, end_token=0)}, "without documents and marked tokens"),
        ({"data": replace(data, vocabulary=255)}, "its data must be bytes"),
        ({"task": "causal_lm", "task_settings": None}, "cannot train a 'unet2d'"),
        ({"model": text.model, "parameters": text.parameters}, not_images),
        ({"model": model | {"dropout": 0.5}}, "expected 0"),
        ({"model": model | {"block_out_channels": "x"}}, "expected a list"),
        ({"model": model | {"block_out_channels": [8, 32]}}, "has the shape"),
        ({"model": {"model_type": "unet2d"}}, "'sample_size' is missing"),
        ({"adapter": adapter}, "only language models can have adapters here"),
    ):
        with refused("bad_model", words):
            TrainingSession(replace(manifest, **changes), BlobStore(place), CPU)
    # A class that is not there is in the data.
    row = signs(8)
    row[17 * 3] = 2
    wrong = replace(data, heldout=store_shard(BlobStore(place), row))
    with refused("bad_data", "class 2 of 2"):
        opened((replace(manifest, data=wrong), made[1]), place).computation.evaluate(8)
    with pytest.raises(TrainerFailed, match="does not learn from images"):
        draw_images(opened(make_manifest(place), place), 1, 0, 10)
