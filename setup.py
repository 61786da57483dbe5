"""Builds engine native where there is a C++ compiler; everything else is in pyproject.toml.

Each instruction set is a library of its own, chosen when it is loaded: one program that holds them
all could, through a shared inline function, run an instruction that the CPU has not.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("hpcncf/ncf/engines/native/src")
# Not -ffast-math: a NaN must stay one, and gcc's start-up code for it changes the whole process.
# Python's own flags say -fwrapv, for its sake: loops whose counter may wrap around are slower.
COMMON = [
    *("-std=c++17", "-O3", "-pthread", "-fvisibility=hidden", "-fno-gnu-unique", "-g0"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-wrapv", "-Wno-psabi"),
]
# Behind Python's own flags and the environment's, which on clusters often name the CPU that builds.
ANY_X86 = ["-march=x86-64"]
# What has AVX2 has PREFETCHW, or does nothing for it.
AVX2 = [*ANY_X86, "-mavx2", "-mfma", "-mprfchw"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "dq", "bw", "vl"))]
BUILDS: dict[str, list[str]] = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    BUILDS = {
        "baseline": ANY_X86,
        "avx2": AVX2,
        "avx512": [*AVX512, "-mprefer-vector-width=512"],
    }

setup(
    ext_modules=[
        Extension(
            f"hpcncf.ncf.engines.native._{name}",
            sources=[str(SOURCE / "api.cpp")],
            depends=sorted(str(header) for header in SOURCE.glob("*.h")),
            extra_compile_args=[*COMMON, *flags],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,  # without a compiler, engine rowwise serves
        )
        for name, flags in BUILDS.items()
    ]
)
