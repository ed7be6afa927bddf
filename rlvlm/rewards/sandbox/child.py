"""Runs inside the sandbox: gives up rights, then executes the program. Its source is passed to a fresh ``python -c``.

Nothing of rlvlm is imported here. Any right that can't be given up ends the process before the program starts.
"""

import _sitebuiltins
import builtins
import ctypes
import importlib
import json
import os
import resource
import struct
import sys
import types
from typing import Any, TextIO

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 4, 38, 22
SELF = -1
MAX_PARTS, MAX_DEPTH = 100_000, 100

LIBC = ctypes.CDLL(None, use_errno=True)


def main(fd: int) -> None:
    """Reads the job from the descriptor, gives up rights, says that all is ready, runs the program."""
    with os.fdopen(fd, "r+b") as channel:
        job = json.loads(channel.read())
    results = os.fdopen(job["results_fd"], "w")
    try:
        give_up_rights(job)
    except (OSError, RuntimeError) as error:
        os.write(job["ready_fd"], str(error).encode())
        os._exit(1)
    os.write(job["ready_fd"], b"ready")
    os.close(job["ready_fd"])  # the program must not speak for the sandbox
    run(job, results)


def give_up_rights(job: dict[str, Any]) -> None:
    """Everything that the program must not have, in the order in which it can still be given up."""
    limit(job)
    sys.path[:] = reachable(sys.path)
    confined = confine_files(job["home"])
    owned = job["uid"] is not None and become(job["uid"], job["threads"])
    if not confined:
        if not owned:
            raise RuntimeError("this kernel has no Landlock and the process is not root, so files can't be protected")
        if not job["without_landlock"]:
            raise RuntimeError(
                "this kernel has no Landlock, so a program could read files that every user may read and write to shared memory; "
                "set 'without_landlock: true' of the reward to accept that"
            )
    check(LIBC.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0), "PR_SET_PDEATHSIG")  # not before: a new user resets it
    if os.getppid() != job["parent"]:
        raise RuntimeError("the caller has ended")
    check(LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "PR_SET_DUMPABLE")  # else /proc/self/fd is closed to the new user
    check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    refuse_calls(job["filters"][str(owned or os.geteuid() != 0)], job["machine"])
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


def become(uid: int, threads: int) -> bool:
    """Another user, with few threads; False where this process may not."""
    try:
        os.setgroups([])
        os.setgid(uid)
        resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
        os.setuid(uid)
    except OSError:  # a user namespace without this id
        return False
    return True


def confine_files(home: str) -> bool:
    """Landlock: read the interpreter's folders, write in the empty home, nothing else. False where the kernel lacks it."""
    abi = LIBC.syscall(444, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return False
    every = (1 << 13) - 1 | sum(1 << right for right, since in ((13, 2), (14, 3), (15, 5)) if abi >= since)
    read = 1 << 2 | 1 << 3
    attributes = [every, 3, 3]  # files; TCP; abstract sockets and signals to processes outside
    attributes = attributes[: 3 if abi >= 6 else 2 if abi >= 4 else 1]
    packed = struct.pack("Q" * len(attributes), *attributes)
    rules = LIBC.syscall(444, packed, ctypes.c_size_t(len(packed)), 0)
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


def refuse_calls(lines: list[list[int]], machine: str) -> None:
    """The seccomp filter: from here on only the listed system calls work."""
    if not lines:
        raise RuntimeError(f"there is no list of system calls for the machine '{machine}'")
    own = os.getpid()
    packed = b"".join(struct.pack("HBBI", *line[:3], own if line[3] == SELF else line[3]) for line in lines)
    code = ctypes.create_string_buffer(packed)
    header = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code))
    check(LIBC.prctl(PR_SET_SECCOMP, 2, ctypes.c_char_p(header), 0, 0), "seccomp")


def check(result: int, what: str) -> None:
    """Raises RuntimeError unless a call of the C library gave 0."""
    if result != 0:
        raise RuntimeError(f"{what} failed with error {ctypes.get_errno()}")


def run(job: dict[str, Any], results: TextIO) -> None:
    """Executes the program, then evaluates the calls in its names and writes a line for each."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names = vars(module)
    names["__builtins__"] = __builtins__
    for leave in ("exit", "quit"):  # as every interpreter has them that loads site
        setattr(builtins, leave, _sitebuiltins.Quitter(leave, "Ctrl-D (i.e. EOF)"))
    program = compile(job["code"], "solution.py", "exec")
    names.update(usual_names(program))
    exec(program, names)
    for call in job["calls"]:
        try:
            line = described(eval(compile(call, "test", "eval"), names), [0])
        except Exception as error:
            line = {"error": type(error).__name__}
        results.write(json.dumps(line) + "\n")
        results.flush()


USUAL_MODULES = ("typing", "collections", "math", "heapq", "bisect", "itertools", "functools")


def usual_names(program: types.CodeType) -> dict[str, Any]:
    """What editors of programming contests import unasked, as far as the program speaks of it: ``List``, ``deque``, ``math`` …"""
    used: set[str] = set()
    waiting = [program]
    while waiting:
        code = waiting.pop()
        used.update(code.co_names)
        waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    found: dict[str, Any] = {}
    for name in USUAL_MODULES:
        module = importlib.import_module(name)
        public = [name for name in vars(module) if not name.startswith("_") and not hasattr(builtins, name)]
        own = getattr(module, "__all__", public)
        for each in used.intersection(own) - found.keys() - set(dir(builtins)):
            found[each] = getattr(module, each)
        if name in used:
            found[name] = module
    return found


SEQUENCES = ((list, "list"), (tuple, "tuple"), (frozenset, "frozenset"), (set, "set"))


def described(value: Any, parts: list[int], depth: int = 0) -> Any:
    """A value as JSON that says its type: only its plain content, as the built-in type holds it, never what its own methods say."""
    parts[0] += 1
    if parts[0] > MAX_PARTS or depth > MAX_DEPTH:
        raise ValueError("too large")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, int):
        return {"int": format(int.__int__(value), "x")}
    if issubclass(kind, float):
        return {"float": float.hex(value)}
    if issubclass(kind, complex):
        return {"complex": [float.hex(complex.__pos__(value).real), float.hex(complex.__pos__(value).imag)]}
    if issubclass(kind, bytes):
        return {"bytes": bytes.hex(value)}
    if issubclass(kind, dict):
        return {"dict": [[described(part, parts, depth + 1) for part in pair] for pair in dict.items(value)]}
    for base, name in SEQUENCES:
        if issubclass(kind, base):
            return {name: [described(part, parts, depth + 1) for part in base.__iter__(value)]}
    if hasattr(kind, "__iter__"):
        return {"iterator": [described(part, parts, depth + 1) for part in value]}
    return {"object": kind.__name__}


main(int(sys.argv[1]))
