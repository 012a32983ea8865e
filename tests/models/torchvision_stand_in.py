"""timm where torchvision cannot be imported.

timm's encoders run without torchvision: they take from it one class that they only ask about (`isinstance`), and timm's
data loading takes transforms. Torchvision has no build for some builds of torch (its wheels ask for CUDA's), and timm
then does not import. `import_timm` imports the real timm; where there is no torchvision, names that timm asks it for
are classes that refuse to be made.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types


class _Absent(type):
    """A class whose every attribute is absent too, and which nothing can make."""

    def __call__(cls, *arguments, **options):
        raise RuntimeError(f"torchvision is not installed: {cls.__name__} is only a name")

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


@contextlib.contextmanager
def _torchvision():
    """Torchvision by name alone for a while; afterwards nobody else finds it."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def import_timm():
    """The real timm; an ImportError where it is not installed."""
    with contextlib.nullcontext() if importlib.util.find_spec("torchvision") else _torchvision():
        return importlib.import_module("timm")
