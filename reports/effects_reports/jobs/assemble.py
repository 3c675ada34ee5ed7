"""The job type `report.assemble`: the parts, joined."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from effects import Attempt, Cancelled, Done, ObjectMissing, Outcome, Retry
from effects.extend.files import StorageFull, Writer, boot_id
from effects.extend.process import point
from effects.extend.text import moment
from effects_reports.errors import PasswordUnavailable, ReportRefused
from effects_reports.formats.aes_zip import AesZip
from effects_reports.formats.base import Format
from effects_reports.formats.opening import ENCRYPTED, is_encrypted, open_format, plain_format
from effects_reports.formats.xlsx import Sheet, Xlsx
from effects_reports.jobs.step import FrozenSheet, ReportWork, RunPayload, frozen_sheets, sheet_of
from effects_reports.loading import Loaded
from effects_reports.request import is_default_key, password_of, salt_of
from effects_reports.routing import ASSEMBLE_TYPE, FINISHING_PRIORITY
from effects_reports.runs import state_machine
from effects_reports.tables import chunks as chunk_table
from effects_reports.tables import runs as run_table
from effects_reports.tables.chunks import Chunk
from effects_reports.tables.reports import Artifact
from effects_reports.tables.runs import Run

LOOK_SECONDS = 1.0
_STEM_CHARS_MAX, _STEM_BYTES_MAX = 100, 150  # of a file's name before its extension; the storage takes 200 bytes in all


class _PartMissing(Exception):
    """A part is not there, or is not what its chunk wrote."""

    def __init__(self, ordinal: str) -> None:
        super().__init__(ordinal)
        self.ordinal = ordinal


class _AssemblyUnwanted(Exception):
    """The run is no longer assembling."""


class ReportAssemble(ReportWork[RunPayload]):
    """Joins the parts in their order under the file's name, each checked where it may have been damaged.

    Doing it twice gives the same bytes under the same name. A part that is missing or altered is made again.
    """

    name = ASSEMBLE_TYPE
    payload = RunPayload
    priority = FINISHING_PRIORITY
    time_limit_seconds = 3600.0

    def perform(self, payload: RunPayload, attempt: Attempt) -> Outcome:
        loaded: Loaded = attempt.loaded
        run = loaded.run
        if run is None or run.state != "assembling":
            return Cancelled("the run is no longer to be assembled")
        needs_report = is_encrypted(run.format) or plain_format(run.format) == "xlsx"
        if needs_report and (waiting := self.unknown_report(run)) is not None:
            return waiting
        if (waiting := self.missing_packing(run)) is not None:
            return waiting
        with self.app.store.read() as connection:
            chunks = chunk_table.chunks_of(self.app.store, connection, run.id)
        done = [chunk for chunk in chunks if chunk.state == "done"]
        point("report.assembly_begun")
        try:
            return self._outcome(run, done)
        except _AssemblyUnwanted:
            return Cancelled("the run is no longer to be assembled")

    def _outcome(self, run: Run, chunks: Sequence[Chunk]) -> Outcome:
        looker = _Looker(self, run)
        try:
            self._check_room(run, chunks)
            artifact = self._assemble(run, chunks, looker)
        except StorageFull as full:
            return self.wait_for_room(run, full)
        except PasswordUnavailable as error:
            return Retry(str(error), code="no_password")
        except _PartMissing as missing:
            ordinals = sorted({missing.ordinal, *self._damaged(chunks, looker)})
            apply = partial(state_machine.parts_missing, self.app, run=run, ordinals=ordinals)
            return Done(apply=apply, detail={"missing": len(ordinals)})
        point("report.renamed")
        apply = partial(state_machine.ready, self.app, run=run, artifact=artifact)
        return Done(apply=apply, detail={"rows": artifact.rows, "bytes": artifact.bytes})

    def _check_room(self, run: Run, chunks: Sequence[Chunk]) -> None:
        """Begin no file for which there is no room beside its parts, which stay until it is durable.

        Raises:
            StorageFull: says how much room it needs.
        """
        size = sum(chunk.bytes_done for chunk in chunks)
        if not self.app.storage.has_room(size):
            cure = f"a file needs {size:,} bytes beside its parts: make room"
            raise StorageFull(f"no room for the file of run {run.id}: {cure}", cure=cure)

    def _assemble(self, run: Run, chunks: Sequence[Chunk], looker: _Looker) -> Artifact:
        file = open_format(run.format, run.dialect, run.packing)
        if plain_format(run.format) == "xlsx":
            file = Xlsx(self.registry.get(run.report).workbook, _facts(run, sum(chunk.rows_done for chunk in chunks)))
        sheets = frozen_sheets(run.columns)
        filename = _filename_of(run, file)
        storage = self.app.storage
        name = f"{run.prefix}/{run.round}/{filename}"
        with storage.writer(name, filename=filename) as whole, ThreadPoolExecutor(1, "effects-parts") as reader:
            out = self._encrypted(run, chunks, file, whole) if is_encrypted(run.format) else whole
            parts = [_StoredPart(self, chunk, reader, looker) for chunk in chunks]
            if isinstance(file, Xlsx):
                file.assemble_sheets(self._sheets(run, sheets, chunks, parts), out)
            else:
                file.assemble(sheets[0].columns, parts, out)
            point("report.joined")
            stored = out.finish()
        return Artifact(
            artifact=stored.name,
            filename=filename,
            content_type="application/zip" if is_encrypted(run.format) else file.content_type,
            rows=sum(chunk.rows_done for chunk in chunks),
            bytes=stored.size_bytes,
            sha256=stored.sha256,
        )

    def _sheets(
        self, run: Run, sheets: Sequence[FrozenSheet], chunks: Sequence[Chunk], parts: Sequence[_StoredPart]
    ) -> list[Sheet]:
        """Each sheet with its parts.

        Raises:
            ReportRefused: the definition has other sheets than the plan.
        """
        definition = self.registry.get(run.report)
        names: list[str | None] = [part.workbook.sheet for part in definition.sheets] or [None]
        if names != [sheet.name for sheet in sheets]:
            raise ReportRefused(
                f"report {run.report!r} was planned with other sheets: request it again", code="definition_changed"
            )
        filed: list[list[_StoredPart]] = [[] for _ in sheets]
        for chunk, part in zip(chunks, parts, strict=True):
            filed[sheet_of(sheets, chunk)].append(part)
        return [
            Sheet(part.workbook, sheet.columns, own)
            for part, sheet, own in zip(definition.parts, sheets, filed, strict=True)
        ]

    def _encrypted(self, run: Run, chunks: Sequence[Chunk], file: Format, out: Writer) -> AesZip:
        """What encrypts on the way. The name in the archive, which anybody reads, is the report's and not the key's."""
        definition = self.registry.get(run.report)
        params = definition.read_params(msgspec.json.decode(run.params))
        password = password_of(definition, params, run.key)
        rows = sum(chunk.rows_done for chunk in chunks)
        further = [repr(part.workbook) for part in (definition, *definition.sheets)]
        further += [*_facts(run, rows).values()]
        salt = salt_of(run, chunks, further)
        return AesZip(out, self.app.storage.read, f"{run.report}{file.extension}", password, salt)

    def _damaged(self, chunks: Sequence[Chunk], looker: _Looker) -> list[str]:
        """All parts that must be made again: after a power cut they are many, and each round finds all of them."""
        return [chunk.ordinal for chunk in chunks if not self._intact(chunk, looker)]

    def _intact(self, chunk: Chunk, looker: _Looker) -> bool:
        try:
            for _ in self.read_part(chunk, looker):
                pass
        except _PartMissing:
            return False
        return True

    def read_part(self, chunk: Chunk, looker: _Looker) -> Iterator[bytes]:
        """The part's bytes; at their end it is known whether they were those that the chunk wrote."""
        assert chunk.part is not None  # the chunk is done
        digest = hashlib.sha256()
        try:
            for piece in self.app.storage.read(chunk.part):
                digest.update(piece)
                looker.look()
                yield piece
        except ObjectMissing:
            raise _PartMissing(chunk.ordinal) from None
        if digest.hexdigest() != chunk.sha256:
            raise _PartMissing(chunk.ordinal)


