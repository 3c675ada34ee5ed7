"""The named points of reports at which tests kill; R1 to R6 of the reliability notes."""

from __future__ import annotations

from effects.crashpoints import declare

_POINTS = {
    "report.chunk_begun": "a chunk is this attempt's, nothing of it is written",
    "report.part_written": "all of a part is written, not synced, not under its name",
    "report.part_durable": "a part is under its name, the chunk not done",
    "report.assembly_begun": "all parts are there, nothing is joined",
    "report.joined": "the file is joined, not under its name",
    "report.renamed": "the file is under its name, the run not ready",
}
declare(_POINTS)
