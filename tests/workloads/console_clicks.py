"""Uses the console as a person does, in headless Chromium: opens, searches, sorts, clicks, reloads.

Arguments: the console's address, a directory for the browser's profile and screenshots. Prints what it found; fails with the
step that did not come true.
"""

import asyncio
import base64
import json
import pathlib
import subprocess
import sys
import time

import websockets

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --remote-debugging-port=0""".split()
LIMIT = 40
# Endpoints that not every agent has: a browser logs each answer of 404.
OPTIONAL = ("/api/v1/findings", "/api/v1/series", "/profile.folded")


class Page:
    """A page by the DevTools protocol."""

    def __init__(self, socket):
        self.socket = socket
        self.waiting = {}
        self.errors = []
        self.last = 0

    async def listen(self):
        async for text in self.socket:
            message = json.loads(text)
            if "id" in message:
                self.waiting.pop(message["id"]).set_result(message)
                continue
            parameters = message.get("params", {})
            if message["method"] == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            if message["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                entry = parameters["entry"]
                if not any(path in entry.get("url", "") for path in OPTIONAL):
                    self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    async def call(self, method, **parameters):
        self.last += 1
        answer = self.waiting[self.last] = asyncio.get_running_loop().create_future()
        await self.socket.send(json.dumps({"id": self.last, "method": method, "params": parameters}))
        message = await asyncio.wait_for(answer, LIMIT)
        assert "error" not in message, f"{method}: {message}"
        return message["result"]

    async def value(self, script):
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{script}: {result['exceptionDetails']}"
        return result["result"].get("value")

    async def until(self, what, script):
        """Waits until the script gives something true."""
        end = time.monotonic() + LIMIT
        while not await self.value(f"Boolean({script})"):
            if time.monotonic() > end:
                text = await self.value("location.href + ' ' + document.body.innerText.slice(0, 3000)")
                raise AssertionError(f"waited {LIMIT} s for {what}; the page shows: {text}")
            await asyncio.sleep(0.1)

    async def open(self, address):
        # A mark in the old document tells when the new one is there.
        await self.value("window.old = true")
        await self.call("Page.navigate", url=address)
        await self.until(f"{address} to load", "!window.old && document.readyState === 'complete'")

    async def click(self, selector):
        """A click of the mouse in the middle of an element."""
        box = f"""(() => {{ const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView({{block: 'center'}});
            const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
        x, y = await self.value(box)
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def press(self, key, text=None):
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def screenshot(self, path):
        answer = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


def heading(name):
    return f"[...document.querySelectorAll('h2')].some((one) => one.firstChild?.textContent === {json.dumps(name)})"


async def home(page, base, directory):
    await page.open(base + "/")
    await page.until("the service in the map", "[...document.querySelectorAll('.node .name')].some((one) => one.textContent === 'burn')")
    await page.until("both classes", "['/alpha', '/beta'].every((name) => document.querySelector('#app').innerText.includes(`GET ${name}`))")
    assert await page.value("document.querySelectorAll('noscript').length") == 1
    paint = await page.value("performance.getEntriesByName('first-contentful-paint')[0]?.startTime || 0")
    print(f"first contentful paint after {paint:.0f} ms")
    await page.screenshot(directory / "home.png")
    # Sorting: by a click on a head, in the address, and kept by a refresh.
    rates = "[...document.querySelectorAll('th')].filter((one) => one.innerText.startsWith('CPU each'))[0]"
    await page.value(f"{rates}.querySelector('button').id = 'by-cpu'")
    await page.click("#by-cpu")
    await page.until("the order in the address", "new URLSearchParams(location.search).get('classes.sort') === '-each'")
    assert await page.value(f"{rates}.getAttribute('aria-sort')") == "descending"
    assert await page.value("document.querySelector('[aria-sort] #by-cpu').closest('table').tBodies[0].rows[0].innerText.includes('/alpha')")
    # Searching by the keyboard.
    await page.press("/", "/")
    await page.until("the search to have the focus", "document.activeElement.type === 'search'")
    for letter in "alpha":
        await page.press(letter, letter)
    await page.until("a table with one class", "!document.querySelector('#by-cpu').closest('table').innerText.includes('/beta')")
    await page.until("a suggestion", "document.querySelector('.found a')?.innerText.includes('/alpha')")
    await page.click(".found a")
    await page.until("the class's page", "location.pathname === '/class' && document.readyState === 'complete'")


async def request_class(page, directory):
    await page.until("the flame graph", "[...document.querySelectorAll('.frame')].some((one) => one.getAttribute('aria-label').startsWith('burn_alpha'))")
    await page.until("charts over time", "document.querySelectorAll('.chart canvas').length === 2")
    await page.screenshot(directory / "class.png")
    await page.value("[...document.querySelectorAll('.frame')].find((one) => one.getAttribute('aria-label').startsWith('burn_alpha')).id = 'burn'")
    await page.click("#burn rect")
    await page.until("the zoom in the address", "new URLSearchParams(location.search).get('zoom')")
    # A zoomed flame graph's address can be opened again.
    await page.value("window.old = true")
    await page.call("Page.reload")
    await page.until("the reloaded page", "!window.old && document.readyState === 'complete'")
    assert await page.value("performance.getEntriesByType('navigation')[0].responseStatus") == 200
    await page.until("the same zoom", "document.querySelectorAll('.frame.faded').length > 0 && [...document.querySelectorAll('.frame:not(.faded)')][0].getAttribute('aria-label').startsWith('burn_alpha')")
    # By keys: Escape on a frame zooms out.
    await page.value("document.querySelector('.frame:not(.faded)').focus()")
    await page.press("Escape")
    await page.until("the whole graph", "document.querySelectorAll('.frame.faded').length === 0 && !new URLSearchParams(location.search).get('zoom')")
    await page.until("a transaction", "document.querySelector('a[href^=\"/transaction\"]')")
    await page.click("a[href^=\"/transaction\"]")
    await page.until("the waterfall", "location.pathname === '/transaction' && document.querySelector('.lane rect')")


async def narrow(page, base, directory, most):
    """A phone; or a window of 1280 pixels with 400 % zoom, which is 320 pixels."""
    await page.call("Emulation.setDeviceMetricsOverride", width=most, height=844, deviceScaleFactor=1, mobile=True)
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    for path in ("/", "/service?name=burn", "/class?name=burn&class=GET%20/alpha", "/health", "/workloads"):
        await page.open(base + path)
        await page.until("the page", "document.querySelectorAll('#app .card').length > 1")
        width = await page.value("document.documentElement.scrollWidth")
        assert width <= most, f"{path} is {width} pixels wide"
    assert await page.value("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)", "not dark"
    await page.screenshot(directory / f"narrow-{most}.png")


async def service(page, base):
    await page.open(base + "/service?name=burn")
    for name in ("rate", "errors", "p50", "p95", "p99", "CPU each", "Where time goes", "Called by"):
        await page.until(f"the card {name}", heading(name))
    await page.until("charts over time", "document.querySelectorAll('.chart canvas').length === 7")


async def run(base, directory, port_file):
    end = time.monotonic() + LIMIT
    while not port_file.exists() or "\n" not in port_file.read_text():
        assert time.monotonic() < end, "Chromium does not say its port"
        await asyncio.sleep(0.1)
    port, path = port_file.read_text().split("\n")[:2]
    async with websockets.connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as browser:
        await browser.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
        while "id" not in (answer := json.loads(await browser.recv())):
            pass
        target = answer["result"]["targetId"]
        async with websockets.connect(f"ws://127.0.0.1:{port}/devtools/page/{target}", max_size=None) as socket:
            page = Page(socket)
            listening = asyncio.create_task(page.listen())
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            await page.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
            await home(page, base, directory)
            await request_class(page, directory)
            await service(page, base)
            await narrow(page, base, directory, 390)
            await narrow(page, base, directory, 320)
            listening.cancel()
            assert not page.errors, page.errors


def main():
    base, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    profile = directory / "profile"
    command = ["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with open(directory / "chromium.log", "wb") as log:
        browser = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            asyncio.run(run(base, directory, profile / "DevToolsActivePort"))
        finally:
            browser.terminate()
            browser.wait(20)
    print("every step came true")


main()
