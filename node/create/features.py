"""Features of founders' files that not every swarm has: each is registered here and nowhere else."""

from __future__ import annotations

from .audits import AuditsInFile
from .committees import CommitteesInFile
from .file_feature import FileFeature
from .manifest_file import ManifestFile
from .private_data import PrivateDataInFile

FEATURES: tuple[FileFeature, ...] = (
    CommitteesInFile(),
    AuditsInFile(),
    PrivateDataInFile(),
)


def features_of(file: ManifestFile) -> tuple[FileFeature, ...]:
    """Return the features that a founder's file has, in order."""
    return tuple(feature for feature in FEATURES if feature.is_in(file))