class _StoredPart:
    """A part in the storage.

    One that this machine has written since it was booted is whole, on the disk or in memory: it is appended unread.
    Any other's bytes are checked against its SHA-256 on their way, because a power cut may have taken some.
    """

    def __init__(self, job_type: ReportAssemble, chunk: Chunk, reader: ThreadPoolExecutor, looker: _Looker) -> None:
        self._job_type, self._chunk, self._reader, self._looker = job_type, chunk, reader, looker
        self.plain_bytes, self.plain_crc32 = chunk.plain_bytes, chunk.plain_crc32

    def __iter__(self) -> Iterator[bytes]:
        return _ahead(self._reader, self._job_type.read_part(self._chunk, self._looker))

    def append_to(self, out: Writer) -> None:
        if self._chunk.boot is not None and self._chunk.boot == boot_id():
            self._append_unread(out)
        else:
            for piece in self:
                out.write(piece)
        point("report.part_joined")

    def _append_unread(self, out: Writer) -> None:
        assert self._chunk.part is not None  # the chunk is done
        self._looker.look()
        try:
            size = out.append(self._chunk.part)
        except ObjectMissing:
            raise _PartMissing(self._chunk.ordinal) from None
        if size != self._chunk.bytes_done:
            raise _PartMissing(self._chunk.ordinal)


def _ahead(reader: ThreadPoolExecutor, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, each read and checked while the one before it is joined: hashing leaves other threads alone."""
    coming = reader.submit(next, pieces, b"")
    while piece := coming.result():
        coming = reader.submit(next, pieces, b"")
        yield piece


class _Looker:
    """Looks once a second whether the file is still wanted."""

    def __init__(self, job_type: ReportAssemble, run: Run) -> None:
        self._store, self._run = job_type.app.store, run
        self._looked = time.monotonic()

    def look(self) -> None:
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        with self._store.read() as connection:
            now = run_table.get_run(self._store, connection, self._run.id)
        if now is None or now.state != "assembling" or now.round != self._run.round:
            raise _AssemblyUnwanted


def _filename_of(run: Run, file: Format) -> str:
    """What the file is called when it is downloaded: the request's key where it had one, else the run's time."""
    stem = run.report if is_default_key(run.report, run.key) else run.key
    safe = "".join(char if char.isalnum() or char in "-_." else "-" for char in stem).strip("-.")
    cut = (safe or run.report)[:_STEM_CHARS_MAX].encode()[:_STEM_BYTES_MAX].decode(errors="ignore")
    return f"{cut}{file.extension}{ENCRYPTED if is_encrypted(run.format) else ''}"


def _facts(run: Run, rows: int) -> dict[str, str]:
    """What the cover of a workbook says."""
    assert run.as_of is not None  # frozen by the plan
    params = {str(name): "" if value is None else str(value) for name, value in msgspec.json.decode(run.params).items()}
    as_of = moment(run.as_of).isoformat(" ", "seconds")
    return {"Report": run.report, "As of": as_of, "Rows": f"{rows:,}", **params}
