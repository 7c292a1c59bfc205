"""What can go wrong with a pipeline, beside what the broker and its data source refuse (`smista.spark.errors`).

BrokerError
└── PipelineError
    ├── WrongOption          an option, or two together, cannot be used so
    ├── ArchiveDamaged         a manifest does not read, or a file it lists is not there as it was
    ├── ArchiveDiffers         the archive holds something else: other queues, or a column of another type
    ├── FolderInUse            another run is at work in the same folder
    └── PipelineFailed         Spark gave up, or a folder cannot be used; the sentence is the innermost cause
"""

from __future__ import annotations

from typing import ClassVar

from smista.spark.errors import SparkError


class PipelineError(SparkError):
    """Never raised itself."""

    code: ClassVar[str] = "pipeline_error"


class ArchiveDamaged(PipelineError):
    code: ClassVar[str] = "archive_damaged"


class ArchiveDiffers(PipelineError):
    code: ClassVar[str] = "archive_differs"


class FolderInUse(PipelineError):
    code: ClassVar[str] = "folder_in_use"


class PipelineFailed(PipelineError):
    code: ClassVar[str] = "pipeline_failed"
