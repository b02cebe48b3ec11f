"""Shared-memory files of the shm engine: who owns them, and what is open to writes in them.

One owner has one control file and any number of segments in one directory:

    pdserve-<owner>.ctl      header + table of regions, read by peers before every write
    pdserve-<owner>-<n>.seg  memory

    header   magic 8 | nonce 16 | zeros up to 64
    table    64 entries of 32 bytes: address, nbytes, segment, offset (uint64 each); nbytes 0: free

The owner holds an exclusive flock on its control file for as long as it lives, however it ends. So
a peer can tell that it is gone, and a starting worker removes the files of dead owners.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import secrets
import struct
import uuid
from pathlib import Path

from pd_worker.errors import BackendUnavailable, TransferError

MAGIC = b"PDSHM001"
NUM_ENTRIES = 64
_HEADER = struct.Struct("<8s16s40x")
_ENTRY = struct.Struct("<4Q")
_CONTROL_NBYTES = _HEADER.size + NUM_ENTRIES * _ENTRY.size
_OWNER = re.compile(r"[0-9a-f]{32}")


def address_of(memory: mmap.mmap) -> int:
    """Where a writable mapping starts."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def parse_session(session_id: str) -> tuple[str, bytes]:
    """Owner and nonce of a session id; raises TransferError on anything else."""
    owner, _, nonce = session_id.partition(":")
    if not (_OWNER.fullmatch(owner) and _OWNER.fullmatch(nonce)):
        raise TransferError("not a shm session id")
    return owner, bytes.fromhex(nonce)


def _control_path(directory: Path, owner: str) -> Path:
    return directory / f"pdserve-{owner}.ctl"


def _segment_path(directory: Path, owner: str, number: int) -> Path:
    return directory / f"pdserve-{owner}-{number}.seg"


