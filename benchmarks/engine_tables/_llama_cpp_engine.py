"""llama.cpp as a program: built from the source archive of llama-cpp-python, and called with token ids or arguments.

Run: `python benchmarks/engine_tables/_llama_cpp_engine.py FOLDER` downloads the archive (76 MB) into FOLDER and builds
there what tests and tables need, if this version is not there. It needs a C++ compiler, and cmake and ninja in the
environment. The first build takes 5 to 9 minutes on two cores; the folder then has 260 MB.
"""

import ctypes
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

# The Python module has the structures of the same version of llama.cpp, so that they are not written here again.
PACKAGE = "llama-cpp-python==0.3.36"
TARGETS = ("llama", "llama-debug", "test-llama-archs")
SETTINGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_CXX_FLAGS_RELEASE": "-O1",
    "CMAKE_BUILD_RPATH_USE_ORIGIN": "ON",  # so that the folder can be moved
    "GGML_OPENMP": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_TESTS": "ON",
}
ERROR = 4  # GGML_LOG_LEVEL_ERROR
KINDS = {int: (0, "val_i64"), float: (1, "val_f64"), bool: (2, "val_bool"), str: (3, "val_str")}


class Engine(NamedTuple):
    """A folder with a source and a build for each version."""

    root: Path

    @property
    def folder(self):
        return self.root / PACKAGE.replace("==", "-")

    @property
    def is_built(self):
        return all((self.programs / name).exists() for name in TARGETS[1:])

    @property
    def source(self):
        return self.folder / "source" / "vendor" / "llama.cpp"

    @property
    def programs(self):
        return self.folder / "build" / "bin"

    @property
    def version(self):
        """The version in CMakeLists.txt, as `llama-cli --version` prints it before its `-dev`."""
        text = (self.source / "CMakeLists.txt").read_text("utf-8")
        return ".".join(re.search(rf"LLAMA_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))

    def library(self):
        """The functions and structures of libllama."""
        if "llama_cpp" not in sys.modules:
            package = ModuleType("llama_cpp")  # whose own `__init__` needs packages for servers
            package.__path__ = [str(self.folder / "source" / "llama_cpp")]
            sys.modules["llama_cpp"] = package
            os.environ["LLAMA_CPP_LIB_PATH"] = str(self.programs)
            library = import_module("llama_cpp.llama_cpp")
            library.llama_log_set(LOG, None)
            library.llama_backend_init()
        return sys.modules["llama_cpp.llama_cpp"]

    def logits(self, file, tokens, overrides=None, **settings):
        """Logits of all tokens, "tokens vocabulary". `settings` are fields of `llama_context_params`."""
        return self._with_model(file, overrides, lambda library, model: _logits(library, model, tokens, settings))

    def longest(self, file, overrides=None, **settings):
        """The context at which the server would cap a sequence: `llama_model_n_ctx_train` beside a context."""

        def length(library, model):
            context = _context(library, model, settings)
            found = library.llama_model_n_ctx_train(model)
            library.llama_free(context)
            return found

        return self._with_model(file, overrides, length)

    def _with_model(self, file, overrides, function):
        library = self.library()
        model_params = library.llama_model_default_params()
        entries = _entries(library, overrides or {})
        model_params.kv_overrides = ctypes.cast(entries, type(model_params.kv_overrides))
        model = library.llama_model_load_from_file(str(file).encode(), model_params)
        if not model:
            raise ValueError(f"llama.cpp must load {Path(file).name}; got an error")
        try:
            return function(library, model)
        finally:
            library.llama_model_free(model)

    def debug(self, file, prompt, flags, folder):
        """Token ids of a prompt, and the logits of the last one, with arguments as llama.cpp parses them."""
        exact = ["-fa", "off", "-ctk", "f32", "-ctv", "f32", "--no-warmup", "-t", "1"]
        output = ["--save-logits", "--logits-output-dir", str(folder)]
        program = self.programs / "llama-debug"
        command = [program, "-m", file, "-p", prompt, *exact, *output, *flags]
        subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=60)
        name = f"llamacpp-{Path(file).stem}"
        return tuple(np.fromfile(folder / f"{name}{end}.bin", kind) for end, kind in (("-tokens", "i4"), ("", "f4")))

    def write_models(self, architecture, folder):
        """Tiny models of one architecture with random weights: their files."""
        command = [self.programs / "test-llama-archs", "-a", architecture, "-o", folder, "-s", "1", "-d", "0.5"]
        subprocess.run(list(map(str, command)), check=False, capture_output=True, timeout=120)
        return sorted(folder.glob("*.gguf"))


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def LOG(level, text, data):
    """Write only errors of llama.cpp."""
    if level == ERROR:
        os.write(2, text)


def _entries(library, overrides):
    """Overrides of metadata, and the empty entry that ends them."""
    entries = (library.llama_model_kv_override * (len(overrides) + 1))()
    for entry, (key, value) in zip(entries, overrides.items()):
        entry.tag, field = KINDS[type(value)]
        entry.key = key.encode()
        setattr(entry.value, field, value.encode() if isinstance(value, str) else value)
    return entries


def _context(library, model, settings):
    params = library.llama_context_default_params()
    exact = {"type_k": 0, "type_v": 0, "flash_attn_type": 0, "n_threads": 1, "n_threads_batch": 1}
    batch = {"n_ctx": 0, "n_batch": 4096, "n_ubatch": 4096, "n_outputs_max": 0}
    for name, value in {**exact, **batch, **settings}.items():
        setattr(params, name, value)
    context = library.llama_init_from_model(model, params)
    if not context:
        raise ValueError("llama.cpp must make a context; got an error")
    return context


def _logits(library, model, tokens, settings):
    context = _context(library, model, settings)
    try:
        rows = library.llama_batch_init(len(tokens), 0, 1)
        rows.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            rows.token[index], rows.pos[index] = int(token), index
            rows.n_seq_id[index], rows.seq_id[index][0], rows.logits[index] = 1, 0, 1
        if library.llama_decode(context, rows):
            raise ValueError("llama.cpp must compute logits; got an error")
        width = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        found = library.llama_get_embeddings if settings.get("embeddings") else library.llama_get_logits
        width = library.llama_model_n_embd(model) if settings.get("embeddings") else width
        values = found(context)
        if not values:
            raise ValueError("llama.cpp must give logits; got none")
        result = np.ctypeslib.as_array(values, (len(tokens), width)).copy()
        library.llama_batch_free(rows)
        return result
    finally:
        library.llama_free(context)


def built(folder):
    """The engine in a folder. What is missing there is downloaded and built."""
    engine = Engine(Path(folder).resolve())
    if not (engine.folder / "source").exists():
        _download(engine.folder)
    if not engine.is_built:
        tools = {**os.environ, "PATH": sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]}
        place = str(engine.folder / "build")
        settings = [f"-D{name}={value}" for name, value in SETTINGS.items()]
        subprocess.run(
            ["cmake", "-S", str(engine.source), "-B", place, "-G", "Ninja", *settings], check=True, env=tools
        )
        subprocess.run(["ninja", "-C", place, f"-j{os.cpu_count()}", *TARGETS], check=True, env=tools)
    return engine


def _download(folder):
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, "--no-build-isolation", "--dest", str(folder), PACKAGE], check=True)
    (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    archive.unlink()
    (unpacked,) = folder.glob("llama_cpp_python-*")
    unpacked.rename(folder / "source")


if __name__ == "__main__":
    print(built(sys.argv[1]).version)
