"""The source distribution contains everything that the build reads, and builds without a repository.

TUTTI_TEST_WHOLE_SDIST=1: builds from it with pip, which takes minutes, and tests the result.
"""
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

HAVE_BUILDER = importlib.util.find_spec("scikit_build_core") is not None
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REPOSITORY = os.path.dirname(os.path.dirname(ROOT))
BUILD = "import sys; sys.path.insert(0, 'backend'); import tutti_build; print(tutti_build.build_sdist(sys.argv[1]))"
WHOLE = os.environ.get("TUTTI_TEST_WHOLE_SDIST")


def command(words, folder, limit_s, **variables):
    return subprocess.run(words, cwd=folder, env=dict(os.environ, **variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=limit_s, check=False)


def make(project, folder):
    """The path of the source distribution of a project's folder."""
    done = command([sys.executable, "-c", BUILD, folder], project, 100)
    if done.returncode != 0:
        raise AssertionError(done.stdout)
    return os.path.join(folder, done.stdout.strip().splitlines()[-1])


def names(sdist):
    """The names of all files, below the one folder."""
    with tarfile.open(sdist) as packed:
        return sorted(member.name.split("/", 1)[1] for member in packed if member.isfile())


@unittest.skipUnless(HAVE_BUILDER, "scikit-build-core is not installed")
class Sdist(unittest.TestCase):
    def setUp(self):
        own = tempfile.TemporaryDirectory(prefix="torch-sdist-")
        self.addCleanup(own.cleanup)
        self.folder = own.name
        self.sdist = make(ROOT, self.folder)

    def unpacked(self):
        with tarfile.open(self.sdist) as packed:
            packed.extractall(self.folder)
        return os.path.join(self.folder, os.path.basename(self.sdist)[:-len(".tar.gz")])

    def test_it_is_named_by_the_projects_version_and_contains_only_sources(self):
        with open(os.path.join(REPOSITORY, "CMakeLists.txt"), encoding="utf-8") as file:
            version = file.read().split("project(tutti VERSION ")[1].split()[0]
        self.assertEqual(os.path.basename(self.sdist), "torch_tutti-%s.tar.gz" % version)
        held = names(self.sdist)
        for name in ("pyproject.toml", "PKG-INFO", "CMakeLists.txt", "README.md", "src/module/module.cpp", "torch_tutti/__init__.py",
                     "torch_tutti_as_gloo.pth", "tutti/CMakeLists.txt", "tutti/LICENSE", "tutti/include/tutti/tutti.h"):
            self.assertIn(name, held)
        self.assertEqual([name for name in held if name.endswith((".pyc", ".so", ".o"))], [])
        self.assertLess(os.path.getsize(self.sdist), 3 << 20)

    def test_every_file_of_the_folders_that_are_built_is_in_it(self):
        held = set(names(self.sdist))
        needed = {os.path.join("tutti", os.path.relpath(os.path.join(here, name), REPOSITORY))
                  for folder in ("bootstrap", "comm", "ddp", "include", "kernels", "rdma", "tensor")
                  for here, _, files in os.walk(os.path.join(REPOSITORY, folder)) for name in files if not name.endswith(".pyc")}
        self.assertIn("tutti/kernels/device.c", needed)
        self.assertEqual(sorted(needed - held), [])

    @unittest.skipUnless(shutil.which("cmake") and shutil.which("cc"), "needs CMake and a compiler")
    def test_cmake_finds_all_files_that_it_reads(self):
        """Only the library: CMake reports missing sources of a target when it generates."""
        done = command(["cmake", "-S", os.path.join(self.unpacked(), "tutti"), "-B", os.path.join(self.folder, "build"),
                        "-DTUTTI_TESTS=OFF", "-DTUTTI_CUDA=OFF"], "/", 100)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_source_distribution_of_an_unpacked_one_is_the_same(self):
        again = os.path.join(self.folder, "again")
        os.mkdir(again)
        self.assertEqual(names(make(self.unpacked(), again)), names(self.sdist))

    @unittest.skipUnless(WHOLE, "TUTTI_TEST_WHOLE_SDIST is not set")
    def test_pip_installs_it_and_it_works(self):
        site = os.path.join(self.folder, "site")
        done = command([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--target", site,
                        "-C", "cmake.define.TUTTI_CUDA=OFF", self.sdist], self.folder, 1500, TUTTI_TORCH_PYTHON=sys.executable)
        self.assertEqual(done.returncode, 0, done.stdout)
        done = command([sys.executable, "-m", "torch_tutti"], self.folder, 200, PYTHONPATH=site)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(os.path.join(site, "torch_tutti", "libtutti.so"), done.stdout)
        self.assertIn("passed", done.stdout)


if __name__ == "__main__":
    unittest.main()
