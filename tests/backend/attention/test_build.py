"""Building the native kernel: once, in a folder that nobody else can write to, or not at all and said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the live backend needs torch (pip install servetwin[live])")

from backend.attention import build, choose, native, sdpa  # noqa: E402
from backend.attention.build import BuildError, find_compiler, load_library, private_folder  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SERVETWIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


FAST = tuple("-O0" if flag == "-O3" else flag for flag in build.FLAGS)  # what is built matters not here


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FLAGS", FAST)
    try:
        find_compiler()
    except BuildError as error:
        pytest.skip(str(error))


def compiler_that(tmp_path: Path, does: str) -> str:
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    return str(script)


def test_the_library_is_built_once_for_this_user_alone(cache: Path, compiler: None) -> None:
    load_library()
    (library,) = cache.iterdir()
    assert cache.stat().st_mode & 0o777 == 0o700
    assert library.stat().st_mode & 0o777 == 0o700
    built = library.stat().st_mtime_ns
    load_library()
    assert [library] == list(cache.iterdir())
    assert library.stat().st_mtime_ns == built


def test_builders_at_the_same_time_all_get_a_whole_library(cache: Path, compiler: None) -> None:
    code = f"from backend.attention import build, native; build.FLAGS = {FAST}; print(native.load().name)"
    commands = [[sys.executable, "-c", code]] * 3
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    names = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(set(names)) == 1
    assert len(list(cache.iterdir())) == 1


def test_the_pool_of_torch_is_the_pool_of_the_kernel(cache: Path, compiler: None) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("loaded libraries are listed in /proc on Linux only")
    load_library()
    pools = {
        line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line or "libiomp" in line
    }
    assert len(pools) == 1


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(BuildError, match=f"can be written by others \\(mode {mode:o}\\); make it 700"):
        private_folder(cache)


def test_a_library_that_others_can_write_to_is_not_loaded(cache: Path, compiler: None) -> None:
    load_library()
    next(cache.iterdir()).chmod(0o722)
    with pytest.raises(BuildError, match="can be written by others"):
        load_library()


def test_a_link_in_place_of_the_folder_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildError, match="is a symbolic link"):
        private_folder(cache)


def test_a_folder_of_another_user_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private_folder(cache)
    monkeypatch.setattr(os, "getuid", lambda: cache.stat().st_uid + 1)
    with pytest.raises(BuildError, match="belongs to user"):
        private_folder(cache)


def test_without_a_compiler_attention_falls_back_and_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    kernels, notices = choose(CPU, torch.float32, 64)
    assert kernels is sdpa.KERNELS
    assert notices == (
        "attention by SDPA, several times slower: no C compiler (no-such-compiler) was found",
    )


def test_a_failed_build_falls_back_and_names_the_first_complaint(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler_that(tmp_path, 'echo "native.c:1: no luck" >&2; exit 1'))
    kernels, (notice,) = choose(CPU, torch.bfloat16, 64)
    assert kernels is sdpa.KERNELS
    assert notice.endswith("could not build the kernel: native.c:1: no luck")
    assert list(cache.iterdir()) == []


def test_a_library_that_cannot_be_loaded_falls_back(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes_rubbish = 'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo rubbish > "$2"; shift; done; exit 0'
    monkeypatch.setenv("CC", compiler_that(tmp_path, writes_rubbish))
    kernels, (notice,) = choose(CPU, torch.float32, 64)
    assert kernels is sdpa.KERNELS
    assert str(cache) in notice


def test_another_compiler_is_another_build(
    cache: Path, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_library()
    monkeypatch.setenv("CC", " ".join([*find_compiler(), "-DUNUSED"]))
    load_library()
    assert len(list(cache.iterdir())) == 2


def test_cpus_get_the_native_kernel_and_odd_types_sdpa(cache: Path, compiler: None) -> None:
    kernels, notices = choose(CPU, torch.float32, 64)
    assert kernels.name.startswith("native ")
    assert isinstance(kernels.decode.__self__, native.Native)
    assert notices == ()
    assert choose(CPU, torch.float64, 64)[0] is sdpa.KERNELS
    assert choose(CPU, torch.float32, 1024)[0] is sdpa.KERNELS
    assert choose(torch.device("meta"), torch.float32, 64)[0] is sdpa.KERNELS
