"""Uses the console as a person does, in headless Chromium: opens, searches, sorts, clicks, reloads.

Arguments: the console's address, a directory for the browser's profile and screenshots. Prints what it found; fails with the
step that did not come true.
"""

import asyncio
import json
import pathlib
import sys

import browser


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
    await page.until("cells of the heatmap, and the distribution", "document.querySelectorAll('.heatmap a.cell rect').length > 2 && document.querySelectorAll('.distribution tbody tr').length > 0")
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
    await cell(page, directory)
    await transaction(page, directory)


async def cell(page, directory):
    """A cell of the heatmap opens its transactions, and one of these opens."""
    await page.until("the heatmap", "document.querySelector('.cell[tabindex=\"0\"]')")
    # By keys: an arrow moves to another cell.
    await page.value("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    await page.press("ArrowRight")
    assert await page.value("document.activeElement.matches('.cell')")
    # The newest: memory still has its transactions.
    await page.value("[...document.querySelectorAll('.cell')].sort((a, b) => Number(a.dataset.at.split(',')[0]) - Number(b.dataset.at.split(',')[0])).at(-1).id = 'newest'")
    words = await page.value("document.querySelector('#newest').getAttribute('aria-label')")
    await page.click("#newest rect")
    await page.until("the list", "location.pathname === '/transactions' && document.querySelector('tbody tr')")
    asked = await page.value("Object.fromEntries(new URLSearchParams(location.search))")
    assert asked["name"] == "burn" and asked["class"] == "GET /alpha", asked
    inside = f"""(async () => {{
        const rows = (await (await fetch('/api/v1/transactions?service=burn&limit=1000&' + ['class', 'from', 'to', 'min_ms', 'max_ms'].map((name) => name + '=' + encodeURIComponent(new URLSearchParams(location.search).get(name))).join('&'))).json()).transactions;
        const [low, high, from, to] = ['min_ms', 'max_ms', 'from', 'to'].map((name) => Number(new URLSearchParams(location.search).get(name)));
        return rows.length && rows.every((row) => row.duration_s * 1e3 >= low && row.duration_s * 1e3 < high && row.start_ns + row.duration_s * 1e9 >= from - 1e6 && row.start_ns + row.duration_s * 1e9 < to + 1e6);
    }})()"""
    assert await page.value(inside), asked
    await page.screenshot(directory / "transactions.png")
    print(f"a cell of {words.split(':')[0]} opened its transactions")
    await page.click("tbody a[href^='/transaction?']")


async def zoom(page, base, directory):
    """A drag across a chart chooses a time for the whole page: in the address, which can be opened again, and taken back."""
    await page.open(base + "/class?name=burn&class=GET%20/alpha")
    points = "(async () => (await (await fetch('/api/v1/series?service=burn&class=GET%20/alpha')).json()).series[0].t)()"
    while len(await page.value(points)) < 5:
        await asyncio.sleep(0.5)
    await page.until("charts over time", "document.querySelectorAll('.chart canvas').length === 2")
    await page.value("document.querySelector('.chart .u-over').id = 'chart'")
    await page.drag("#chart", 0.2, 0.85)
    asked = "['from', 'to'].map((name) => new URLSearchParams(location.search).get(name))"
    await page.until("the time in the address", f"{asked}.every(Boolean)")
    begin, end = (int(at) for at in await page.value(asked))
    await page.until("the chosen time in the header", "[...document.querySelectorAll('#tools button')].some((one) => one.textContent.includes('–') && !one.hidden)")
    # Figures, too, are of that time: as many requests as the agent says.
    number = f"(async () => (await (await fetch('/api/v1/classes?service=burn&class=GET%20/alpha&from={begin}&to={end}')).json()).classes[0].count)()"
    count = await page.value(number)
    await page.until("requests of that time", f"document.querySelector('.kpi').innerText.includes({json.dumps(f'{count:,}')})")
    await page.screenshot(directory / "zoom.png")
    address = await page.value("location.href")
    await page.open(address)
    await page.until("the same figures", f"document.querySelector('.kpi')?.innerText.includes({json.dumps(f'{count:,}')})")
    inside = await page.value(f"({points}).then((t) => t.filter((at) => at * 1e9 >= {begin} && at * 1e9 < {end}).length)")
    assert inside >= 2, inside
    await page.value("[...document.querySelectorAll('#tools button')].find((one) => one.textContent.includes('–')).click()")
    await page.until("the range of before", f"{asked}.every((one) => one === null)")
    await page.value("history.back()")
    await page.until("the chosen time again", f"{asked}[0] === '{begin}'")
    print(f"a drag chose {(end - begin) / 1e9:.0f} s with {count} requests")


async def transaction(page, directory):
    await page.until("the waterfall", "location.pathname === '/transaction' && document.querySelector('.lane rect.server')")
    await page.until("the critical path in the waterfall and as a list", "document.querySelector('.lane rect.critical') && document.querySelectorAll('.path tbody tr').length")
    await page.until("evidence in words", "/parent/.test(document.querySelector('.evidence')?.textContent)")
    await page.click(".path tbody button")
    await page.until("the span in the address", "new URLSearchParams(location.search).get('span')")
    assert await page.value("document.querySelectorAll('.fall [aria-selected=true]').length") == 1
    await page.screenshot(directory / "transaction.png")


async def compare(page, base, directory):
    """Two classes: the address says everything, and a second browser that opens it sees the same."""
    await page.open(base + "/class?name=burn&class=GET%20/alpha")
    await page.until("the link", "document.querySelector('a[href^=\"/compare\"]')")
    await page.click("a[href^='/compare']")
    await page.until("figures of one side or a reason", "location.pathname === '/compare' && document.querySelectorAll('.figures tbody tr').length > 10")
    # Before: the other class in the same time.
    choose = """((name, value) => { const field = document.querySelector(`[name="${name}"]`); field.value = value; field.dispatchEvent(new Event('change')); })"""
    await page.value(f"{choose}('before_class', 'GET /beta')")
    for end in ("from", "to"):
        await page.value(f"{choose}('before_{end}', document.querySelector('[name={end}]').value)")
    await page.until("CPU each of both", "[...document.querySelectorAll('.figures tr')].find((row) => row.innerText.startsWith('CPU each'))?.innerText.includes('×')")
    await page.until("the differential flame graph", "document.querySelector('.frame.more1, .frame.more2, .frame.more3')")
    await page.screenshot(directory / "compare.png")
    address = await page.value("location.href")
    for part in ("before_class=GET+%2Fbeta", "class=GET+%2Falpha", "from=", "before_to="):
        assert part in address, address
    figures = "[...document.querySelectorAll('.figures tr')].map((row) => row.innerText).join('\\n')"
    before = await page.value(figures)
    await page.open(address)
    await page.until("the same figures", f"{figures} === {json.dumps(before)}")
    assert await page.value("location.href") == address


def fits(schema, value, where):
    """The part of JSON Schema that the agent's document uses."""
    if "anyOf" in schema:
        if value is None:
            return
        schema = schema["anyOf"][0]
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    if "type" in schema:
        assert isinstance(value, kinds[schema["type"]]), f"{where}: {value!r} is no {schema['type']}"
    assert value in schema.get("enum", [value]), f"{where}: {value!r}"
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name in schema.get("required", []):
            assert name in value, f"{where}: no {name}"
        for name, one in value.items():
            assert name in known or other is not False, f"{where}: {name} is not in the document"
            fits(known.get(name, other if isinstance(other, dict) else {}), one, f"{where}.{name}")
    if isinstance(value, list):
        for one in value:
            fits(schema.get("items", {}), one, where + "[]")


async def api(page):
    """Real answers have the shapes that the agent's OpenAPI document promises."""
    answer = "(async (path) => await (await fetch(path)).json())"
    document = await page.value(f"{answer}('/api/v1/openapi.json')")
    pick = "service=burn&class=GET%20/alpha"
    trace = (await page.value(f"{answer}('/api/v1/transactions?limit=1&{pick}')"))["transactions"][0]["trace_id"]
    checked = 0
    for path, operations in document["paths"].items():
        schema = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {}).get("application/json", {}).get("schema")
        if schema is None or path.endswith(("openapi.json", "{span_id}", "{id}")):
            continue
        known = {one["name"] for one in operations["get"]["parameters"]}
        asks = [""] + ([f"?{pick}"] if {"service", "class"} <= known else []) + ([f"?{pick}&since=5m&limit=1"] if {"class", "since", "limit"} <= known else [])
        if path in ("/api/v1/hotspots", "/api/v1/durations"):
            asks.remove("")
        for query in asks:
            value = await page.value(f"{answer}('{path.replace('{trace_id}', trace)}{query}')")
            fits(schema, value, path + query)
            checked += 1
    assert checked > 20, checked
    print(f"{checked} answers are as the document says")


