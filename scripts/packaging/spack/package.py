# A Spack recipe. The README beside it says how to use it.

import os

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Dptrain(MakefilePackage):
    """Data-parallel training of neural networks with MPI: one C program and one YAML file per job. It reads HDF5,
    resumes where it was stopped, and can be byte-identical at any number of ranks."""

    # `make dist` makes it; DPTRAIN_DIST is the folder where it lies.
    url = f"file://{os.environ.get('DPTRAIN_DIST', os.getcwd())}/dptrain-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0")

    variant("onednn", default=True, description="Use oneDNN's kernels besides dptrain's own")

    depends_on("c", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi")
    depends_on("hdf5@1.10:")
    depends_on("libyaml")
    depends_on("jansson@2.8:")
    depends_on("zlib-api")
    depends_on("libzip@1.4:")
    depends_on("libpng@1.6:")
    depends_on("jpeg")
    depends_on("libtiff@4:")
    depends_on("libwebp")
    depends_on("onednn@2.6:", when="+onednn")

    # The build option of the Makefile that says where a library lies, and the library.
    roots = {
        "HDF5_ROOT": "hdf5",
        "YAML_ROOT": "libyaml",
        "JANSSON_ROOT": "jansson",
        "ZLIB_ROOT": "zlib-api",
        "LIBZIP_ROOT": "libzip",
        "PNG_ROOT": "libpng",
        "JPEG_ROOT": "jpeg",
        "TIFF_ROOT": "libtiff",
        "WEBP_ROOT": "libwebp",
    }

    def knobs(self):
        spec = self.spec
        knobs = [f"CC={spack_cc}", f"MPICC={spec['mpi'].mpicc}", f"PREFIX={self.prefix}"]
        knobs += [f"{root}={spec[library].prefix}" for root, library in self.roots.items()]
        if spec.satisfies("+onednn"):
            return knobs + ["ONEDNN=1", f"ONEDNN_ROOT={spec['onednn'].prefix}"]
        return knobs + ["ONEDNN=0"]

    @property
    def build_targets(self):
        return self.knobs() + ["all"]

    @property
    def install_targets(self):
        return self.knobs() + ["install"]

    def test_version(self):
        """the program starts, with all of its libraries"""
        dptrain = Executable(join_path(self.prefix.bin, "dptrain"))
        assert f"dptrain {self.spec.version}" in dptrain("--version", output=str.split, error=str.split)
