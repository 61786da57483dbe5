"""Build engine native, man pages and completions; everything else is in pyproject.toml.

Each instruction set is a library of its own, selected when it is loaded: one program that held
them all could, through a shared inline function, run an instruction that the CPU lacks. The
libraries are loaded with ctypes and know no Python, so one wheel serves every version of it.

HPCNCF_NATIVE=0 in the environment builds without them: a wheel for any machine.
HPCNCF_PLATFORM names the platform of a wheel that is built for another (release/build.py).
"""

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "release"))
from manual import write_shared_files

PLATFORM = os.environ.get("HPCNCF_PLATFORM", "")
MACHINE = PLATFORM.split("_", 3)[-1] if PLATFORM else platform.machine()
ZIG = "zig" in os.environ.get("CXX", "")
SOURCE = Path("hpcncf/native/src")
# Not -ffast-math: a NaN must stay one, and gcc's start-up code for it changes the whole process.
# Python's own flags say -fwrapv, for its sake: loops whose counter may wrap around are slower.
COMMON = [
    *("-std=c++17", "-O3", "-pthread", "-fvisibility=hidden", "-g0"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-wrapv", "-Wno-psabi"),
    *([] if ZIG else ["-fno-gnu-unique"]),
]
# Behind Python's own flags and the environment's, which on clusters often name the CPU that builds.
ANY_X86 = ["-mcpu=x86_64" if ZIG else "-march=x86-64"]
# What has AVX2 has PREFETCHW, or does nothing for it.
AVX2 = [*ANY_X86, "-mavx2", "-mfma", "-mprfchw"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "dq", "bw", "vl"))]
BUILDS: dict[str, list[str]] = {"baseline": []}
if MACHINE in ("x86_64", "AMD64"):
    BUILDS = {
        "baseline": ANY_X86,
        "avx2": AVX2,
        "avx512": [*AVX512, "-mprefer-vector-width=512"],
    }


class BuildLibrary(build_ext):
    """Names a library without the version of Python that builds it."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))


class BuildWheel(bdist_wheel):
    """Tags a wheel with the platform only: py3-none-linux_x86_64."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", PLATFORM or super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": BuildWheel},
    data_files=write_shared_files(Path("build")),
    ext_modules=[
        Extension(
            f"hpcncf.native._{name}",
            sources=[str(SOURCE / "api.cpp")],
            depends=sorted(str(header) for header in SOURCE.glob("*.h")),
            extra_compile_args=[*COMMON, *flags],
            extra_link_args=["-pthread"],
            language="c++",
            optional=not PLATFORM,  # without a compiler, engine rowwise serves
        )
        for name, flags in BUILDS.items()
        if os.environ.get("HPCNCF_NATIVE") != "0"
    ],
)
