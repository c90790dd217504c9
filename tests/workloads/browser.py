"""A page in headless Chromium, by the DevTools protocol."""

import asyncio
import base64
import json
import subprocess
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

    async def drag(self, selector, begin, end):
        """A drag of the mouse across an element, between two shares of its width."""
        box = f"""(() => {{ const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView({{block: 'center'}});
            const box = one.getBoundingClientRect(); return [box.x, box.y + box.height / 2, box.width]; }})()"""
        x, y, width = await self.value(box)
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width * begin, y=y)
        await self.call("Input.dispatchMouseEvent", type="mousePressed", x=x + width * begin, y=y, button="left", clickCount=1)
        for share in (0.25, 0.5, 0.75, 1):
            await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width * (begin + (end - begin) * share), y=y, button="left", buttons=1)
        await self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x + width * end, y=y, button="left", clickCount=1)

    async def press(self, key, text=None):
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def screenshot(self, path):
        answer = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


async def _use(steps, port_file):
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
            await steps(page)
            listening.cancel()
            assert not page.errors, page.errors


def use(steps, directory):
    """Runs `steps(page)` in a browser that keeps its profile and log in `directory`; fails if the page logged an error."""
    profile = directory / "profile"
    command = ["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with open(directory / "chromium.log", "wb") as log:
        browser = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            asyncio.run(_use(steps, profile / "DevToolsActivePort"))
        finally:
            browser.terminate()
            browser.wait(20)
