"""Chromium shows the report from a file: nothing fetched, nothing wider than a narrow window."""

import re
import shutil
import subprocess

import pytest

from ctrlax.lab import gallery
from ctrlax.lab.page import Commands, Figure, Section, Table, Text, page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.extras, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


def seen(file, folder, *options):
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
         "--hide-scrollbars", *options, file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done


@pytest.fixture
def report(tmp_path):
    def panel(axes):
        axes.plot([0, 1], [0, 1], color=gallery.COLORS["blue"])
        axes.set_title("A line")

    gallery.keep([gallery.Picture("line", "Line", "A line.", (panel, panel))], tmp_path / "pictures")
    figures = [Figure(each) for each in gallery.kept(tmp_path / "pictures")]
    wide = Table([f"column {place}" for place in range(20)], [list(range(20))])
    parts = [Section("Pictures", figures), Section("Wide", [wide, Commands([("Long:", "x" * 400)]), Text("over")])]
    file = tmp_path / "report.html"
    file.write_text(page("Report", "lead", parts))
    return file


def test_the_page_is_shown_as_it_was_written(report, tmp_path):
    told = seen(report, tmp_path, "--enable-logging=stderr", "--dump-dom")
    assert "<h1>Report</h1>" in told.stdout
    assert told.stdout.count("<svg") == 2
    assert not re.search(r"CONSOLE|Refused to", told.stderr)


@pytest.mark.parametrize("width", [1040, 500])
def test_nothing_is_wider_than_the_window(report, tmp_path, width):
    # Measured by the page itself, in a copy that may run a script and writes into its own title.
    text = report.read_text()
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    measure = "<script>document.title=document.documentElement.scrollWidth+' of '+window.innerWidth</script>"
    copy = tmp_path / "measured.html"
    copy.write_text(text.replace("</body>", f"{measure}</body>"))
    told = seen(copy, tmp_path, f"--window-size={width},900", "--dump-dom")
    found = re.search(r"<title>(\d+) of (\d+)</title>", told.stdout)
    assert found is not None
    assert int(found.group(1)) <= int(found.group(2))


def test_a_dark_screen_has_a_dark_page(report, tmp_path):
    import numpy as np
    from PIL import Image

    def shade(*options):
        file = tmp_path / "screen.png"
        seen(report, tmp_path, "--window-size=600,600", f"--screenshot={file}", *options)
        return float(np.asarray(Image.open(file).convert("L"))[5, 5])

    assert shade() > 200
    assert shade("--force-dark-mode", "--blink-settings=preferredColorScheme=0") < 60