async def mistakes(page, base):
    """A person who opens a wrong address reads a page."""
    await page.call("Log.disable")
    for path in ("/nothing", "/flamegraph.svg?service=nobody", "/class?name=burn&class=x", "/service?name=burn&refresh=soon"):
        await page.open(base + path)
        assert await page.value("document.contentType") == "text/html", path
        await page.until("a way back", "document.querySelector('main a[href=\"/\"]')")
    await page.call("Log.enable")


async def narrow(page, base, directory, most):
    """A phone; or a window of 1280 pixels with 400 % zoom, which is 320 pixels."""
    await page.call("Emulation.setDeviceMetricsOverride", width=most, height=844, deviceScaleFactor=1, mobile=True)
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    for path in ("/", "/service?name=burn", "/class?name=burn&class=GET%20/alpha", "/health", "/workloads", "/transactions?name=burn", "/compare?name=burn&class=GET%20/alpha"):
        await page.open(base + path)
        await page.until("the page", "document.querySelectorAll('#app .card').length > 0 && (document.querySelector('tbody tr, .empty'))")
        width = await page.value("document.documentElement.scrollWidth")
        assert width <= most, f"{path} is {width} pixels wide"
    assert await page.value("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)", "not dark"
    # The home page begins with classes; a touch opens the rest.
    await page.open(base + "/")
    await page.until("rows of classes", "document.querySelectorAll('#app > section tbody tr').length > 0")
    assert await page.value("document.querySelectorAll('details.card:not([open])').length >= 3")
    height = await page.value("document.documentElement.scrollHeight")
    assert height < 3000, f"{height} pixels long"
    touch = "[...document.querySelectorAll('summary')].find((one) => one.innerText.startsWith('Services')).click()"
    await page.value(touch)
    await page.until("services", "[...document.querySelectorAll('details[open] tbody tr')].some((one) => one.innerText.includes('burn'))")
    # Kept in this tab: closed again for the next width.
    await page.value(touch)
    await page.screenshot(directory / f"narrow-{most}.png")


async def service(page, base):
    await page.open(base + "/service?name=burn")
    for name in ("rate", "errors", "p50", "p95", "p99", "CPU each", "Where time goes", "Called by"):
        await page.until(f"the card {name}", heading(name))
    await page.until("charts over time", "document.querySelectorAll('.chart canvas').length === 7")


async def run(page, base, directory):
    await page.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    await home(page, base, directory)
    await request_class(page, directory)
    await service(page, base)
    await compare(page, base, directory)
    await api(page)
    await mistakes(page, base)
    await zoom(page, base, directory)
    await narrow(page, base, directory, 390)
    await narrow(page, base, directory, 320)


def main():
    base, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    browser.use(lambda page: run(page, base, directory), directory)
    print("every step came true")


main()
