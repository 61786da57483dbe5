# Spack's form of a recipe; `python release/build.py recipes` fills in version and sha256.
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyHpcncf(PythonPackage):
    """Measure why a training job wastes its cores, and what to request instead."""

    homepage = "https://pypi.org/project/hpcncf"
    pypi = "hpcncf/hpcncf-@VERSION@.tar.gz"

    license("MIT")

    version("@VERSION@", sha256="@SHA256@")

    variant("native", default=True, description="Build the compiled engine")

    depends_on("cxx", type="build", when="+native")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-shtab@1.13:", type=("build", "run"))
    depends_on("py-torch@2.4:", type=("build", "run"))
    depends_on("py-submitit@1.5.2:", type=("build", "run"))
    depends_on("py-pandas@2.2:", type=("build", "run"))
    depends_on("py-pyyaml@6:", type=("build", "run"))
    depends_on("py-psutil@5.9:", type=("build", "run"))
    depends_on("py-matplotlib@3.8:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-pydantic@2.7:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-cloudpickle@2:", type=("build", "run"))

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        if self.spec.satisfies("~native"):
            env.set("HPCNCF_NATIVE", "0")
