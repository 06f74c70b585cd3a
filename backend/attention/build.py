"""Builds the native kernels with the machine's C compiler and keeps it in a cache of this user's own."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

COMPILER_TIMEOUT_S = 120
SOURCES = ("native.c", "products.c", "elementwise.c", "vectors.h")
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fopenmp")
TUNINGS = (("-march=native",), ("-mcpu=native",), ())  # the first that this compiler takes


class BuildError(Exception):
    """The kernel cannot be built or must not be loaded; one line says why."""


def load_library() -> ctypes.CDLL:
    """The compiled kernel, from the cache where it is there. torch must be loaded: its OpenMP is used."""
    compiler = find_compiler()
    package = resources.files("backend.attention")
    sources = {name: package.joinpath(name).read_text(encoding="utf-8") for name in SOURCES}
    library = private_folder(cache_folder()) / f"native-{_digest(sources, compiler)}.so"
    if not library.exists():
        _build(compiler, sources, library)
    _require_private(library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"{library}: {error}") from error


def find_compiler() -> list[str]:
    """The command in $CC, or else cc, gcc or clang."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    raise BuildError(f"no C compiler ({' '.join(named) or 'cc, gcc or clang'}) was found")


def cache_folder() -> Path:
    """$SERVETWIN_CACHE, or servetwin in the user's cache folder."""
    if named := os.environ.get("SERVETWIN_CACHE"):
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "servetwin"
    except RuntimeError as error:
        raise BuildError(f"no home folder to keep the kernel in ({error}); set SERVETWIN_CACHE") from error


def private_folder(folder: Path) -> Path:
    """Makes the folder for this user alone; refuses one that somebody else could write to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"{folder}: {error.strerror}; set SERVETWIN_CACHE to a folder of yours") from error
    _require_private(folder)
    return folder


def _require_private(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise BuildError(f"{path} is a symbolic link; the kernel is only loaded from a folder of its own")
    if found.st_uid != os.getuid():
        raise BuildError(f"{path} belongs to user {found.st_uid}, not to {os.getuid()} who runs this")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BuildError(
            f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):o}); make it 700"
        )


def _digest(sources: Mapping[str, str], compiler: Sequence[str]) -> str:
    """Names a build by all that decides it: another source, compiler or processor is another file."""
    version = _run([*compiler, "--version"]).stdout
    parts = (*sources.values(), repr((FLAGS, TUNINGS)), shlex.join(compiler), version, _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _processor() -> str:
    """The processor's model and instruction sets, as Linux tells them."""
    told = Path("/proc/cpuinfo")
    if not told.exists():
        return f"{platform.machine()} {platform.processor()}"
    first = told.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    kept = ("model name", "flags", "Features", "CPU part", "isa")
    return platform.machine() + "\n".join(line for line in first.splitlines() if line.startswith(kept))


def _build(compiler: Sequence[str], sources: Mapping[str, str], library: Path) -> None:
    """Compiles beside the target and renames, so that others building see none or all of it."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as folder:
        made = Path(folder, "native.so")
        for name, text in sources.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        codes = [str(Path(folder, name)) for name in sources if name.endswith(".c")]
        for tuning in TUNINGS:
            done = _run([*compiler, *FLAGS, *tuning, *codes, "-o", str(made), "-lm"])
            if done.returncode == 0:
                made.chmod(0o700)
                made.replace(library)
                return
        complaint = next(iter(done.stderr.strip().splitlines()), "it said nothing")
        raise BuildError(f"{shlex.join(compiler)} could not build the kernel: {complaint}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{shlex.join(command)}: {error}") from error
