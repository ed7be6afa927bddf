"""Watches what processes touch: opened and created files of a folder, connections to a port, and calls that Python audits."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import threading
from pathlib import Path
from types import TracebackType

_IN_OPEN, _IN_CREATE, _IN_NONBLOCK = 0x20, 0x100, 0o4000

HOOK = """
import os, sys
_LOG = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
_NAMES = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen", "os.system",
          "os.exec", "os.posix_spawn", "os.remove", "os.rename", "os.mkdir", "shutil.rmtree", "ctypes.dlopen")
def _hook(name, arguments):
    if name in _NAMES or name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        os.write(_LOG, (name + " " + repr(arguments)[:300] + "\\n").encode("utf-8", "replace"))
sys.addaudithook(_hook)
"""
"""A ``sitecustomize`` module that writes a line for every call that writes a file, connects, or starts a program."""


class Watch:
    """Context that counts what is opened in ``folder`` and who connects to ``port``; works below Python, in any process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.touched, self.connections = folder, list[str](), 0
        self.connected = threading.Event()
        self.bait = folder / "bait.txt"
        self.bait.write_text("a secret", encoding="utf-8")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Watch:
        self._fd = self._libc.inotify_init1(_IN_NONBLOCK)
        watched = self._libc.inotify_add_watch(self._fd, os.fsencode(self.folder), _IN_OPEN | _IN_CREATE)
        if min(self._fd, watched) < 0:
            raise OSError(ctypes.get_errno(), "inotify is not to be had")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.touched += self.events()
        os.close(self._fd)
        self._socket.close()

    def events(self) -> list[str]:
        """Names in the folder that were opened or created since the last call."""
        names: list[str] = []
        while select.select([self._fd], [], [], 0)[0]:
            data, at = os.read(self._fd, 1 << 16), 0
            while at < len(data):
                length = struct.unpack_from("iIII", data, at)[3]
                name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
                names += [name] if name else []  # no name: the folder itself
                at += 16 + length
        return names

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self.connected.set()
            connection.close()
