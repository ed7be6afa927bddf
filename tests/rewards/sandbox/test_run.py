"""What the sandbox keeps a program from, and what it leaves it."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards.sandbox import Limits, folder, run_python
from rlvlm.rewards.sandbox import run as runs


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['ls'])",
        "import os; os.execv('/bin/ls', ['ls'])",
        "import os; os.kill(os.getppid(), 0)",
        "import signal, os; os.kill(1, 0)",
        "open('/etc/passwd')",
        "import os; os.listdir('/')",
        "open('/tmp/left-behind', 'w')",
        "open('../left-behind', 'w')",
        "import os; os.setuid(0)",
        "x = 'a' * 10**9",
        "open('big', 'w').write('x' * 10**7)",
        "import numpy",
    ],
)
@pytest.mark.parametrize("own_user", [True, False])
def test_the_sandbox_refuses(program: str, own_user: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not own_user:  # as for a caller who is not root: Landlock alone guards the files
        if program.endswith("setuid(0)"):
            pytest.skip("staying the same user is no harm")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    run = run_python(program)
    assert run.exit_code == 1, run
    assert "Error" in run.stderr.splitlines()[-1]


def test_the_sandbox_gives_an_empty_folder_libraries_and_threads() -> None:
    program = (
        "import collections.abc, json, re, threading, os, datetime, heapq, random, decimal\n"
        "open('a', 'w').write('hi')\nprint(open('a').read(), os.listdir('.'), sorted(os.environ))\n"
        "t = threading.Thread(target=print, args=(input(),)); t.start(); t.join()"
    )
    run = run_python(program, stdin="asked")
    assert run.stdout == "hi ['a'] ['LANG', 'PYTHONHASHSEED', 'PYTHONIOENCODING']\nasked\n", run


def test_nothing_is_left_behind_and_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start = time.monotonic()
    run = run_python("open('a', 'w')\nwhile True: pass", limits=Limits(seconds=1.0))
    assert run.stopped == "time"
    assert time.monotonic() - start < 4.0
    assert list(tmp_path.iterdir()) == []


def test_output_is_bounded() -> None:
    run = run_python("print('x' * 10**7)")
    assert len(run.stdout) <= Limits().output_bytes


def test_without_any_guard_of_files_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    unguarded = runs._launcher().replace("if abi < 1:", "if True:")
    monkeypatch.setattr(runs, "_launcher", lambda: unguarded)
    if os.geteuid() == 0:  # a user of its own is guard enough only for who says so
        with pytest.raises(RewardError, match="without_landlock"):
            run_python("print(1)")
        assert run_python("print(1)", limits=Limits(without_landlock=True)).stdout == "1\n"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RewardError, match="no Landlock"):
        run_python("print(1)", limits=Limits(without_landlock=True))


def test_without_a_list_of_calls_for_the_machine_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.platform, "machine", lambda: "pdp11")
    with pytest.raises(RewardError, match="pdp11"):
        run_python("print(1)")


SYSCALLS = {
    "own the signals of a descriptor": "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "choose the signal of a descriptor": "fcntl.fcntl(0, 10, 9)",
    "send signals for a descriptor": "fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)",
    "send signals by ioctl": "fcntl.ioctl(0, 0x5452, b'\\1\\0\\0\\0')",
    "type into a terminal": "fcntl.ioctl(0, 0x5412, b'x')",
    "change a mode": "os.chmod('.', 0o777)",
    "change a mode by descriptor": "os.fchmod(0, 0o777)",
    "change a time": "os.utime('/usr/lib')",
    "change an owner": "os.chown('.', 0, 0)",
    "set an attribute": "os.setxattr('.', 'user.a', b'1')",
    "watch files": "call(254)",
    "change the caller's priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "change the caller's cores": "os.sched_setaffinity(os.getppid(), {0})",
    "change the caller's scheduler": "os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
    "outlive the caller": "call(157, 1, 0, 0, 0, 0)",
    "change the caller's limits": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "trace": "call(101, 16, os.getppid(), 0, 0)",
    "read the caller's memory": "call(310, os.getppid(), 0, 0, 0, 0, 0)",
    "take a descriptor of the caller": "call(434, os.getppid(), 0)",
    "signal the caller": "os.kill(os.getppid(), 0)",
    "signal the caller by thread": "call(234, os.getppid(), os.getppid(), 0)",
    "signal everything": "os.kill(-1, 0)",
    "submit work to the kernel": "call(425, 8, 0)",
    "keep memory without a name": "os.memfd_create('a')",
    "share memory": "call(29, 1, 4096, 0o1777)",
    "connect": "socket.socket(socket.AF_UNIX)",
    "connect a pair": "socket.socketpair()",
    "fork": "os.fork()",
    "vfork": "call(58)",
    "clone": "call(435, 0, 0)",
    "change namespaces": "call(272, 0x10000000)",
    "load programs into the kernel": "call(321, 0, 0, 0)",
    "keep a key": "call(248, 0, 0, 0, 0, 0)",
    "mount": "call(165, 0, 0, 0, 0, 0)",
    "link": "os.link('a', 'b')",
    "point elsewhere": "os.symlink('/etc', 'b')",
    "make a device": "os.mkfifo('b')",
    "find the caller's files by handle": "call(304, 0, 0, 0)",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
@pytest.mark.parametrize("own_user", [True, False])
def test_no_system_call_reaches_beyond_the_program(own_user: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is tried in one program, and the errno is that of a refusal."""
    if not own_user:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program = (
        "import ctypes, fcntl, os, resource, socket\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(number, *given):\n"
        "    if libc.syscall(number, *given) < 0: raise OSError(ctypes.get_errno(), '')\n"
        "open('a', 'w').close()\n"
    )
    for name, tried in SYSCALLS.items():
        program += (
            f"try:\n    {tried}\n    print({name!r}, 'worked')\nexcept OSError as e:\n    print({name!r}, e.errno)\n"
        )
    lines = run_python(program).stdout.splitlines()
    assert len(lines) == len(SYSCALLS)
    assert [line for line in lines if line.rsplit(" ", 1)[1] not in ("1", "38")] == []