def _locked(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sweep(directory: Path) -> int:
    """Remove the files of owners that no longer live; returns how many owners."""
    swept = 0
    for control in directory.glob("pdserve-*.ctl"):
        owner = control.name.removeprefix("pdserve-").removesuffix(".ctl")
        try:
            fd = os.open(control, os.O_RDWR)
        except OSError:
            continue
        try:
            if _OWNER.fullmatch(owner) and _locked(fd, fcntl.LOCK_EX):
                for segment in directory.glob(f"pdserve-{owner}-*.seg"):
                    segment.unlink(missing_ok=True)
                control.unlink(missing_ok=True)
                swept += 1
        finally:
            os.close(fd)
    return swept


class OwnSegments:
    """This process's files: the control file and the segments that it hands out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._owner = uuid.uuid4().hex
        self._nonce = secrets.token_bytes(16)
        self._segments: list[tuple[int, int]] = []  # address, nbytes
        self._maps: list[mmap.mmap] = []
        try:
            self._fd = self._create_control()
        except OSError as error:
            raise BackendUnavailable(f"shm: cannot use {directory}: {error}") from error
        self._control = mmap.mmap(self._fd, _CONTROL_NBYTES)
        _HEADER.pack_into(self._control, 0, MAGIC, self._nonce)

    @property
    def session_id(self) -> str:
        """Owner and nonce."""
        return f"{self._owner}:{self._nonce.hex()}"

    def _create_control(self) -> int:
        path = _control_path(self._directory, self._owner)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            # A sweep may take the file between its creation and the lock: then do it again.
            if _locked(fd, fcntl.LOCK_EX) and os.fstat(fd).st_nlink:
                os.ftruncate(fd, _CONTROL_NBYTES)
                return fd
            os.close(fd)
            path.unlink(missing_ok=True)

    def allocate(self, nbytes: int) -> memoryview:
        """New zeroed memory; raises BackendUnavailable where the directory has no room for it."""
        number = len(self._segments)
        path = _segment_path(self._directory, self._owner, number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Takes the memory now: a full /dev/shm would otherwise be a SIGBUS in the middle of
            # a write.
            os.posix_fallocate(fd, 0, nbytes)
            memory = mmap.mmap(fd, nbytes)
        except OSError as error:
            path.unlink()
            free = os.statvfs(self._directory)
            raise BackendUnavailable(
                f"shm: no {nbytes} bytes in {self._directory} "
                f"({free.f_bavail * free.f_frsize} free): {error}"
            ) from error
        finally:
            os.close(fd)
        self._segments.append((address_of(memory), nbytes))
        self._maps.append(memory)
        return memoryview(memory)

    def open(self, addr: int, nbytes: int) -> None:
        """Put a region into the table; raises TransferError unless a segment contains it."""
        for number, (start, size) in enumerate(self._segments):
            if nbytes > 0 and start <= addr and addr + nbytes <= start + size:
                return self._put(self._entry(0), (addr, nbytes, number, addr - start))
        raise TransferError("shm: the region is not in memory that this engine allocated")

    def shut(self, addr: int) -> None:
        """Take the region that starts at `addr` out of the table."""
        self._put(self._entry(addr), (0, 0, 0, 0))

    def _entry(self, addr: int) -> int:
        for index in range(NUM_ENTRIES):
            if _entry(self._control, index)[0] == addr:
                return index
        raise TransferError("shm: no such region" if addr else "shm: too many regions")

    def _put(self, index: int, entry: tuple[int, int, int, int]) -> None:
        _ENTRY.pack_into(self._control, _HEADER.size + index * _ENTRY.size, *entry)

    def close(self) -> None:
        """Close all regions and remove the files; memory handed out stays valid here."""
        for index in range(NUM_ENTRIES):
            self._put(index, (0, 0, 0, 0))
        for number in range(len(self._segments)):
            _segment_path(self._directory, self._owner, number).unlink(missing_ok=True)
        _control_path(self._directory, self._owner).unlink(missing_ok=True)
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # closing would not do: the mapping has a duplicate
        os.close(self._fd)
        self._maps.clear()


def _entry(control: mmap.mmap, index: int) -> tuple[int, int, int, int]:
    return _ENTRY.unpack_from(control, _HEADER.size + index * _ENTRY.size)


class PeerSegments:
    """A peer's files, mapped. Mappings end when the last user of this object drops it."""

    def __init__(self, directory: Path, session_id: str) -> None:
        """Raises TransferError unless the owner lives, here, and knows the session's nonce."""
        self._directory = directory
        self._owner, nonce = parse_session(session_id)
        try:
            self._control, self._fd = self._map(_control_path(directory, self._owner))
        except (OSError, ValueError) as error:
            raise TransferError("shm: the peer does not share this host's memory") from error
        if _HEADER.unpack_from(self._control) != (MAGIC, nonce) or self.gone:
            raise TransferError("shm: the peer does not share this host's memory")
        self._segments: dict[int, tuple[mmap.mmap, int]] = {}

    def __del__(self) -> None:
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            os.close(fd)

    @property
    def gone(self) -> bool:
        """Whether the owner has ended: its lock is free."""
        if not _locked(self._fd, fcntl.LOCK_SH):
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def regions(self) -> list[tuple[int, int, int]]:
        """What is open now: address in the owner, nbytes, address here."""
        entries = [_entry(self._control, index) for index in range(NUM_ENTRIES)]
        return [
            (addr, nbytes, self._segment(number) + offset)
            for addr, nbytes, number, offset in entries
            if nbytes
        ]

    def _segment(self, number: int) -> int:
        found = self._segments.get(number)
        if found is None:
            try:
                memory, fd = self._map(_segment_path(self._directory, self._owner, number))
            except (OSError, ValueError) as error:
                raise TransferError(f"shm: cannot map the peer's memory: {error}") from error
            os.close(fd)
            found = self._segments[number] = (memory, address_of(memory))
        return found[1]

    @staticmethod
    def _map(path: Path) -> tuple[mmap.mmap, int]:
        fd = os.open(path, os.O_RDWR)
        try:
            return mmap.mmap(fd, 0), fd
        except BaseException:
            os.close(fd)
            raise
