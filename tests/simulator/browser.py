"""A page as a browser lays it out, measured at a phone's and at a desk's width."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import NamedTuple

import pytest

WIDTHS_PX = (390, 1200)  # a phone, a desk
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --enable-logging=stderr "
    "--allow-file-access-from-files --virtual-time-budget=20000 --dump-dom"
)
# The page stands in a frame of the width: a window cannot be made as narrow as a phone.
AROUND = """<!doctype html><title>frame</title>
<iframe src="NAME" style="height: 900px; border: 0"></iframe><pre id="found"></pre>
<script>
const frame = document.querySelector("iframe");
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const told = (one) => one.outerHTML.slice(0, 200);
function measured(page) {
  const scrolls = (one) => one.scrollWidth > one.clientWidth
    && /auto|scroll/.test(page.defaultView.getComputedStyle(one).overflowX);
  const scrolling = [...page.querySelectorAll("body *")].filter(scrolls);
  const pressed = [...page.querySelectorAll("a, button, summary, [role=button]")];
  return {
    width_px: page.documentElement.clientWidth,
    content_px: page.documentElement.scrollWidth,
    titles: page.querySelectorAll("h1").length,
    charts: page.querySelectorAll(".chart").length,
    drawn: page.querySelectorAll(".chart .svg-container").length,
    buttons: page.querySelectorAll("button").length,
    nameless: pressed.filter((one) => !one.getAttribute("aria-label") && !one.textContent.trim()).map(told),
    scrolling: scrolling.length,
    unreachable: scrolling.filter((one) => one.tabIndex < 0 || !one.getAttribute("aria-label")).map(told),
    inside_images: page.querySelectorAll("[role=img] a, [role=img] button").length,
  };
}
async function look() {
  const page = frame.contentDocument, charts = page.querySelectorAll(".chart"), found = [];
  while (page.querySelectorAll(".save").length < charts.length) await pause(100);
  page.querySelectorAll("details").forEach((one) => { one.open = true; });
  for (const width of WIDTHS) {
    frame.style.width = width + "px";
    await pause(500);
    found.push(measured(page));
  }
  document.getElementById("found").textContent = JSON.stringify(found);
}
frame.addEventListener("load", look);
</script>"""


class Look(NamedTuple):
    """A page with everything in it unfolded.

    ``nameless``: what can be pressed and has no name. ``unreachable``: what scrolls sideways and has no
    name or cannot be reached by keys. ``inside_images``: what can be pressed in an image.
    """

    width_px: int
    content_px: int
    titles: int
    charts: int
    drawn: int
    buttons: int
    nameless: list[str]
    scrolling: int
    unreachable: list[str]
    inside_images: int


def look_at(page: Path) -> tuple[list[Look], list[str]]:
    """The page at each width, and the browser's complaints; skips where there is no browser."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("needs Chromium to lay the page out")
    frame = page.with_name(f"{page.stem}-in-a-frame.html")
    text = AROUND.replace("NAME", page.name).replace("WIDTHS", json.dumps(WIDTHS_PX))
    frame.write_text(text, encoding="utf-8")
    command = [browser, *FLAGS.split(), f"--user-data-dir={page.parent / 'profile'}", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.S)
    assert found is not None, ("the page was never finished", complaints)
    return [Look(**look) for look in json.loads(unescape(found[1]))], complaints
