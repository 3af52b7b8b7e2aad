"""Take the picture of the README and of the site's first page: a report page in a headless browser.

python docs/picture.py    (needs `pip install ".[html]"`, and Chromium)
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).with_name("report.png")
MODEL = PICTURE.parents[1] / "examples" / "model.onnx"
COMMAND = "model.onnx out.onnx --to unroll --set-shape X:16,1,80 --report out.html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = (900, 584)
"""Width and height of the picture, of the top of the page."""


def main() -> None:
    """Write the picture."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(MODEL, folder)
        subprocess.run([sys.executable, "-m", "rnn_lowering", *COMMAND.split()], cwd=folder, check=True)
        page = f"file://{folder}/out.html"
        shown = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        taken = [f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={PICTURE}", page]
        subprocess.run([browser, *shown, *taken], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
