"""Takes pictures of every page of a running agent's console, for people to look at and for docs/images.

Arguments: the console's address, a directory for the pictures, and words that choose some of them: 1280, 1440 or 390 (pixels), dark or light,
names of pages; "top" for what is at the top of a page only. The pictures are NAME-WIDTH-SCHEME.png.
"""

import asyncio
import base64
import json
import pathlib
import sys
import tempfile
import urllib.parse
import urllib.request

import browser

WIDTHS = {"1280": 900, "1440": 900, "390": 844}
SCHEMES = ("light", "dark")
# The longest page of which a picture is still readable, pixels.
LONGEST = 6000
# How much of a page docs/images shows, pixels.
TOP = {"home": 1000, "class": 1560}


def ask(base, path):
    with urllib.request.urlopen(base + path) as answer:
        return json.load(answer)


def pages(base):
    """Addresses of pages, about what this agent has: the class that burns most CPU, its slowest transaction, the newest finding."""
    served = [one for one in ask(base, "/api/v1/classes")["classes"] if one["side"] == "server"]
    dearest = max(served, key=lambda one: one["cpu_total_s"])
    service, name = dearest["service_name"], dearest["request_class"]
    of = urllib.parse.urlencode({"name": service, "class": name})
    found = {"home": "/", "service": "/service?" + urllib.parse.urlencode({"name": service}), "class": "/class?" + of,
             "transactions": "/transactions?" + of, "compare": "/compare?" + of, "workloads": "/workloads", "health": "/health"}
    kept = ask(base, "/api/v1/transactions?sort=slowest&limit=200")["transactions"]
    # One with many spans shows more.
    small = [one for one in kept if one["spans"] <= 40]
    if small:
        found["transaction"] = "/transaction?id=" + max(small, key=lambda one: one["spans"])["trace_id"]
    # Newest first.
    findings = ask(base, "/api/v1/findings")["findings"]
    ours = [one for one in findings if one["kind"] == "application_change"] or findings
    if ours:
        found["finding"] = f"/finding?id={ours[0]['id']}"
    return found


async def take(page, path, width, most):
    """The page, at most so much of its height."""
    size = (await page.call("Page.getLayoutMetrics"))["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": width, "height": min(size["height"], most), "scale": 1}
    answer = await page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    path.write_bytes(base64.b64decode(answer["data"]))
    print(f"{path.name}: {size['width']:.0f} x {size['height']:.0f}")


async def run(page, base, directory, words):
    chosen = lambda all: [one for one in all if one in words] or list(all)
    found = pages(base)
    for width in chosen(WIDTHS):
        await page.call("Emulation.setDeviceMetricsOverride", width=int(width), height=WIDTHS[width], deviceScaleFactor=1, mobile=width == "390")
        await page.call("Emulation.setScrollbarsHidden", hidden=True)
        for scheme in chosen(SCHEMES):
            await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            for name in chosen(found):
                await page.open(base + found[name])
                await page.until(f"the page {name}", "document.querySelector('#app .card tbody tr, #app .card .empty')")
                # Profiles and charts come after the figures.
                await asyncio.sleep(3)
                most = TOP.get(name, LONGEST) if "top" in words else LONGEST
                await take(page, directory / f"{name}-{width}-{scheme}.png", int(width), most)


def main():
    base, directory, words = sys.argv[1].rstrip("/"), pathlib.Path(sys.argv[2]), set(sys.argv[3:])
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        browser.use(lambda page: run(page, base, directory, words), pathlib.Path(profile))


main()
