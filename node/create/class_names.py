"""The names of a swarm's classes, where the founder's file leaves `classes` out.

They are those that the data states (`class_metadata`), for images else the names of the folders that
they are in, as `datasets` reads them, and those of the checkpoint if the data has none. A checkpoint
that names the same classes decides their order, because its head has that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TypeVar

from ...protocol.wire.structure import StructureError
from ..errors import UserError
from ..training.task_names import CLASSIFICATION, ON_IMAGES
from .class_labels import DEFAULT_COLUMN, listed
from .class_metadata import ClassNames, checkpoint_classes
from .columns import Columns, HubData, file_classes
from .corpus import SourceFiles, sources_with
from .files import File
from .formats import BadFile
from .manifest_file import ManifestFile, SourceTable, bad_manifest
from .model_config import read_checkpoint_config

_File = TypeVar("_File", bound=ManifestFile)


class _LabelColumn(Columns):
    """The column of the class, for finding the files that have one."""

    units = "texts with a class"

    def __init__(self, label: str | None, images: bool) -> None:
        super().__init__(None, None)
        self.label = label or DEFAULT_COLUMN
        self.images, self.whole = images, not images


def with_class_names(file: _File, path: Path, given: Sequence[Path | str]) -> _File:
    """Return a founder's file with the names of its classes, if its task names classes. `given` replaces
    the paths of its data.

    Raises `UserError` with `MANIFEST` if nothing names them or several things name others, with
    `DATA_MISSING` for data that cannot be used.
    """
    if file.task not in CLASSIFICATION:
        return file
    settings = dict(file.task_settings or {})
    of_head = _of_checkpoint(file, path)
    if (stated := settings.get("classes")) is not None:
        if of_head is not None and isinstance(stated, list) and _is_other_order(stated, of_head):
            raise _bad_classes(
                path,
                f"the checkpoint's head has the same classes in another order: {listed(of_head)}; take "
                "that order, or leave `classes` out",
            )
        return file
    names = _of_data(file, path, given) or of_head
    if names is None:
        raise _bad_classes(
            path,
            "neither the data nor the checkpoint names the classes: name two or more, in the order of "
            'their numbers, such as classes = ["no", "yes"]',
        )
    if len(names) < 2:
        raise _bad_classes(
            path, f"the data has one class alone ({listed(names)}): name two or more"
        )
    if of_head is not None and _is_other_order(names, of_head):
        names = of_head
    return replace(file, task_settings=settings | {"classes": list(names)})


def _is_other_order(names: Sequence[object], head: ClassNames) -> bool:
    return tuple(names) != head and {*map(str, names)} == {*head}


def _of_checkpoint(file: ManifestFile, path: Path) -> ClassNames | None:
    named = file.model.get("checkpoint")
    if not isinstance(named, str):
        return None
    try:
        return checkpoint_classes(read_checkpoint_config(path.parent / named))
    except StructureError as error:
        raise bad_manifest(path, str(error)) from None


def _of_data(file: ManifestFile, path: Path, given: Sequence[Path | str]) -> ClassNames | None:
    images = file.task in ON_IMAGES

    def column(table: SourceTable) -> Columns:
        return _LabelColumn(table.label, images)

    if not given and not any(table.paths for table in file.data.source or (file.data,)):
        return None
    found: dict[ClassNames, str] = {}
    for each in sources_with(file, path, given, column):
        for one in each.files:
            names = None if one.format == "image" else _of_file(one, each)
            if names is not None:
                found.setdefault(names, str(one.path))
        pictures = [one.name for one in each.files if one.format == "image"]
        if pictures:
            found.setdefault(_of_folders(pictures, path), f"the source {each.source.name!r}")
    names, where = next(iter(found.items()), (None, ""))
    for others, place in found.items():
        if names is not None and {*others} != {*names}:
            raise _bad_classes(
                path,
                f"{where} has the classes {listed(names)}, and {place} {listed(others)}: name those of "
                "the swarm",
            )
    return names


def _of_file(file: File, found: SourceFiles) -> ClassNames | None:
    source = found.source
    try:
        if isinstance(file.path, str):
            return HubData(file.path, source.split, source.columns, source.config).classes
        label = source.columns.label
        assert label is not None
        if file.format in ("parquet", "arrow"):
            return file_classes(file.path, file.format, label) or file.classes
        return file.classes
    except BadFile as error:
        raise error.at(file.path) from None


def _of_folders(pictures: Sequence[PurePath], path: Path) -> ClassNames:
    """Return the names of the folders that pictures are in."""
    folders = {picture.parent for picture in pictures}
    if PurePath() in folders:
        raise _bad_classes(
            path, "an image is in no folder that is named after its class: name the classes"
        )
    for folder in sorted(folders):
        if outer := folders.intersection(folder.parents):
            raise _bad_classes(
                path,
                f"images are in the folder {min(outer)} and in {folder} within it: name those that are "
                "classes",
            )
    return tuple(sorted({folder.name for folder in folders}))


def _bad_classes(path: Path, problem: str) -> UserError:
    return bad_manifest(path, f"task_settings.classes: {problem}")
