"""The system calls that a sandboxed program may make, as a seccomp filter: everything else fails.

Calls that can reach another process, the network, the caller's files or the program's own guards are not in the list. Those that
are harmless for some arguments only are listed with these.
"""

from __future__ import annotations

ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
pwritev 296 70, preadv2 327 286, pwritev2 328 287, open 2 -, openat 257 56, openat2 437 437, creat 85 -,
close 3 57, close_range 436 436, lseek 8 62, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79,
statx 332 291, statfs 137 43, fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439,
readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50,
rename 82 -, renameat 264 38, renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -,
unlinkat 263 35, truncate 76 45, ftruncate 77 46, fallocate 285 47, fadvise64 221 223, fsync 74 82,
fdatasync 75 83, sendfile 40 71, copy_file_range 326 285, umask 95 166, dup 32 23, dup2 33 -, dup3 292 24,
pipe 22 -, pipe2 293 59, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, mmap 9 222, mprotect 10 226,
munmap 11 215, mremap 25 216, madvise 28 233, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135,
rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133,
sigaltstack 131 132, restart_syscall 219 128, pause 34 -, alarm 37 -, getitimer 36 102, setitimer 38 103,
nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169,
time 201 -, times 100 153, getrusage 98 165, sysinfo 99 179, uname 63 160, getrandom 318 278, getcpu 309 168,
getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getgroups 115 158, getresuid 118 148, getresgid 120 150, getpgrp 111 -, getrlimit 97 163,
sched_yield 24 124, sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120,
sched_get_priority_max 146 125, sched_get_priority_min 147 126, futex 202 98, set_tid_address 218 96,
set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, membarrier 324 283, arch_prctl 158 -,
exit 60 93, exit_group 231 94
"""
"""Name and number on x86-64 and on AArch64 (``-`` where the machine has no such call) of what is allowed for all arguments."""

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_KILL, _TGKILL, _CLONE, _PRLIMIT = (62, 129), (234, 131), (56, 220), (302, 261)
_FCNTL, _IOCTL, _PRCTL = (72, 25), (16, 29), (157, 167)

_CLONE_THREAD, _O_ASYNC, _F_SETFL = 0x10000, 0x2000, 4
_FCNTL_COMMANDS = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: none names another process
_IOCTL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIO(N)CLEX
_PRCTL_OPTIONS = (15, 16, 0x53564D41)  # the name of a thread, and names of memory areas
_FIRST_LATE = 424  # calls from here on are newer than some C libraries, which fall back where the kernel has none

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _GIVE = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _DENY, _ABSENT, _END = (
    0x7FFF0000,
    0x00050000 | 1,
    0x00050000 | 38,
    0x80000000,
)  # EPERM, ENOSYS, end of the process

SELF = -1
"""Stands for the number of the process itself in a filter; the sandboxed process puts it in."""

Line = tuple[int, int, int, int]
"""One instruction of classic BPF: code, jump if true, jump if false, operand."""


def filter_for(machine: str, *, may_set_limits: bool) -> list[Line]:
    """The filter of a machine, ``x86_64`` or ``aarch64``; empty for one that is not known.

    Args:
        may_set_limits: whether the program may change its own resource limits, which is safe where it can't raise them.
    """
    if machine not in _AUDIT:
        return []
    column = list(_AUDIT).index(machine)
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT[machine]), (_GIVE, 0, 0, _END), (_LOAD, 0, 0, 0)]
    for number in _numbers(column):
        lines += _on(number, [(_GIVE, 0, 0, _ALLOW)])
    for call in (_KILL, _TGKILL):
        lines += _on(call[column], _one_of(0, (0, SELF)))
    lines += _on(
        _CLONE[column], [_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), (_GIVE, 0, 0, _ALLOW), (_GIVE, 0, 0, _DENY)]
    )
    lines += _on(_PRLIMIT[column], _limits(may_set_limits))
    lines += _on(_FCNTL[column], _fcntl())
    lines += _on(_IOCTL[column], _one_of(1, _IOCTL_REQUESTS))
    lines += _on(_PRCTL[column], _one_of(0, _PRCTL_OPTIONS))
    return [*lines, (_AT_LEAST, 0, 1, _FIRST_LATE), (_GIVE, 0, 0, _ABSENT), (_GIVE, 0, 0, _DENY)]


def _numbers(column: int) -> list[int]:
    entries = (entry.split() for entry in ALLOWED.replace("\n", " ").split(","))
    return [int(entry[1 + column]) for entry in entries if entry[1 + column] != "-"]


def _on(number: int, body: list[Line]) -> list[Line]:
    """The body for one call; it ends in an answer for every argument."""
    return [(_EQUAL, 0, len(body), number), *body]


def _argument(place: int, high: bool = False) -> Line:
    return (_LOAD, 0, 0, 16 + 8 * place + 4 * high)


def _one_of(place: int, values: tuple[int, ...]) -> list[Line]:
    lines = [_argument(place)]
    for value in values:
        lines += [(_EQUAL, 0, 1, value), (_GIVE, 0, 0, _ALLOW)]
    return [*lines, (_GIVE, 0, 0, _DENY)]


def _fcntl() -> list[Line]:
    """Harmless commands, and flags without ``O_ASYNC``, which sends signals."""
    flags = [_argument(2), (_ANY_BIT, 0, 1, _O_ASYNC), (_GIVE, 0, 0, _DENY), (_GIVE, 0, 0, _ALLOW)]
    commands = _one_of(1, _FCNTL_COMMANDS)
    return [*commands[:-1], (_EQUAL, 0, len(flags), _F_SETFL), *flags, commands[-1]]


def _limits(may_set: bool) -> list[Line]:
    """The limits of the process itself; only their reading where it could raise them."""
    reading = [_argument(2), (_EQUAL, 0, 3, 0), _argument(2, high=True), (_EQUAL, 0, 1, 0), (_GIVE, 0, 0, _ALLOW)]
    body = [(_GIVE, 0, 0, _ALLOW)] if may_set else [*reading, (_GIVE, 0, 0, _DENY)]
    own = [_argument(0), (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, SELF), (_GIVE, 0, 0, _DENY)]
    return [*own, *body]
