"""Runs inside the sandbox: gives up rights, then executes the program. Its source is passed to a fresh ``python -c``.

Nothing of rlvlm is imported here. Any right that can't be given up ends the process before the program starts.
"""

import ctypes
import json
import os
import resource
import struct
import sys
from typing import Any, TextIO

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 4, 38, 22
CLONE_THREAD = 0x10000
EPERM, ENOSYS = 1, 38

LIBC = ctypes.CDLL(None, use_errno=True)

# Of each machine: its audit number, clone, calls that may name this process only, and refused ones (sockets, processes,
# signals, tracing, mounts, modules, keys, IPC). In the order of their numbers; the last ones are the same on both.
NEW = (424, 425, 434, 438)
X86_64 = (29, 41, 42, 49, 57, 58, 59, 62, 64, 68, 101, 129, 155, 161, 165, 166, 175, 200, 240, 246, 248, 249, 250)
X86_64_MORE = (272, 297, 298, 304, 308, 310, 311, 313, 321, 322, 323)
AARCH64 = (39, 40, 41, 51, 97, 104, 105, 117, 129, 130, 138, 180, 186, 190, 194, 198, 200, 203, 217, 218, 219, 221)
AARCH64_MORE = (240, 241, 265, 268, 270, 271, 273, 280, 281, 282)
SYSTEMS = {
    "x86_64": (0xC000003E, 56, (234, 302), (*X86_64, *X86_64_MORE, *NEW)),
    "aarch64": (0xC00000B7, 220, (131, 261), (*AARCH64, *AARCH64_MORE, *NEW)),
}
CLONE3 = 435


def main(fd: int) -> None:
    """Reads the job from the descriptor, gives up rights, runs the program."""
    with os.fdopen(fd, "r+b") as channel:
        job = json.loads(channel.read())
    results = os.fdopen(job["results_fd"], "w")
    try:
        give_up_rights(job)
    except (OSError, RuntimeError) as error:
        results.write(json.dumps({"setup": str(error)}) + "\n")
        results.flush()
        os._exit(1)
    results.write(json.dumps({"setup": ""}) + "\n")
    results.flush()
    run(job, results)


def give_up_rights(job: dict[str, Any]) -> None:
    """Everything that the program must not have, in the order in which it can still be given up."""
    limit(job)
    sys.path[:] = reachable(sys.path)
    confined = confine_files(job["home"])
    owned = job["uid"] is not None and become(job["uid"])
    if not confined and not owned:
        raise RuntimeError("this kernel has no Landlock and the process is not root, so files can't be protected")
    check(LIBC.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0), "PR_SET_PDEATHSIG")  # not before: a new user resets it
    check(LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "PR_SET_DUMPABLE")  # else /proc/self/fd is closed to the new user
    check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    refuse_calls()
    if LIBC.socket(2, 1, 0) >= 0:
        raise RuntimeError("sockets are still allowed")


def limit(job: dict[str, Any]) -> None:
    """Bounds on memory, CPU time, files."""
    megabytes = job["memory_mb"] << 20
    for name, value in (
        ("RLIMIT_AS", megabytes),
        ("RLIMIT_CPU", job["cpu_seconds"]),
        ("RLIMIT_FSIZE", job["file_bytes"]),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
    ):
        resource.setrlimit(getattr(resource, name), (value, value))


def reachable(paths: list[str]) -> list[str]:
    """Import folders by open descriptors: the new user may be kept out of a folder above them, such as /root."""
    moved = {}
    for path in paths:
        if path and os.path.isdir(path):
            moved[path] = f"/proc/self/fd/{os.open(path, os.O_RDONLY | os.O_DIRECTORY)}"
    for module in list(sys.modules.values()):
        if hasattr(module, "__path__"):  # packages that are loaded look for their other modules here
            module.__path__ = [translated(path, moved) for path in module.__path__]
    sys.path_importer_cache.clear()
    return list(moved.values())


def translated(path: str, moved: dict[str, str]) -> str:
    """A path below a moved folder, through its descriptor."""
    fitting = [old for old in moved if path == old or path.startswith(old + os.sep)]
    old = max(fitting, key=len, default="")
    return moved[old] + path[len(old) :] if old else path


def become(uid: int) -> bool:
    """Another user, with few threads; False where this process may not."""
    try:
        os.setgroups([])
        os.setgid(uid)
        resource.setrlimit(resource.RLIMIT_NPROC, (32, 32))
        os.setuid(uid)
    except OSError:  # a user namespace without this id
        return False
    return True


def confine_files(home: str) -> bool:
    """Landlock: read the interpreter's folders, write in the empty home, nothing else. False where the kernel lacks it."""
    abi = LIBC.syscall(444, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return False
    every = (1 << 13) - 1 | (1 << 13 if abi >= 2 else 0) | (1 << 14 if abi >= 3 else 0)
    read = 1 << 2 | 1 << 3
    network = 3 if abi >= 4 else 0
    attributes = struct.pack("QQ", every, network) if abi >= 4 else struct.pack("Q", every)
    rules = LIBC.syscall(444, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        return False
    folders = [(path, read) for path in [*sys.path, "/lib", "/lib64", "/usr/lib", "/usr/share/zoneinfo"]]
    for path, access in [*folders, (home, every & ~1)]:
        try:
            folder = os.open(path, os.O_PATH)
        except OSError:
            continue
        LIBC.syscall(445, rules, 1, struct.pack("=Qi", access, folder), 0)
        os.close(folder)
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    confined = LIBC.syscall(446, rules, 0) == 0
    os.close(rules)
    return confined


def refuse_calls() -> None:
    """A seccomp filter: refused calls fail with EPERM, new processes too; threads are allowed."""
    machine = os.uname().machine
    if machine not in SYSTEMS:
        raise RuntimeError(f"there is no list of system calls for the machine '{machine}'")
    audit, clone, own_only, refused = SYSTEMS[machine]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill = 0x7FFF0000, 0x80000000
    errno = 0x00050000
    program = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, kill), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (give, 0, 0, errno | EPERM)]
    program += [(equal, 0, 1, CLONE3), (give, 0, 0, errno | ENOSYS)]
    for number in refused:
        program += [(equal, 0, 1, number), (give, 0, 0, errno | EPERM)]
    for number in own_only:
        program += [(equal, 0, 5, number), (load, 0, 0, 16), (equal, 2, 0, 0), (equal, 1, 0, os.getpid())]
        program += [(give, 0, 0, errno | EPERM), (give, 0, 0, allow)]
    program += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 1, 0, CLONE_THREAD), (give, 0, 0, errno | EPERM)]
    program += [(give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    check(LIBC.prctl(PR_SET_SECCOMP, 2, ctypes.c_char_p(header), 0, 0), "seccomp")


def check(result: int, what: str) -> None:
    """Raises RuntimeError unless a call of the C library gave 0."""
    if result != 0:
        raise RuntimeError(f"{what} failed with error {ctypes.get_errno()}")


def run(job: dict[str, Any], results: TextIO) -> None:
    """Executes the program, then evaluates the calls in its names and writes a line for each."""
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    exec(compile(job["code"], "solution.py", "exec"), names)
    for call in job["calls"]:
        try:
            line = {"value": repr(eval(compile(call, "test", "eval"), names))}
        except Exception as error:
            line = {"error": type(error).__name__}
        results.write(json.dumps(line) + "\n")
        results.flush()


main(int(sys.argv[1]))
