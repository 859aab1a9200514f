"""Programs in JavaScript, run in Node and in headless Chromium. Each says in words what this machine lacks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

#: Where `make test-web` has npm install.
MODULES = Path(sys.prefix) / "web" / "node_modules"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: Seconds that a program may take.
LIMIT = 120


def wasm_compiler() -> None:
    """Skip where nothing compiles C to WebAssembly."""
    if find_spec("ziglang") is None and not (shutil.which("clang") and shutil.which("wasm-ld")):
        pytest.skip("there is no compiler for WebAssembly: ziglang (make test-web), or clang and lld")


def onnxruntime_web(folder: Path) -> str:
    """Put onnxruntime-web where programs in a folder see it; its version."""
    package = MODULES / "onnxruntime-web" / "package.json"
    if not package.is_file():
        pytest.skip("onnxruntime-web is not installed (make test-web, which needs npm)")
    (folder / "node_modules").symlink_to(MODULES, target_is_directory=True)
    return str(json.loads(package.read_text(encoding="utf-8"))["version"])


def in_node(folder: Path, program: str) -> Any:
    """What a module ``program`` gives to ``answer(value)``."""
    node = shutil.which("node") or shutil.which("node", path=str(Path(sys.executable).parent))
    if node is None:
        pytest.skip("Node is not installed (make test-web installs it from PyPI)")
    head = (
        'import { writeFileSync } from "node:fs";\n'
        'const answer = (v) => writeFileSync("answer.json", JSON.stringify(v));\n'
    )
    (folder / "in_node.mjs").write_text(head + program, encoding="utf-8")
    done = subprocess.run([node, "in_node.mjs"], cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "answer.json").read_text(encoding="utf-8"))


class _Handler(SimpleHTTPRequestHandler):
    """Files of a folder, and what a page answers."""

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".wasm": "application/wasm"}

    def __init__(self, answers: Queue[Any], *args: Any, **kwargs: Any) -> None:
        self._answers = answers
        super().__init__(*args, **kwargs)

    def do_POST(self) -> None:
        """The answer."""
        self._answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


def in_chromium(folder: Path, program: str, head: str = "") -> Any:
    """What a module ``program`` gives to ``answer(value)``, in a page with this ``head`` and an empty body."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser is installed: one of {', '.join(_BROWSERS)}")
    text = (
        f'<!doctype html><meta charset="utf-8">{head}<body><script type="module">\n'
        'const answer = (v) => fetch("/answer", { method: "POST", body: JSON.stringify(v) });\n'
        'addEventListener("error", (e) => answer({ error: String(e.message) }));\n'
        'addEventListener("unhandledrejection", (e) => answer({ error: String(e.reason?.stack ?? e.reason) }));\n'
        f"{program}\n</script></body>"
    )
    (folder / "in_chromium.html").write_text(text, encoding="utf-8")
    answers: Queue[Any] = Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, answers, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        address = f"http://127.0.0.1:{server.server_port}/in_chromium.html"
        process = subprocess.Popen(
            [browser, *options, f"--user-data-dir={profile}", "--window-size=1280,900", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            value = answers.get(timeout=LIMIT)
        except Empty:
            pytest.fail(f"the page did not answer within {LIMIT} s")
        finally:
            process.terminate()
            process.wait()
            server.shutdown()
            server.server_close()
    assert not (isinstance(value, dict) and "error" in value), value["error"]
    return value