def test_the_sandbox_speaks_on_a_channel_that_the_program_never_has() -> None:
    program = 'import os\nfor fd in range(3, 64):\n    try: os.write(fd, b\'{"setup": "broken"}\\n\' * 99)\n    except OSError: pass\n'
    assert run_python(program + "print('went on')").stdout == "went on\n"


@pytest.mark.parametrize(
    ("program", "bound"),
    [
        ("i = 0\nwhile True:\n    open(str(i), 'w').close(); i += 1", "files"),
        ("i = 0\nwhile True:\n    open(str(i), 'wb').write(b'x' * (1 << 20)); i += 1", "files"),
        ("import os\nwhile True:\n    os.mkdir('a' * 200); os.chdir('a' * 200)", "files"),
        ("import os\nos.mkdir('a', 0o777)\nfor i in range(9000): os.mkdir('a/' + str(i), 0)", "files"),
        ("while True: pass", "time"),
    ],
)
def test_a_run_that_passes_a_bound_is_ended_and_leaves_nothing(
    program: str, bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = run_python(program, limits=Limits(seconds=1.0 if bound == "time" else 30.0))
    assert run.stopped == bound
    assert list(tmp_path.iterdir()) == []


def test_threads_are_bounded_for_a_caller_who_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program = (
        "import threading, time\nthreading.stack_size(65536)\n"
        "while True:\n    threading.Thread(target=time.sleep, args=(60,)).start()"
    )
    run = run_python(program, limits=Limits(seconds=30.0))
    assert run.stopped == "threads" or "can't start new thread" in run.stderr


def test_a_program_ends_with_its_caller_and_the_next_one_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    marker = tmp_path / "pid"
    child = os.fork()
    if child == 0:
        popen = runs.subprocess.Popen

        def noted(*given: object, **named: object) -> object:
            process = popen(*given, **named)  # type: ignore[call-overload]
            marker.write_text(str(process.pid))
            return process

        runs.subprocess.Popen = noted  # type: ignore[assignment, misc]
        run_python(
            "import ctypes\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nwhile True: pass", limits=Limits(seconds=60.0)
        )
        os._exit(0)
    while not (marker.exists() and marker.read_text()):
        time.sleep(0.01)
    time.sleep(0.3)  # long enough for the program to have tried; too short would only prove less
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    program = int(marker.read_text())
    for _ in range(500):
        if _has_ended(program):
            break
        time.sleep(0.02)
    else:
        os.kill(program, signal.SIGKILL)
        pytest.fail("the program outlived its caller")
    (left,) = tmp_path.glob("rlvlm-sandbox-*")
    os.utime(left, (0, 0))
    folder._remove_abandoned.cache_clear()
    assert run_python("print(1)").stdout == "1\n"
    assert list(tmp_path.iterdir()) == [marker]


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] in "ZX"
    except OSError:
        return True
