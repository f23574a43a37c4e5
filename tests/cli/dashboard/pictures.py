"""Pictures of a run's page, by headless Chromium: at three widths, light and dark.

python tests/cli/dashboard/pictures.py RUN FOLDER            six pictures of the whole page, for a look
python tests/cli/dashboard/pictures.py RUN FOLDER --small    page.png: its upper part, in few colours
"""

import argparse
import os
import select
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "analysis/report"))

from browser import PATH, Browser
from dashboard_tools import LIMIT_S, TOKEN
from PIL import Image

READ = "document.getElementById('connection').className == 'live' && !document.body.textContent.includes('being read')"
SMALL = (1000, 1180)
COLOURS = 64


def take(browser, url, folder, *, small):
    """Write the pictures, and return their paths."""
    looks = [(SMALL[0], False)] if small else [(width, dark) for width in (360, 800, 1400) for dark in (False, True)]
    for width, dark in looks:
        browser.open(url, width, dark=dark)
        browser.until(READ)
        path = folder / ("page.png" if small else f"{width}-{'dark' if dark else 'light'}.png")
        browser.picture(path)
        if small:
            Image.open(path).convert("RGB").crop((0, 0, *SMALL)).quantize(COLOURS).save(path, optimize=True)
        yield path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    if PATH is None:
        sys.exit("no Chromium is installed")
    asked.folder.mkdir(parents=True, exist_ok=True)
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]  # the browser's own descriptors are 3 and 4
    words = ["dashboard", str(asked.run), "--port", "0", "--token", TOKEN]
    process = subprocess.Popen([sys.executable, "-m", "mlxe_async", *words], stdout=subprocess.PIPE, text=True)
    browser = Browser()
    try:
        assert select.select([process.stdout], [], [], LIMIT_S)[0], "the page is not served"
        url = process.stdout.readline().strip().replace("/?", "/run/latest?")
        for path in take(browser, url, asked.folder, small=asked.small):
            print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")
    finally:
        browser.close()
        process.terminate()
        process.communicate(timeout=LIMIT_S)
        for one in held:
            os.close(one)


if __name__ == "__main__":
    main()
