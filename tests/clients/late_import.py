"""Imports a client when a test first uses it: every test process reads the files of this folder, one runs them."""

import importlib.util
import sys
from types import ModuleType


def late_import(name: str) -> ModuleType:
    """Return a module that is executed when its first attribute is read."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    assert spec
    assert spec.loader
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
